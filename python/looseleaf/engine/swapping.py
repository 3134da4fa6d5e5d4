"""Blocks of preempted requests, kept in a tier until the requests come back.

A preempted request's blocks are copied out when that takes less time than to compute what it would lose, and
the tier has room; otherwise it computes again. What it would lose is less than it has where others found much
of theirs in the prefix cache when they came back. Full blocks are stored by their hash, so that what several
requests have in common is stored and loaded once; the rest under the request's own name.

While a copy goes on, nobody is given its blocks: those that are read have a reference of ours, and those that
are written belong to the sequence that waits for them, or to nobody (see ``KVCacheManager.finish_load``). A
copy that fails, or of which nobody says in time that it has ended, means that the request computes.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from looseleaf.engine.request import Request
from looseleaf.engine.stats import EngineStats
from looseleaf.engine.swap_cost import SwapCost
from looseleaf.tiers.base import BlockKey, Tier

if TYPE_CHECKING:
    from looseleaf._core import BlockPool, KVCacheManager

logger = logging.getLogger(__name__)

# How long a step that can do nothing but wait for copies waits for one.
_WAIT_SECONDS = 0.01


@dataclass(slots=True, frozen=True)
class _Copy:
    """A copy that goes on.

    Attributes:
        request: whose blocks they are.
        keys: of the blocks.
        block_ids: in the pool.
        num_tokens: that a load brings; None for a store.
        deadline: on the clock.
    """

    request: Request
    keys: Sequence[BlockKey]
    block_ids: Sequence[int]
    num_tokens: int | None
    deadline: float


@dataclass(slots=True, frozen=True)
class _Stored:
    """What a request without blocks has in the tier: the keys of its leading blocks, and their tokens."""

    keys: Sequence[BlockKey]
    num_tokens: int


class Swapping:
    """Moves requests between the pool and a tier.

    Args:
        manager: the sequences.
        pool: their blocks.
        tier: where blocks go; without one every call does nothing.
        bytes_per_block: bytes of one block over all layers.
        stats: where copies are counted.
        clock: seconds that never go back.

    Attributes:
        cost: decides between copying and computing.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        pool: BlockPool,
        tier: Tier | None = None,
        *,
        bytes_per_block: int = 0,
        stats: EngineStats | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cost = SwapCost()
        self._manager = manager
        self._pool = pool
        self._tier = tier
        self._bytes_per_block = bytes_per_block
        self._stats = EngineStats() if stats is None else stats
        self._clock = clock
        self._copies: dict[int, _Copy] = {}
        self._stored: dict[int, _Stored] = {}
        # How many requests and copies need a key to stay.
        self._claims: Counter[BlockKey] = Counter()
        self._being_stored: set[BlockKey] = set()
        self._being_loaded: set[BlockKey] = set()
        self._loading: set[int] = set()
        self._landed: dict[int, Request] = {}

    @property
    def busy(self) -> bool:
        """Whether copies go on."""
        return bool(self._copies)

    @property
    def num_loading(self) -> int:
        """Requests with a row that wait for their blocks to be filled."""
        return len(self._loading)

    def is_loading(self, request: Request) -> bool:
        """Whether the request has a row and waits for its blocks to be filled."""
        return request.handle in self._loading

    def blocks_to_come(self) -> int:
        """Blocks that become free when the copies that go on have ended."""
        if not self._copies:
            return 0
        ref_cnt = self._pool.snapshot().ref_cnt
        owned = (copy for copy in self._copies.values() if not self.is_loading(copy.request))
        return sum(ref_cnt[block] == 1 for copy in owned for block in copy.block_ids)

    def store(self, request: Request) -> None:
        """Copy the blocks of a request that is about to lose them, if that is the better way."""
        tier = self._tier
        if tier is None:
            return
        stored, blocks = self._content(request.handle)
        new = [
            at
            for at, key in enumerate(stored.keys)
            if key not in self._being_stored and not tier.lookup([key])
        ]
        lost = 1 - self._share_found()
        num_bytes = (len(new) + lost * len(blocks)) * self._bytes_per_block
        if not blocks or not self.cost.prefers_copy(num_bytes, lost * stored.num_tokens):
            return
        if new:
            keys, block_ids = [stored.keys[at] for at in new], [blocks[at] for at in new]
            if (job := self._begun(tier.store, keys, block_ids)) is None:
                self._stats.num_swap_fallbacks += 1
                return
            self._pool.share(block_ids)
            self._being_stored.update(keys)
            self._begin(job, _Copy(request, keys, block_ids, None, self._clock() + tier.deadline_seconds))
        self._claims.update(stored.keys)
        self._stored[request.handle] = stored
        self._poll()

    def supply(self, handle: int, num_cached_tokens: int) -> int | None:
        """Tokens of a waiting request that the tier has, right after those that are cached.

        Returns:
            how many; None while a copy goes on that will bring more.
        """
        tier = self._tier
        if tier is None or (tier.is_empty and not self._copies):
            return 0
        first = num_cached_tokens // self._manager.block_size
        keys, num_tokens = self._keys(handle, first)
        if not keys:
            return 0
        if keys[0] in self._being_loaded or self._manager.is_loading(handle):
            return None
        if handle in self._stored and not self._being_stored.isdisjoint(keys):
            return None
        found = (first + tier.lookup(keys)) * self._manager.block_size
        last = self._manager.num_tokens(handle) - 1
        return max(0, min(found, num_tokens, last) - num_cached_tokens)

    def load(self, request: Request, num_cached_tokens: int, num_tokens: int) -> bool:
        """Fill the blocks of a request that was admitted with ``num_tokens`` tokens from outside.

        Returns:
            Whether that has ended; if not, :meth:`landed` will have the request.
        """
        tier, handle, size = self._tier, request.handle, self._manager.block_size
        assert tier is not None, "tokens were supplied"
        first = num_cached_tokens // size
        end = -(-(num_cached_tokens + num_tokens) // size)
        keys, blocks = self._keys(handle, first)[0][: end - first], self._manager.block_ids(handle)[first:end]
        copy = _Copy(request, keys, blocks, num_tokens, self._clock() + tier.deadline_seconds)
        self._loading.add(handle)
        self._being_loaded.update(keys)
        if (job := self._begun(tier.load, keys, blocks)) is None:
            self._claims.update(keys)
            self._end(copy, succeeded=False)
        else:
            self._begin(job, copy)
            self._poll()
        return self._landed.pop(handle, None) is not None

    def landed(self) -> list[Request]:
        """The requests whose blocks have been filled since the last call, or will not be."""
        if self._copies:
            self._poll()
        landed = list(self._landed.values())
        self._landed.clear()
        return landed

    def wait(self) -> None:
        """Wait a moment for a copy to end."""
        self._poll(_WAIT_SECONDS)

    def forget(self, request: Request) -> None:
        """Give up what is kept for a request that ends, or that has its blocks again."""
        self._landed.pop(request.handle, None)
        self._loading.discard(request.handle)
        if stored := self._stored.pop(request.handle, None):
            self._let_go(stored.keys)

    def clear(self) -> None:
        """Forget all that was stored: those that wait compute it again."""
        for stored in self._stored.values():
            self._let_go(stored.keys)
        self._stored.clear()

    def _content(self, handle: int) -> tuple[_Stored, list[int]]:
        """What a running sequence has computed, and the blocks that hold it."""
        size = self._manager.block_size
        num_tokens = self._manager.num_computed_tokens(handle)
        blocks = self._manager.block_ids(handle)[: -(-num_tokens // size)]
        # A block that this step was to copy first has nothing in it yet.
        unwritten = {destination for _, destination in self._manager.copies()}
        end = next((at for at, block in enumerate(blocks) if block in unwritten), len(blocks))
        num_tokens, blocks = min(num_tokens, end * size), blocks[:end]
        keys: list[BlockKey] = [*self._manager.block_hashes(handle)[: num_tokens // size]]
        keys += [(handle, index) for index in range(len(keys), len(blocks))]
        return _Stored(keys, num_tokens), blocks

    def _share_found(self) -> float:
        """How much of what preempted requests lost they have found in the prefix cache so far, 0 to 1."""
        counted = self._manager.stats()
        return counted["preempted_hits"] / max(1, counted["preempted_queries"])

    def _keys(self, handle: int, first: int) -> tuple[Sequence[BlockKey], int]:
        """Keys of a sequence's blocks from ``first`` on under which the tier may have them, and their end."""
        if stored := self._stored.get(handle):
            return stored.keys[first:], stored.num_tokens
        return self._manager.block_hashes(handle, first), self._manager.num_tokens(handle)

    def _begun(
        self,
        begin: Callable[[Sequence[BlockKey], Sequence[int]], int | None],
        keys: Sequence[BlockKey],
        block_ids: Sequence[int],
    ) -> int | None:
        """The number of a copy; None if the tier has no room, or is broken."""
        try:
            return begin(keys, block_ids)
        except Exception as error:  # whatever a connector may raise, requests go on without it
            logger.warning("A copy of %d blocks could not begin: %r", len(block_ids), error)
            return None

    def _begin(self, job: int, copy: _Copy) -> None:
        self._copies[job] = copy
        self._claims.update(copy.keys)

    def _poll(self, wait_seconds: float = 0.0) -> None:
        tier = self._tier
        assert tier is not None, "copies go on"
        now = self._clock()
        try:
            all_ended = tier.poll(wait_seconds)
        except Exception as error:  # as in _begun; nobody will say any more what has ended
            logger.warning("%d copies are given up: %r", len(self._copies), error)
            all_ended, now = [], math.inf
        for ended in all_ended:
            # One that was given up is not there any more.
            if copy := self._copies.pop(ended.job, None):
                self._end(copy, succeeded=ended.succeeded, seconds=ended.seconds)
        for job in [job for job, copy in self._copies.items() if copy.deadline <= now]:
            tier.cancel(job)
            self._end(self._copies.pop(job), succeeded=False)

    def _end(self, copy: _Copy, *, succeeded: bool, seconds: float = 0.0) -> None:
        stats, num_bytes = self._stats, len(copy.block_ids) * self._bytes_per_block
        if succeeded:
            self.cost.count_copy(num_bytes, seconds)
        else:
            stats.num_swap_fallbacks += 1
            logger.warning("A copy of %d blocks failed: what was in them is computed", len(copy.block_ids))
        if copy.num_tokens is None:
            self._being_stored.difference_update(copy.keys)
            self._pool.release(copy.block_ids[::-1])
            stats.num_swaps_out += succeeded
            stats.num_bytes_swapped_out += succeeded * num_bytes
        else:
            self._being_loaded.difference_update(copy.keys)
            self._end_load(copy, copy.num_tokens if succeeded else 0)
            stats.num_swaps_in += succeeded
            stats.num_bytes_swapped_in += succeeded * num_bytes
        self._let_go(copy.keys)

    def _end_load(self, copy: _Copy, num_tokens: int) -> None:
        request = copy.request
        if self._manager.finish_load(request.handle, num_tokens):
            self.forget(request)
            request.num_cached_tokens = self._manager.num_cached_tokens(request.handle)
            self._landed[request.handle] = request

    def _let_go(self, keys: Iterable[BlockKey]) -> None:
        assert self._tier is not None, "keys were stored"
        self._claims.subtract(keys)
        unclaimed = [key for key in keys if self._claims[key] <= 0]
        for key in unclaimed:
            del self._claims[key]
        self._tier.drop(unclaimed)
