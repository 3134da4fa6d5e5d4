"""Reading prompts: every line that cannot be read says so, with its number, and the others are unharmed."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.cli.prompts import BadPrompt, Prompt, from_file, from_flags, from_lines, from_stdin


def only(line: bytes) -> Prompt | BadPrompt:
    (result,) = from_lines([line])
    return result


def test_a_string_and_an_object_are_prompts() -> None:
    lines = [
        b'"Hello"\n',
        b"\n",
        b'{"prompt": "Hi", "temperature": 0.5, "stop": ["."], "cache_salt": "tenant"}\n',
        b'{"prompt_token_ids": [1, 2]}',
    ]
    assert from_lines(lines) == [
        Prompt("line 1", "Hello"),
        Prompt("line 3", "Hi", {"temperature": 0.5, "stop": ["."]}, "tenant"),
        Prompt("line 4", [1, 2]),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "a"', "not valid JSON"),
        (b"hello", "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'"\xff"', "not UTF-8"),
        (b'"a', "not valid JSON: Unterminated string starting at column 1"),
        (b'"a\tb"', "not valid JSON: Invalid control character at column 3"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "no number here has 5000 digits: 11111111111111111111…"),
        (b"17", "expected a string or an object, found 17"),
        (b"null", "expected a string or an object, found null"),
        (b'["a"]', "expected a string or an object, found a list"),
        (b"{}", "exactly one of prompt and prompt_token_ids"),
        (b'{"prompt": "a", "prompt_token_ids": [1]}', "exactly one of prompt and prompt_token_ids"),
        (b'{"prompt": ["a"]}', "prompt must be a string, found a list"),
        (b'{"prompt": "a", "temprature": 1}', "unknown field 'temprature'; allowed are prompt,"),
        (b'{"prompt": "a", "cache_salt": 7}', "cache_salt must be a string, found 7"),
        (b'{"prompt_token_ids": "12"}', "prompt_token_ids must be a list of integers, found a string"),
        (b'{"prompt_token_ids": [1, true]}', "found true in it"),
        (b'{"prompt_token_ids": [1.0]}', "found 1.0 in it"),
    ],
)
def test_a_broken_line_says_what_is_wrong(line: bytes, reason: str) -> None:
    bad = only(line)
    assert isinstance(bad, BadPrompt)
    assert str(bad).startswith("line 1: ")
    assert reason in bad.reason


def test_a_broken_line_keeps_its_number_and_harms_no_other() -> None:
    first, second, third = from_lines([b'"a"\n', b"{\n", b'"c"\n'])
    assert first == Prompt("line 1", "a")
    assert isinstance(second, BadPrompt)
    assert second.source == "line 2"
    assert third == Prompt("line 3", "c")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_text_written_as_json_comes_back(texts: list[str]) -> None:
    lines = [json.dumps(text).encode() + b"\n" for text in texts]
    assert [prompt.content for prompt in from_lines(lines) if isinstance(prompt, Prompt)] == texts


@given(st.binary())
def test_no_bytes_raise(line: bytes) -> None:
    assert all(isinstance(prompt, Prompt | BadPrompt) for prompt in from_lines(io.BytesIO(line)))


def test_a_file_is_read_as_lines_and_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'\xef\xbb\xbf"a"\r\n"b"')
    assert [prompt.source for prompt in from_file(str(path), None)] == ["line 1", "line 2"]
    assert all(isinstance(prompt, Prompt) for prompt in from_file(str(path), None))


def test_a_dash_reads_lines_from_standard_input_which_must_be_open() -> None:
    assert from_file("-", io.BytesIO(b'"a"')) == [Prompt("line 1", "a")]
    with pytest.raises(ValueError, match="standard input is closed"):
        from_file("-", None)


def test_standard_input_is_one_prompt_without_its_closing_line_end() -> None:
    assert from_stdin(io.BytesIO(b"two\nlines\n")) == Prompt("standard input", "two\nlines")
    assert isinstance(from_stdin(io.BytesIO(b"\xff")), BadPrompt)


def test_flags_are_numbered() -> None:
    assert from_flags(["a", "b"]) == [Prompt("prompt 1", "a"), Prompt("prompt 2", "b")]


def test_a_flag_that_was_not_utf8_says_where() -> None:
    good, bad = from_flags(["a", os.fsdecode(b"ab\xff")])
    assert good == Prompt("prompt 1", "a")
    assert bad == BadPrompt("prompt 2", "not UTF-8 text: byte 0xff behind 2 characters")
