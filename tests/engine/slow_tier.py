"""A tier whose copies take as long as a test wants, fail when it wants, and notice who disturbs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, cycle

import torch

from looseleaf.engine.swap_cost import SwapCost
from looseleaf.tiers.base import BlockKey, CopyEnd, Tier

_RUBBISH = 77


class AlwaysCopy(SwapCost):
    """Copies whatever it costs."""

    def prefers_copy(self, num_bytes: float, num_tokens: float) -> bool:
        return True


@dataclass
class _Job:
    loads: bool
    keys: list[BlockKey]
    block_ids: list[int]
    polls_left: int
    fails: bool
    # What the blocks held when they were last looked at.
    seen: torch.Tensor


class SlowTier(Tier):
    """Reads the blocks of a store at its very end, and writes rubbish to those of a load until then.

    So a source that is given to somebody else too early is stored wrongly, and a destination that is given to
    somebody else is overwritten. Either is also noticed here.

    Args:
        cache: the pool's blocks.
        num_blocks: that it has room for.
        polls: how many polls each copy takes, in turn; 0 ends with the call itself.
        failing: numbers of copies that fail, from 1.
        endless: numbers of copies of which nobody ever says that they have ended.

    Attributes:
        num_stores: begun so far.
        num_loads: begun so far.
        loaded_blocks: the blocks of the loads that go on.
    """

    name = "slow"

    def __init__(
        self,
        cache: torch.Tensor,
        num_blocks: int = 1000,
        *,
        polls: Sequence[int] = (3,),
        failing: Iterable[int] = (),
        endless: Iterable[int] = (),
    ) -> None:
        self._cache = cache
        self._num_blocks = num_blocks
        self._polls = cycle(polls)
        self._failing, self._endless = frozenset(failing), frozenset(endless)
        self._numbers = count(1)
        self._jobs: dict[int, _Job] = {}
        self.contents: dict[BlockKey, torch.Tensor] = {}
        self.num_stores = self.num_loads = 0

    @property
    def is_empty(self) -> bool:
        return not self.contents

    @property
    def loaded_blocks(self) -> set[int]:
        return {block for job in self._jobs.values() if job.loads for block in job.block_ids}

    def store(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int | None:
        coming = [key for job in self._jobs.values() if not job.loads for key in job.keys]
        assert not set(keys) & {*coming, *self.contents}, "stored twice"
        if len(self.contents) + len(coming) + len(keys) > self._num_blocks:
            return None
        self.num_stores += 1
        return self._begin(keys, block_ids, loads=False)

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        assert not self.loaded_blocks & set(block_ids), "one block for two loads"
        self.num_loads += 1
        return self._begin(keys, block_ids, loads=True)

    def poll(self, wait_seconds: float = 0.0) -> list[CopyEnd]:
        ended = []
        for number, job in list(self._jobs.items()):
            self._check(job)
            job.polls_left -= 1
            if job.polls_left < 0 and number not in self._endless:
                ended.append(CopyEnd(number, self._finish(job), 0.001))
                del self._jobs[number]
            elif job.loads:
                self._cache[job.block_ids] = _RUBBISH
                job.seen = self._cache[job.block_ids].clone()
        return ended

    def cancel(self, job: int) -> None:
        self._jobs.pop(job, None)

    def lookup(self, keys: Sequence[BlockKey]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self.contents), len(keys))

    def drop(self, keys: Sequence[BlockKey]) -> None:
        loaded = {key for job in self._jobs.values() if job.loads for key in job.keys}
        assert not loaded & set(keys), "dropped while it is loaded"
        for key in keys:
            self.contents.pop(key, None)

    def _begin(self, keys: Sequence[BlockKey], block_ids: Sequence[int], *, loads: bool) -> int:
        number, seen = next(self._numbers), self._cache[list(block_ids)].clone()
        fails = number in self._failing
        self._jobs[number] = _Job(loads, list(keys), list(block_ids), next(self._polls), fails, seen)
        return number

    def _check(self, job: _Job) -> None:
        """Nobody has written to the blocks of a copy that goes on."""
        assert torch.equal(self._cache[job.block_ids], job.seen), "blocks changed while they were copied"

    def _finish(self, job: _Job) -> bool:
        known = all(key in self.contents for key in job.keys)
        if job.loads and (job.fails or not known):
            self._cache[job.block_ids] = _RUBBISH
            return False
        for key, block in zip(job.keys, job.block_ids, strict=True):
            if job.loads:
                self._cache[block] = self.contents[key]
            elif not job.fails:
                self.contents[key] = self._cache[block].clone()
        return not job.fails
