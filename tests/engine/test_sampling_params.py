"""SamplingParams: vLLM's names and defaults, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from looseleaf import SamplingParams
from looseleaf.errors import RequestError, UnsupportedError


def test_the_defaults_are_vllms():
    params = SamplingParams()
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (16, 0, None)
    assert params.stop_strings == ()
    assert params.stop_ids == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", math.inf),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("seed", 2**64),
        ("seed", 0.5),
        ("stop", [""]),
        ("stop", 7),
        ("stop", ["a", 1]),
        ("stop", "\ud800"),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", 3),
        ("ignore_eos", 1),
        ("output_kind", "DELTA"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(field, value):
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("allowed_token_ids", np.array([1, 2])),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("repetition_penalty", 1.1),
        ("logprobs", 0),
        ("prompt_logprobs", 1),
        ("logit_bias", {1: 2.0}),
        ("allowed_token_ids", [1]),
        ("bad_words", ["no"]),
        ("structured_outputs", object()),
        ("thinking_token_budget", 5),
    ],
)
def test_what_vllm_does_and_looseleaf_does_not_is_refused_with_a_reason(field, value):
    with pytest.raises(UnsupportedError, match=f"^{field}=.* is not supported: ..*; leave it at "):
        SamplingParams(**{field: value})


def test_neutral_values_of_what_is_not_done_are_accepted():
    SamplingParams(
        n=1, best_of=1, presence_penalty=0, repetition_penalty=1.0, logprobs=None, bad_words=[], logit_bias={}
    )


def test_best_of_is_refused_with_the_name_to_use():
    sentence = "best_of=2 is not supported: vLLM has dropped it, too; ask for n outputs"
    with pytest.raises(UnsupportedError, match=sentence):
        SamplingParams(best_of=2)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("top_k", -2, "top_k must be an integer of at least -1, found -2"),
        ("top_k", 2**63, "top_k must be an integer of at most 2**63 - 1, found 9223372036854775808"),
        ("max_tokens", 0, "max_tokens must be an integer of at least 1, found 0"),
        ("seed", 2**64, "seed must be an integer of at most 2**64 - 1, found 18446744073709551616"),
        ("seed", -(2**63) - 1, "seed must be an integer of at least -2**63, found -9223372036854775809"),
        ("seed", "x" * 500, f"seed must be an integer of at least -2**63, found {'x' * 78!r}"[:-1] + "…"),
        pytest.param(
            "min_tokens",
            10**5000,
            "at most 2**63 - 1, found a value of type int that is too long to show",
            id="more digits than Python writes",
        ),
        pytest.param(
            "temperature",
            -(10**400),
            "temperature must be a finite number at least 0, found -10000",
            id="larger than any float",
        ),
    ],
)
def test_a_sentence_has_the_bound_that_is_broken_and_no_number_that_drowns_it(field, value, sentence):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 160


def test_stop_takes_one_string_or_several_and_stop_ids_lose_repeats():
    assert SamplingParams(stop="a").stop_strings == ("a",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams(stop_token_ids=[3, 1, 3]).stop_ids == (3, 1)


def test_stop_strings_need_text():
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="a", detokenize=False)


def test_numbers_of_numpy_are_numbers():
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(5), stop_token_ids=[np.int32(3)])
    assert (params.temperature, params.top_k, params.stop_ids) == (0.5, 5, (3,))
    assert type(params.top_k) is int


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-6, True), (1e-4, False), (1.0, False)])
def test_a_temperature_of_almost_nothing_is_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_seed_minus_one_means_none_as_in_vllm():
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=-2).seed == -2
