"""How many blocks a swap space holds, and what is refused."""

from __future__ import annotations

import math

import pytest

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.memory import GIB, PoolSize
from looseleaf.engine.swap_space import machine_memory_bytes, num_swap_blocks
from looseleaf.errors import InvalidConfigError

POOL = PoolSize(num_blocks=101, block_size=16, bytes_per_block=2**20)


@pytest.mark.parametrize(
    ("swap_space", "num_blocks"),
    [(0, 0), (1 / 1024, 1), (0.05, 51), (100 / 1024, 100), (4, 100)],
)
def test_a_swap_space_holds_whole_blocks_and_no_more_than_the_pool(swap_space, num_blocks):
    assert num_swap_blocks(swap_space, POOL, machine_bytes=8 * GIB) == num_blocks


def test_more_than_the_machine_has_is_refused_with_both_figures():
    with pytest.raises(InvalidConfigError, match=r"machine's memory, 8.00 GiB, found 8.5$"):
        num_swap_blocks(8.5, POOL, machine_bytes=8 * GIB)


def test_less_than_a_block_is_refused_with_the_size_of_one():
    with pytest.raises(InvalidConfigError, match=r"one block of 1048576 bytes, .* 0.000977 GiB, found"):
        num_swap_blocks(0.0005, POOL, machine_bytes=8 * GIB)


def test_pool_and_swap_space_larger_than_the_machine_are_told(caplog):
    num_swap_blocks(0.1, POOL, machine_bytes=GIB // 8)
    assert "take 0.20 GiB together, and the machine has 0.12 GiB" in caplog.text


@pytest.mark.parametrize("found", [-1, math.nan, math.inf, "4", None, True])
def test_what_is_no_number_of_gib_is_refused(found):
    with pytest.raises(InvalidConfigError, match="swap_space must be a number of GiB, at least 0, found"):
        EngineConfig(model="m", swap_space=found)


@pytest.mark.parametrize(("limit", "memory"), [("max", 1000 * 1024), ("5000", 5000), (None, 1000 * 1024)])
def test_the_machine_is_what_its_container_may_use(tmp_path, limit, memory):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:     1000 kB\nMemAvailable:  10 kB\n")
    if limit is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(limit)
    assert machine_memory_bytes(tmp_path) == memory


def test_a_system_that_tells_nothing_cannot_have_a_swap_space(tmp_path):
    with pytest.raises(InvalidConfigError, match="swap_space must be 0"):
        machine_memory_bytes(tmp_path)
