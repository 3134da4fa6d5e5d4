"""Flags: each names a keyword of the library; one that was not given leaves the library's default alone."""

from __future__ import annotations

import argparse

import pytest

from looseleaf.cli import options


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_sampling_flags(parser)
    options.add_engine_flags(parser)
    return parser.parse_args(words)


def test_flags_not_given_leave_no_trace() -> None:
    args = parse()
    assert options.given(args, options.SAMPLING_FIELDS) == {}
    assert options.given(args, options.ENGINE_FIELDS) == {}


def test_flags_given_are_found_under_their_keywords() -> None:
    args = parse(
        "--stop", "a", "--stop", "b", "--stop-token-id", "7", "--ignore-eos", "--no-enable-prefix-caching"
    )
    assert options.given(args, options.SAMPLING_FIELDS) == {
        "stop": ["a", "b"],
        "stop_token_ids": [7],
        "ignore_eos": True,
    }
    assert options.given(args, options.ENGINE_FIELDS) == {"enable_prefix_caching": False}


def test_every_field_has_a_flag() -> None:
    for field in options.SAMPLING_FIELDS + options.ENGINE_FIELDS:
        flag = "--" + field.replace("_", "-").removesuffix("s" if field == "stop_token_ids" else "")
        value = () if field in ("ignore_eos", "enable_prefix_caching") else ("1",)
        assert hasattr(parse(flag, *value), field)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1073741824", 1073741824),
        ("1GiB", 1 << 30),
        ("1.5 GiB", 3 << 29),
        ("2GB", 2_000_000_000),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes_are_exact_bytes(text: str, size_bytes: int) -> None:
    assert options.byte_count(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "1 gib", "-1", "1e9", "1GiBB", "nan"])
def test_a_size_that_cannot_be_read_is_refused_with_the_units(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="KB, MB, GB, KiB, MiB, GiB"):
        options.byte_count(text)
