"""A server loop on asyncio: clients come and go while one step at a time computes for all of them.

The manager belongs to the event loop's thread. Only the model runs elsewhere, so that clients can come and go
meanwhile. Run it with ``python examples/asyncio_server.py``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec
from looseleaf.errors import NoFreeRowError, OutOfBlocksError

if TYPE_CHECKING:
    from looseleaf._core import StepInfo

Arrays = dict[str, Any]


class MadeUpModel:
    """Its keys and values are the tokens themselves; the next token is a sum over all that a row reads."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.cache = np.zeros((num_blocks, block_size), np.int64)

    def forward(self, step: StepInfo, arrays: Arrays) -> list[int]:
        """Copy, write, then read: the order that every model has to keep."""
        sources, destinations = arrays["copies"][: step.num_copies].T
        self.cache[destinations] = self.cache[sources]
        slots = arrays["slot_mapping"][0][: step.num_tokens]
        self.cache.flat[slots] = arrays["token_ids"][: step.num_tokens]
        return [self._sample(arrays, row) for row in arrays["sample_rows"][: step.num_samples]]

    def _sample(self, arrays: Arrays, row: int) -> int:
        blocks = self.cache[arrays["block_tables"][0][row]]
        return next_token(blocks.reshape(-1)[: arrays["seq_lens"][row]])


def next_token(text: npt.NDArray[np.int64]) -> int:
    """What the model writes after a text."""
    return int(text @ np.arange(1, len(text) + 1)) * 7919 % 50_021


class Server:
    """Streams tokens to any number of clients.

    Args:
        model: computes a prepared step and returns one token for each of its ``sample_rows``.
        num_blocks: blocks of the pool, the null block included.
        block_size: tokens per block.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: tokens of a step.
    """

    def __init__(
        self,
        model: MadeUpModel,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 64,
    ) -> None:
        self.model = model
        self.pool = BlockPool(num_blocks)
        self.budget = max_num_batched_tokens
        self.manager = KVCacheManager(
            self.pool,
            [GroupSpec([LayerSpec(kv_heads=1, head_size_k=1)], block_size)],
            max_num_seqs=max_num_seqs,
            # Nobody can outgrow the pool, so whoever runs alone always has a block for the next token.
            max_model_len=self.pool.num_usable * block_size,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self.arrays = step_arrays(self.manager, max_num_seqs, max_num_batched_tokens)
        self.manager.bind(**self.arrays)
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.streams: dict[int, asyncio.Queue[int | Exception | None]] = {}
        self.wake = asyncio.Event()
        self.stopping = False

    async def generate(self, prompt: Sequence[int], max_tokens: int) -> AsyncGenerator[int, None]:
        """Yield tokens as they are computed. A client that stops listening gives its blocks back."""
        handle = self.manager.open(prompt, max_tokens=max_tokens)
        stream = self.streams[handle] = asyncio.Queue()
        self.waiting.append(handle)
        self.wake.set()
        try:
            while (item := await stream.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            if handle in self.streams:
                self.end(handle)

    async def run(self) -> None:
        """Compute step after step; return once the server is told to stop and the last client is served."""
        try:
            while await self.has_clients():
                self.schedule()
                step = self.manager.prepare()
                try:
                    sampled = await asyncio.to_thread(self.model.forward, step, self.arrays)
                except Exception as error:
                    for handle in self.manager.fail_step(step.step):
                        self.end(handle, error)
                else:
                    self.commit(step, sampled)
        finally:
            for handle in list(self.streams):
                self.end(handle, RuntimeError("the server has stopped"))

    async def has_clients(self) -> bool:
        """Wait for work; False if there will be none."""
        while not (self.streams or self.stopping):
            self.wake.clear()
            await self.wake.wait()
        return bool(self.streams)

    def schedule(self) -> None:
        """Fill the open step: first who runs already, then newcomers."""
        outcome = self.manager.schedule_running(self.budget, chunk=self.budget)
        if outcome.blocked:
            while outcome.blocked:
                # The newest goes. Nobody was admitted in this step yet, so nobody builds on its blocks.
                victim = self.running.pop()
                self.manager.preempt(victim)
                self.waiting.appendleft(victim)
                outcome = self.manager.schedule_running(self.budget, chunk=self.budget)
            return  # a newcomer would be the next to lose its blocks
        left = self.budget - outcome.num_tokens_scheduled
        while left and self.waiting:
            handle = self.waiting[0]
            try:
                num_cached_tokens = self.manager.admit(handle)
            except (OutOfBlocksError, NoFreeRowError):
                return
            self.running.append(self.waiting.popleft())
            k = min(left, self.manager.num_tokens(handle) - num_cached_tokens)
            self.manager.append(handle, k)
            left -= k

    def commit(self, step: StepInfo, sampled: Sequence[int]) -> None:
        """Hand out what the step sampled, except to those who left while it ran."""
        by_row = {self.manager.row(handle): handle for handle in self.running}
        finished = {row.handle for row in self.manager.commit_step(step.step, sampled)}
        for row, token in zip(self.arrays["sample_rows"][: step.num_samples].tolist(), sampled, strict=True):
            if (handle := by_row.get(row)) is not None:
                self.streams[handle].put_nowait(token)
                if handle in finished:
                    self.end(handle)

    def end(self, handle: int, last: Exception | None = None) -> None:
        """Close a request in whatever state it is. What a step may still touch is free after its commit."""
        self.manager.close(handle)
        (self.running if handle in self.running else self.waiting).remove(handle)
        self.streams.pop(handle).put_nowait(last)


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[Server]:
    """Serve until the block ends and every client has what it asked for."""
    loop = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        server.stopping = True
        server.wake.set()
        await loop


def step_arrays(manager: KVCacheManager, rows: int, tokens: int) -> Arrays:
    """What ``prepare`` fills; in a server with a GPU these would lie in pinned memory."""
    return {
        "token_ids": np.zeros(tokens, np.int64),
        "positions": np.zeros(tokens, np.int64),
        "slot_mapping": [np.zeros(tokens, np.int64)],
        "block_tables": [np.zeros((rows, manager.max_blocks_per_seq), np.int32)],
        "seq_lens": np.zeros(rows, np.int32),
        "cu_seqlens_q": np.zeros(rows + 1, np.int32),
        "logits_indices": np.zeros(rows, np.int64),
        "sample_rows": np.zeros(rows, np.int32),
        "copies": np.zeros((rows, 2), np.int32),
    }


async def client(server: Server, prompt: list[int], max_tokens: int, patience: int) -> list[int]:
    """Take tokens until the text ends or patience does."""
    tokens = []
    async with aclosing(server.generate(prompt, max_tokens)) as stream:
        async for token in stream:
            tokens.append(token)
            if len(tokens) == patience:
                break
    return tokens


async def main() -> None:
    system_prompt = list(range(100, 120))
    async with running(Server(MadeUpModel(33, 4), num_blocks=33, block_size=4)) as server:
        questions = [
            client(server, [*system_prompt, n], 16, patience=5 if n % 3 == 0 else 99) for n in range(12)
        ]
        for number, answer in enumerate(await asyncio.gather(*questions)):
            print(f"{number:2}: {len(answer):2} tokens, {answer[:5]} ...")
    print(server.pool, server.manager.stats())


if __name__ == "__main__":
    asyncio.run(main())
