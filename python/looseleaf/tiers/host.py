"""A second arena of blocks in main memory."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from looseleaf.errors import InvalidConfigError
from looseleaf.tiers.base import BlockKey, CopyEnd, Tier

# Enough for a steady figure, little enough to take no time.
_PROBED_BYTES = 2**24


class HostTier(Tier):
    """Real blocks beside those of the pool. A copy is over when the call returns.

    A block of all layers is one run of bytes, so that it moves in one copy, whatever is inside.

    Args:
        cache: ``[num_blocks, …]``, the pool's blocks.
        num_blocks: blocks to keep, at least one. Memory is taken as they are used.

    Raises:
        InvalidConfigError: there is no memory for them.

    Attributes:
        num_blocks: as given.
        bytes_per_block: bytes of one block over all layers.
    """

    name = "host"

    def __init__(self, cache: torch.Tensor, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.bytes_per_block = cache[0].nbytes
        self._cache = cache
        try:
            self._arena = torch.empty((num_blocks, *cache.shape[1:]), dtype=cache.dtype)
        except (MemoryError, RuntimeError) as error:
            raise InvalidConfigError(
                f"swap_space: no room for {num_blocks} blocks of {self.bytes_per_block} bytes"
            ) from error
        self._free = list(range(num_blocks))[::-1]
        self._slots: dict[BlockKey, int] = {}
        self._ended: list[CopyEnd] = []
        self._num_jobs = 0

    @property
    def num_free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def is_empty(self) -> bool:
        return not self._slots

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int | None:
        if len(keys) > len(self._free):
            return None
        began = time.perf_counter()
        for key, block in zip(keys, block_ids, strict=True):
            slot = self._free.pop()
            self._arena[slot].copy_(self._cache[block])
            self._slots[key] = slot
        return self._end(began, succeeded=True)

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        began = time.perf_counter()
        slots = [self._slots.get(key) for key in keys]
        if None in slots:
            return self._end(began, succeeded=False)
        for slot, block in zip(slots, block_ids, strict=True):
            self._cache[block].copy_(self._arena[slot])
        return self._end(began, succeeded=True)

    def poll(self, wait_seconds: float = 0.0) -> list[CopyEnd]:
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, job: int) -> None:
        """Nothing: all copies have ended."""

    def lookup(self, keys: Sequence[BlockKey]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self._slots), len(keys))

    def drop(self, keys: Sequence[BlockKey]) -> None:
        slots = (self._slots.pop(key, None) for key in keys)
        self._free += [slot for slot in slots if slot is not None]

    def probe(self) -> tuple[int, float]:
        """Copy some blocks out and forget them: how many bytes, and the seconds that took."""
        count = max(1, min(self.num_blocks, len(self._cache), _PROBED_BYTES // self.bytes_per_block))
        keys: list[BlockKey] = [(0, index) for index in range(count)]
        # The first time, memory is mapped as well.
        for _ in range(2):
            self.store(keys, range(count))
            self.drop(keys)
        ended = self.poll()
        return count * self.bytes_per_block, ended[-1].seconds

    def _end(self, began: float, *, succeeded: bool) -> int:
        self._num_jobs += 1
        self._ended.append(CopyEnd(self._num_jobs, succeeded, time.perf_counter() - began))
        return self._num_jobs
