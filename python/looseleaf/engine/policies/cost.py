"""The cheapest victim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from looseleaf.engine.policies.fcfs import FcfsPolicy
from looseleaf.engine.request import Request

if TYPE_CHECKING:
    from looseleaf._core import BlockPool, KVCacheManager


class CostPolicy(FcfsPolicy):
    """Requests are served as they come, and the one gives way that loses least work per block gained.

    The price of a request is::

        (tokens computed - tokens in its leading blocks that others hold too) / blocks that only it holds

    The numerator is what would have to be computed again: leading blocks that others hold are found when it
    comes back. Blocks that only the cache would remember are counted as lost, since they are the very room
    that is being made, and all of them are gone by the time others have grown into them. So requests amid
    their prompt are cheap, whose blocks are mostly empty still, then those that have just begun a block.

    Equal prices go to the newest. The request that would finish next, by the tokens that it may still write,
    is spared wherever another one would free a block: it gives all its blocks back soon by itself.

    Args:
        manager: the sequences.
        pool: their blocks.
    """

    def __init__(self, manager: KVCacheManager, pool: BlockPool) -> None:
        self._manager = manager
        self._pool = pool

    def victim(self, running: Sequence[Request]) -> Request:
        """The lowest price."""
        ref_cnt = self._pool.snapshot().ref_cnt
        newest_first = running[::-1]
        prices = [self._price(request, ref_cnt) for request in newest_first]
        next_to_finish = min(range(len(running)), key=lambda at: (self._tokens_left(newest_first[at]), -at))
        others = prices[:next_to_finish] + prices[next_to_finish + 1 :]
        if min(others, default=math.inf) < math.inf:
            prices[next_to_finish] = math.inf
        return newest_first[prices.index(min(prices))]

    def _price(self, request: Request, ref_cnt: memoryview[int]) -> float:
        holders = [ref_cnt[block] for block in self._manager.block_ids(request.handle)]
        gained = holders.count(1)
        if not gained:
            return math.inf
        shared = next(index for index, count in enumerate([*holders, 1]) if count == 1)
        found = shared * self._manager.block_size
        return max(0, self._manager.num_computed_tokens(request.handle) - found) / gained

    def _tokens_left(self, request: Request) -> int:
        return request.max_tokens - self._manager.output_len(request.handle)
