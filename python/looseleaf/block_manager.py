"""The block manager of the textbooks, as a thin view over the real pool.

It hands out blocks first in, first out, over ids from 0, and knows neither prefixes nor copy-on-write: enough
to follow the PagedAttention paper (Kwon et al., SOSP 2023, section 4.3) with a debugger. Servers use
:class:`looseleaf.KVCacheManager`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from looseleaf._core import BlockPool
from looseleaf.errors import InvalidConfigError, OutOfBlocksError, SequenceStateError, StaleHandleError


@dataclass(frozen=True, slots=True)
class Block:
    """One block of the pool. Two views of the same block are equal."""

    block_id: int
    block_size: int
    _pool: BlockPool

    @property
    def ref_count(self) -> int:
        """How many requests hold this block now."""
        return self._pool.ref_cnt(self.block_id)


class FreeBlocks(Sequence[Block]):
    """The free blocks, next one first, read from the pool at each access."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    def __len__(self) -> int:
        return self._pool.num_free

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> list[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | list[Block]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Block]:
        return (Block(block_id, self._block_size, self._pool) for block_id in self._pool.free_order())


class BlockManager:
    """Allocates blocks of ``block_size`` tokens to requests.

    Args:
        total_blocks: blocks in the pool; ids run from 0 to ``total_blocks - 1``.
        block_size: tokens per block.

    Raises:
        InvalidConfigError: ``total_blocks`` or ``block_size`` is below 1.

    >>> manager = BlockManager(total_blocks=100, block_size=16)
    >>> manager.allocate("a", num_tokens=45)
    [0, 1, 2]
    >>> len(manager.free_blocks)
    97
    """

    def __init__(self, total_blocks: int, block_size: int = 16) -> None:
        if block_size < 1:
            raise InvalidConfigError(f"block_size must be at least 1 token, found {block_size}")
        self.block_size = block_size
        self._pool = BlockPool(total_blocks, reserve_null_block=False, free_order="append_all")
        self.free_blocks = FreeBlocks(self._pool, block_size)
        self.block_tables: dict[Hashable, list[Block]] = {}

    def allocate(self, request_id: Hashable, num_tokens: int) -> list[int]:
        """Give a new request the blocks for its prompt.

        Args:
            request_id: any hashable name that no live request bears.
            num_tokens: tokens of the prompt, at least 0.

        Returns:
            The block ids, in the order of the tokens.

        Raises:
            OutOfBlocksError: fewer blocks are free than ``ceil(num_tokens / block_size)``; nothing was taken.
            SequenceStateError: ``request_id`` is alive.
            ValueError: ``num_tokens`` is negative.
        """
        if request_id in self.block_tables:
            raise SequenceStateError(f"request {request_id!r} already has blocks; free it first")
        if num_tokens < 0:
            raise ValueError(f"num_tokens must be at least 0, found {num_tokens}")
        num_blocks = -(-num_tokens // self.block_size)
        ids = self._take(num_blocks, "Out of GPU KV Cache Memory Blocks!")
        self.block_tables[request_id] = [self._block(block_id) for block_id in ids]
        return ids

    def append_token(self, request_id: Hashable, current_seq_len: int) -> int | None:
        """Make room for one more token.

        Args:
            request_id: a live request.
            current_seq_len: its length in tokens before this one.

        Returns:
            The id of the block that was added, or None while the last block has room.

        Raises:
            OutOfBlocksError: a block is needed and none is free; the request keeps what it has.
            StaleHandleError: no such request.
        """
        table = self._table(request_id)
        if current_seq_len % self.block_size:
            return None
        (block_id,) = self._take(1, "KV Cache full during decode step!")
        table.append(self._block(block_id))
        return block_id

    def free(self, request_id: Hashable) -> None:
        """Return all blocks of a request to the end of the queue, in the order of its table.

        Raises:
            StaleHandleError: no such request.
        """
        table = self._table(request_id)
        self._pool.release([block.block_id for block in table])
        del self.block_tables[request_id]

    def _table(self, request_id: Hashable) -> list[Block]:
        try:
            return self.block_tables[request_id]
        except KeyError:
            raise StaleHandleError(f"no live request {request_id!r}") from None

    def _block(self, block_id: int) -> Block:
        return Block(block_id, self.block_size, self._pool)

    def _take(self, num_blocks: int, complaint: str) -> list[int]:
        try:
            return self._pool.allocate(num_blocks).into_ids()
        except OutOfBlocksError as error:
            error.args = (f"{complaint} {error}",)
            raise
