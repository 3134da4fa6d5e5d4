"""How large the pool becomes, and what is said when it is too small."""

from __future__ import annotations

import logging

import pytest

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.memory import GIB, PoolSize, available_memory_bytes, log_pool_size, size_pool
from looseleaf.errors import InvalidConfigError

MIB = 2**20


def size(available_bytes: int = 100 * GIB, max_model_len: int = 64, **options: object) -> PoolSize:
    config = EngineConfig(model="m", **options)
    return size_pool(
        config,
        block_size=16,
        bytes_per_block=MIB,
        dtype="float32",
        max_model_len=max_model_len,
        available_bytes=available_bytes,
    )


def test_a_pool_that_nobody_sized_takes_4_gib_or_a_quarter_of_what_is_available():
    assert size(available_bytes=100 * GIB).num_bytes == 4 * GIB
    assert size(available_bytes=16 * GIB).num_bytes == 4 * GIB
    assert size(available_bytes=2 * GIB).num_bytes == 512 * MIB


def test_blocks_win_over_bytes_and_bytes_over_the_default():
    assert size(kv_cache_memory_bytes=100 * MIB + 1).num_blocks == 100
    assert size(kv_cache_memory_bytes=100 * MIB, num_gpu_blocks_override=7).num_blocks == 7


@pytest.mark.parametrize(("max_model_len", "fits"), [(10 * 16, True), (10 * 16 + 1, False), (11 * 16, False)])
def test_the_longest_request_must_fit_beside_the_null_block(max_model_len, fits):
    if fits:
        assert size(max_model_len=max_model_len, num_gpu_blocks_override=11).num_usable == 10
    else:
        with pytest.raises(InvalidConfigError):
            size(max_model_len=max_model_len, num_gpu_blocks_override=11)


def test_a_pool_too_small_is_refused_with_the_numbers_and_the_remedies_cheapest_first():
    with pytest.raises(InvalidConfigError) as caught:
        size(max_model_len=1000, kv_cache_memory_bytes=11 * MIB)
    message = str(caught.value)
    assert "max_model_len=1000 tokens needs 63 blocks of 16 tokens, and the pool has 10 to give" in message
    assert "the longest that fits has 160 tokens" in message
    remedies = [
        "lower max_model_len to 160",
        f"raise kv_cache_memory_bytes to {64 * MIB}",
        "dtype='bfloat16'",
    ]
    places = [message.index(remedy) for remedy in remedies]
    assert places == sorted(places)
    # Each of the first two is enough, and not more than needed.
    size(max_model_len=160, kv_cache_memory_bytes=11 * MIB)
    size(max_model_len=1000, kv_cache_memory_bytes=64 * MIB)
    with pytest.raises(InvalidConfigError):
        size(max_model_len=1000, kv_cache_memory_bytes=64 * MIB - 1)


def test_the_remedy_for_an_override_is_the_override():
    with pytest.raises(InvalidConfigError, match="raise num_gpu_blocks_override to 64"):
        size(max_model_len=1000, num_gpu_blocks_override=11)


def test_a_pool_of_nothing_but_the_null_block_is_refused():
    with pytest.raises(InvalidConfigError, match=r"has 0 to give .* none fits"):
        size(kv_cache_memory_bytes=MIB)
    with pytest.raises(InvalidConfigError, match="has 0 to give"):
        size(kv_cache_memory_bytes=1)


def test_the_lines_at_start_leave_the_null_block_out(caplog):
    caplog.set_level(logging.INFO, logger="looseleaf")
    # vLLM's probed case: 11 blocks of 4 and a longest request of 36 tokens are 40 usable tokens.
    log_pool_size(PoolSize(num_blocks=11, block_size=4, bytes_per_block=GIB // 4), 36)
    assert caplog.messages == [
        "Available KV cache memory: 2.75 GiB",
        "CPU KV cache size: 40 tokens",
        "Maximum concurrency for 36 tokens per request: 1.11x",
    ]


def test_a_pool_larger_than_the_memory_is_warned_of(caplog):
    size(available_bytes=GIB, kv_cache_memory_bytes=2 * GIB)
    assert "2.00 GiB is larger than the 1.00 GiB" in caplog.text


def machine(root, available_kib, limit=None, used=0):
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available_kib} kB\n")
    if limit is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        (root / "sys/fs/cgroup/memory.current").write_text(f"{used}\n")
    return root


@pytest.mark.parametrize(
    ("limit", "used", "available"),
    [
        (None, 0, 1000 * 1024),
        ("max", 0, 1000 * 1024),
        (700_000, 200_000, 500_000),
        (9_000_000, 200_000, 1000 * 1024),
        (100, 200, 0),
    ],
)
def test_a_container_has_what_its_limit_leaves(tmp_path, limit, used, available):
    assert available_memory_bytes(machine(tmp_path, 1000, limit, used)) == available


def test_a_system_that_does_not_tell_its_memory_needs_a_size(tmp_path):
    with pytest.raises(InvalidConfigError, match="kv_cache_memory_bytes must be given"):
        available_memory_bytes(tmp_path)
