"""Rows about the bare pool: blocks taken and given back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from comparison.alternation import Comparison
from vllm.v1.core.block_pool import BlockPool as VllmPool

from looseleaf import BlockPool

NUM_BLOCKS = 30_720
BATCH = 57


def alloc_release() -> Comparison:
    """57 blocks taken and given back.

    Ours writes their ids into the caller's int32 row and releases that row. vLLM returns its block objects
    and frees them; it is not asked for ids, which would cost it more.
    """
    ours, peer = _pools()
    row = np.empty(BATCH, np.int32)

    def ours_side(n: int) -> Callable[[], None]:
        def perform() -> None:
            for _ in range(n):
                ours.allocate_into(row)
                ours.release(row)

        return perform

    def peer_side(n: int) -> Callable[[], None]:
        def perform() -> None:
            for _ in range(n):
                blocks = peer.get_new_blocks(BATCH)
                peer.free_blocks(blocks)

        return perform

    return Comparison(ours_side, peer_side)


def alloc_release_list() -> Comparison:
    """57 blocks taken, their ids read into a Python list, and given back tail first.

    Ours is an owning ``BlockList``. vLLM's blocks are a Python list of objects already, of which the ids are
    taken as its ``KVCacheBlocks.get_block_ids`` does it.
    """
    ours, peer = _pools()

    def ours_side(n: int) -> Callable[[], None]:
        def perform() -> None:
            for _ in range(n):
                blocks = ours.allocate(BATCH)
                _ = blocks.ids
                blocks.release()

        return perform

    def peer_side(n: int) -> Callable[[], None]:
        def perform() -> None:
            for _ in range(n):
                blocks = peer.get_new_blocks(BATCH)
                _ = [block.block_id for block in blocks]
                peer.free_blocks(reversed(blocks))

        return perform

    return Comparison(ours_side, peer_side)


def _pools() -> tuple[BlockPool, VllmPool]:
    return BlockPool(NUM_BLOCKS), VllmPool(NUM_BLOCKS, enable_caching=True, hash_block_size=16)
