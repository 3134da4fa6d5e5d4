"""nano-vllm's block manager over a looseleaf pool: the same methods, the same blocks, no list to search.

To try it under nano-vllm 0.2, put it where the scheduler takes the class from, before an engine is built:
``nanovllm.engine.scheduler.BlockManager = BlockManager``.
"""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from typing import Protocol

from looseleaf import BlockHasher, BlockKeys, BlockPool


class Sequence(Protocol):
    """What a block manager reads and writes of a request."""

    block_table: list[int]
    num_cached_tokens: int
    num_scheduled_tokens: int

    @property
    def num_blocks(self) -> int:
        """Blocks that its tokens need."""

    def block(self, i: int) -> list[int]:
        """The tokens of its i-th block."""

    def __len__(self) -> int: ...


class BlockManager:
    """Hands out blocks from number 0 on, first in, first out, and finds those that hold a wanted prefix.

    A block is found by the hash of all tokens up to its end. That hash has 256 bits, so the tokens themselves
    need not be kept to compare them. Of several blocks with the same content the newest is the one found.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, reserve_null_block=False, free_order="append_all")
        self._hasher = BlockHasher(block_size)
        # Where each content was published last. A hint: what the pool says of the block decides.
        self._newest: dict[bytes, int] = {}

    @classmethod
    def compute_hash(cls, token_ids: Tokens[int], prefix: int = -1) -> int:
        """The hash of a full block, given that of the block before it; −1 if it is the first."""
        parent = None if prefix == -1 else prefix.to_bytes(32, "big")
        return int.from_bytes(BlockHasher(len(token_ids)).hash_blocks(token_ids, parent=parent)[0], "big")

    def can_allocate(self, seq: Sequence) -> int:
        """How many blocks of the sequence are cached; −1 if the pool has too few blocks for the others.

        Changes nothing. The last block counts as not cached, since the model has to compute something.
        """
        cached = self._find(self._keys(seq, seq.num_blocks - 1))
        wanted = seq.num_blocks - sum(self.pool.ref_cnt(block_id) > 0 for block_id in cached)
        return len(cached) if wanted <= self.pool.num_free else -1

    def allocate(self, seq: Sequence, num_cached_blocks: int) -> None:
        """Give a sequence all its blocks, of which ``can_allocate`` has just found that many cached."""
        blocks, _ = self.pool.admit(self._keys(seq, num_cached_blocks), seq.num_blocks - num_cached_blocks)
        seq.block_table.extend(blocks.into_ids())
        seq.num_cached_tokens = num_cached_blocks * self.block_size

    def deallocate(self, seq: Sequence) -> None:
        """Take all blocks from a sequence, the last one first."""
        self.pool.release(seq.block_table[::-1])
        seq.block_table.clear()
        seq.num_cached_tokens = 0

    def can_append(self, seq: Sequence) -> bool:
        """Whether ``may_append`` has the block that it needs, if it needs one."""
        return self.pool.num_free >= self._lacks_a_block(seq)

    def may_append(self, seq: Sequence) -> None:
        """Give the sequence a block if its newest token has none."""
        if self._lacks_a_block(seq):
            seq.block_table.extend(self.pool.allocate(1).into_ids())

    def hash_blocks(self, seq: Sequence) -> None:
        """Let others find the blocks that the scheduled tokens fill; call it when they are computed."""
        first = seq.num_cached_tokens // self.block_size
        end = (seq.num_cached_tokens + seq.num_scheduled_tokens) // self.block_size
        keys = self._keys(seq, end)
        for i in range(first, end):
            self._publish(seq.block_table[i], keys[i])

    def _publish(self, block_id: int, key: bytes) -> None:
        for older in self._find([key]):
            self.pool.retract(older)
        self.pool.publish(block_id, key)
        self._newest[key] = block_id
        if len(self._newest) > 2 * self.pool.num_blocks:
            self._newest = {
                key: found for key, found in self._newest.items() if self.pool.key_of(found) == key
            }

    def _find(self, keys: BlockKeys | list[bytes]) -> list[int]:
        """The blocks of the longest cached prefix; takes no reference."""
        found: list[int] = []
        while len(found) < len(keys):
            key = keys[len(found)]
            block_id = self._newest.get(key)
            if block_id is None or self.pool.key_of(block_id) != key:
                break
            found.append(block_id)
        return found

    def _keys(self, seq: Sequence, num_blocks: int) -> BlockKeys:
        return self._hasher.hash_blocks([token for i in range(num_blocks) for token in seq.block(i)])

    def _lacks_a_block(self, seq: Sequence) -> bool:
        return len(seq) > len(seq.block_table) * self.block_size
