"""What an engine may be asked for."""

from __future__ import annotations

import math

import pytest

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.vllm_arguments import accept_vllm_arguments
from looseleaf.errors import InvalidConfigError, UnsupportedError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""),
        ("dtype", "float8"),
        ("block_size", 0),
        ("block_size", 16.0),
        ("block_size", True),
        ("kv_cache_dtype", "fp8"),
        ("kv_cache_memory_bytes", -1),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", math.nan),
        ("num_gpu_blocks_override", 1),
        ("enable_prefix_caching", "yes"),
        ("prefix_caching_hash_algo", "md5"),
        ("max_num_seqs", 0),
        ("max_num_seqs", 2**16 + 1),
        ("max_num_batched_tokens", 2**31),
        ("max_num_batched_tokens", 0),
        ("long_prefill_token_threshold", -1),
        ("scheduling_policy", "lifo"),
        ("priority_aging_steps", -1),
        ("watermark", 1),
        ("watermark", -0.1),
        ("watermark", math.nan),
        ("max_model_len", 0),
        ("seed", 2**64),
        ("seed", None),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name_with_the_value(field, value):
    with pytest.raises(InvalidConfigError) as caught:
        EngineConfig(**{"model": "m"} | {field: value})
    assert field in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_budget_below_the_row_limit_is_refused_with_both_numbers():
    with pytest.raises(InvalidConfigError, match=r"max_num_batched_tokens .* max_num_seqs \(8\).* found 7"):
        EngineConfig(model="m", max_num_seqs=8, max_num_batched_tokens=7)


def test_a_default_gives_way_to_the_value_that_was_asked_for():
    small_budget = EngineConfig(model="m", max_num_batched_tokens=16).limits(100)
    assert (small_budget.max_num_seqs, small_budget.max_num_batched_tokens) == (16, 16)
    many_rows = EngineConfig(model="m", max_num_seqs=4000).limits(100)
    assert (many_rows.max_num_seqs, many_rows.max_num_batched_tokens) == (4000, 4000)


def test_max_model_len_is_the_models_own_unless_a_shorter_one_is_asked_for():
    assert EngineConfig(model="m").limits(100).max_model_len == 100
    assert EngineConfig(model="m", max_model_len=99).limits(100).max_model_len == 99
    with pytest.raises(InvalidConfigError, match="at most 100, the model's own limit, found 101"):
        EngineConfig(model="m", max_model_len=101).limits(100)


def test_sha256_selects_the_hash_that_other_programs_can_reproduce():
    assert EngineConfig(model="m", prefix_caching_hash_algo="sha256").hash_algorithm == "sha256_cbor"


@pytest.mark.parametrize(
    "arguments",
    [
        {"tensor_parallel_size": 1, "enforce_eager": True, "trust_remote_code": False},
        {
            "enable_chunked_prefill": True,
            "disable_log_stats": True,
            "cpu_offload_gb": 0,
            "tokenizer_mode": "auto",
        },
    ],
)
def test_vllm_arguments_that_ask_for_what_is_done_anyway_are_accepted(arguments):
    accept_vllm_arguments(arguments, frozenset())


@pytest.mark.parametrize(
    ("name", "value"), [("tensor_parallel_size", 2), ("quantization", "awq"), ("trust_remote_code", True)]
)
def test_vllm_arguments_that_ask_for_something_else_are_refused_by_name(name, value):
    with pytest.raises(UnsupportedError, match=f"{name}={value!r} is not supported: "):
        accept_vllm_arguments({name: value}, frozenset())


def test_an_unknown_argument_is_a_type_error_that_names_its_neighbour():
    with pytest.raises(TypeError, match=r"'max_model_length'; did you mean 'max_model_len'\?"):
        accept_vllm_arguments({"max_model_length": 5}, frozenset({"max_model_len", "seed"}))
