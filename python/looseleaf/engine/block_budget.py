"""Whether the blocks suffice, and what to say when they do not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from looseleaf.engine.request import Request

if TYPE_CHECKING:
    from looseleaf._core import BlockPool, KVCacheManager

# A request is admitted when nobody will have to give way in so many steps after it. With 3,000 requests
# queued at once for 30,720 blocks (benches/policies.py) that takes preemptions from 283 to 30, for 3,322
# steps in place of 3,319.
GROWTH_STEPS = 3


class BlockBudget:
    """Free blocks, against what sequences need now and in a moment.

    Args:
        manager: the sequences.
        pool: their blocks.
        watermark: share of the usable blocks that stays free when a request is admitted beside others.
    """

    def __init__(self, manager: KVCacheManager, pool: BlockPool, watermark: float) -> None:
        self._manager = manager
        self._pool = pool
        self._block_size = manager.block_size
        self._watermark = math.ceil(watermark * pool.num_usable)
        self._most_growth = -(-GROWTH_STEPS // self._block_size)

    def never_fits(self, num_tokens: int) -> str | None:
        """Why even an empty pool could not hold a sequence of ``num_tokens`` tokens; None if it could."""
        blocks = -(-num_tokens // self._block_size)
        usable = self._pool.num_usable
        if blocks <= usable:
            return None
        return (
            f"{num_tokens} tokens need {blocks} blocks of {self._block_size} tokens, and the whole pool has"
            f" {usable}, enough for {usable * self._block_size} tokens"
        )

    def wanted(self, request: Request) -> tuple[int, int]:
        """Blocks that a waiting request takes from the free ones, and tokens that it has to compute."""
        found = self._manager.match_prefix(request.handle)
        tokens = self._manager.num_tokens(request.handle) - found.num_cached_tokens
        return found.new_blocks + found.free_hit_blocks, tokens

    def suffices(self, handle: int, blocks: int, running: dict[int, Request]) -> bool:
        """Whether ``blocks`` may be taken to admit a sequence beside those that run.

        The watermark stays free, and what all of them will grow into in the next steps. A request that would
        run alone takes what there is.
        """
        spare = self._pool.num_free - blocks
        if not running or spare < self._watermark:
            return spare >= 0 and not running
        # Rows are looked at one by one only when it is a matter of a few blocks.
        if spare >= self._most_growth * (len(running) + 1):
            return True
        return spare >= self._growth([*running, handle])

    def no_block_left(self, handle: int) -> str:
        """Why the only running request cannot go on."""
        return (
            f"no block is free for token {self._manager.num_tokens(handle)} of the only running request,"
            f" which holds {len(self._manager.block_ids(handle, 0))} of {self._pool.num_usable}"
        )

    def stuck(self, running: int, waiting: Iterable[Request]) -> str:
        """Why nothing at all could be scheduled."""
        queue = list(waiting)
        text = f"nothing could be scheduled: {running} requests run and {len(queue)} wait"
        if not running:
            blocks, _ = self.wanted(queue[0])
            text += (
                f"; the first needs {blocks} blocks, and {self._pool.num_free} of {self._pool.num_usable} are"
                " free, which nothing that runs here will change"
            )
        return text

    def _growth(self, handles: Iterable[int]) -> int:
        """Blocks that sequences begin in the next steps if each writes a token in every one."""
        size = self._block_size
        lengths = map(self._manager.num_tokens, handles)
        return sum((length + GROWTH_STEPS - 1) // size - (length - 1) // size for length in lengths)
