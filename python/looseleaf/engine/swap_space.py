"""How many blocks of preempted requests main memory is to keep."""

from __future__ import annotations

import logging
from pathlib import Path

from looseleaf.engine.memory import GIB, PoolSize
from looseleaf.errors import InvalidConfigError

logger = logging.getLogger(__name__)


def num_swap_blocks(swap_space: float, size: PoolSize, *, machine_bytes: int) -> int:
    """How many blocks ``swap_space`` GiB hold, at most those of the pool; 0 if it is 0.

    Args:
        swap_space: GiB of main memory.
        size: of the pool, which is in the same memory.
        machine_bytes: main memory of the machine.

    Raises:
        InvalidConfigError: the machine has less memory than that, or not even one block fits.
    """
    if not swap_space:
        return 0
    asked = int(swap_space * GIB)
    if asked > machine_bytes:
        raise InvalidConfigError(
            f"swap_space must be at most the machine's memory, {machine_bytes / GIB:.2f} GiB, found"
            f" {swap_space:g}"
        )
    num_blocks = min(asked // size.bytes_per_block, size.num_usable)
    if not num_blocks:
        raise InvalidConfigError(
            f"swap_space must hold at least one block of {size.bytes_per_block} bytes, which are"
            f" {size.bytes_per_block / GIB:.3g} GiB, found {swap_space:g}"
        )
    num_bytes = num_blocks * size.bytes_per_block
    if (needed := num_bytes + size.num_bytes) > machine_bytes:
        logger.warning(
            "The KV cache and the swap space take %.2f GiB together, and the machine has %.2f GiB",
            needed / GIB,
            machine_bytes / GIB,
        )
    logger.info("Swap space: %.2f GiB, %d blocks", num_bytes / GIB, num_blocks)
    return num_blocks


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Main memory of the machine, or what its container may use.

    Args:
        root: of the file system that describes the machine.

    Raises:
        InvalidConfigError: the system does not tell.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    except (OSError, StopIteration):
        raise InvalidConfigError(
            "swap_space must be 0: this system does not tell how much memory it has"
        ) from None
    try:
        return min(machine, int((root / "sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return machine
