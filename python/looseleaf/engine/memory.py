"""How many blocks the pool gets, and whether the longest request fits."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

from looseleaf.engine.config import CacheDtype, EngineConfig
from looseleaf.errors import InvalidConfigError

logger = logging.getLogger(__name__)

GIB = 2**30

# A pool in main memory that nobody sized takes the smaller of these.
DEFAULT_POOL_BYTES = 4 * GIB
DEFAULT_SHARE_OF_AVAILABLE = 4


@dataclass(slots=True, frozen=True)
class PoolSize:
    """The size of a pool.

    Attributes:
        num_blocks: blocks, the null block included.
        block_size: tokens per block.
        bytes_per_block: bytes of one block over all layers.
    """

    num_blocks: int
    block_size: int
    bytes_per_block: int

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold: the null block is not one of them."""
        return self.num_blocks - 1

    @property
    def num_tokens(self) -> int:
        """Tokens that requests can hold."""
        return self.num_usable * self.block_size

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.bytes_per_block

    def concurrency(self, max_model_len: int) -> float:
        """Requests of ``max_model_len`` tokens that fit side by side."""
        return self.num_usable / math.ceil(max_model_len / self.block_size)


def size_pool(
    config: EngineConfig,
    *,
    block_size: int,
    bytes_per_block: int,
    dtype: CacheDtype,
    max_model_len: int,
    available_bytes: int,
) -> PoolSize:
    """Choose the size of a pool in main memory.

    Args:
        config: what was asked for; blocks win over bytes, and bytes over the default.
        block_size: tokens per block.
        bytes_per_block: bytes of one block over all layers.
        dtype: of the numbers in it.
        max_model_len: tokens of the longest request.
        available_bytes: main memory that could be used now.

    Raises:
        InvalidConfigError: the longest request does not fit.
    """
    if config.num_gpu_blocks_override is not None:
        num_blocks = config.num_gpu_blocks_override
    elif config.kv_cache_memory_bytes is not None:
        num_blocks = config.kv_cache_memory_bytes // bytes_per_block
    else:
        num_blocks = min(DEFAULT_POOL_BYTES, available_bytes // DEFAULT_SHARE_OF_AVAILABLE) // bytes_per_block
    size = PoolSize(num_blocks, block_size, bytes_per_block)
    if size.num_tokens < max_model_len:
        raise InvalidConfigError(_too_small(config, size, dtype, max_model_len))
    if size.num_bytes > available_bytes:
        logger.warning(
            "The KV cache of %.2f GiB is larger than the %.2f GiB of memory that are available now",
            size.num_bytes / GIB,
            available_bytes / GIB,
        )
    return size


def log_pool_size(size: PoolSize, max_model_len: int) -> None:
    """Say how large the pool is, in vLLM's words but for the block that nobody can use."""
    logger.info("Available KV cache memory: %.2f GiB", size.num_bytes / GIB)
    logger.info("CPU KV cache size: %s tokens", f"{size.num_tokens:,}")
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{max_model_len:,}",
        size.concurrency(max_model_len),
    )


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Main memory that this process could still use: the machine's, or what its container has left.

    Args:
        root: of the file system that describes the machine.

    Raises:
        InvalidConfigError: the system does not tell; the pool's size must then be given.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        raise InvalidConfigError(
            "kv_cache_memory_bytes must be given: this system does not tell how much memory is available"
        ) from None
    try:
        limit, used = (
            (root / "sys/fs/cgroup" / name).read_text() for name in ("memory.max", "memory.current")
        )
        container = int(limit) - int(used)
    except (OSError, ValueError):  # no container, or one without a limit
        return machine
    return max(0, min(machine, container))


def _too_small(config: EngineConfig, size: PoolSize, dtype: CacheDtype, max_model_len: int) -> str:
    needed = math.ceil(max_model_len / size.block_size)
    available = max(size.num_usable, 0)
    remedies = []
    if available:
        remedies.append(f"lower max_model_len to {available * size.block_size}")
    if config.num_gpu_blocks_override is not None:
        remedies.append(f"raise num_gpu_blocks_override to {needed + 1}")
    else:
        remedies.append(f"raise kv_cache_memory_bytes to {(needed + 1) * size.bytes_per_block}")
    if dtype == "float32":
        remedies.append("compute, and store the cache, in half the bytes with dtype='bfloat16'")
    longest = f"the longest that fits has {available * size.block_size} tokens" if available else "none fits"
    return (
        f"a request of max_model_len={max_model_len} tokens needs {needed} blocks of {size.block_size}"
        f" tokens, and the pool has {available} to give ({size.num_blocks} with the null block,"
        f" {size.num_bytes} bytes): {longest}. Cheapest first: {'; '.join(remedies)}"
    )
