"""A manager with a model that cannot be wrong by little.

A slot of its cache holds the token that was written there, and the next token is computed from all that a row
reads through its block table: one wrong slot, table entry, length or copy changes the text. ``text_after``
computes the same from the tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec

EMPTY = -7


def next_token(text: Sequence[int]) -> int:
    """What follows a text; depends on every token and its place."""
    state = 1
    for token in text:
        state = (state * 31 + token + 1) % 1_000_003
    return state % 997


def text_after(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The ``num_tokens`` tokens that follow a prompt."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(next_token(text))
    return text[len(prompt) :]


class MadeUpServer:
    """Runs sequences step by step, and has the books checked after each.

    Args:
        num_usable: blocks that can be handed out.
        block_size: tokens per block.
        rows: sequences that can run at once.
        longest: most tokens of a sequence, and of a step.
        groups: tables of each sequence; all of them must lead to the same text.
        beside: a server whose pool and cache this one shares.
        pool_options: arguments of the pool.
        options: arguments of the manager.
    """

    def __init__(
        self,
        num_usable: int,
        block_size: int = 4,
        *,
        rows: int = 8,
        longest: int = 64,
        groups: int = 1,
        beside: MadeUpServer | None = None,
        pool_options: dict[str, object] | None = None,
        **options: object,
    ) -> None:
        if beside is None:
            self.pool = BlockPool(num_usable + 1, **(pool_options or {}))  # type: ignore[arg-type]
            self.cache: npt.NDArray[np.int64] = np.full((groups, self.pool.num_blocks * block_size), EMPTY)
        else:
            self.pool, self.cache = beside.pool, beside.cache
        self.block_size = block_size
        self.manager = KVCacheManager(
            self.pool,
            [GroupSpec([LayerSpec(kv_heads=1, head_size_k=8)], block_size)] * groups,
            max_num_seqs=rows,
            max_model_len=longest,
            max_num_batched_tokens=longest,
            **options,  # type: ignore[arg-type]
        )
        table = (rows, self.manager.max_blocks_per_seq)
        self.token_ids = np.zeros(longest, np.int64)
        self.slot_mapping = [np.zeros(longest, np.int64) for _ in range(groups)]
        self.block_tables = [np.zeros(table, np.int32) for _ in range(groups)]
        self.seq_lens = np.zeros(rows, np.int32)
        self.sample_rows = np.zeros(rows, np.int32)
        self.copies = np.zeros((rows * groups, 2), np.int32)
        self.manager.bind(
            token_ids=self.token_ids,
            positions=np.zeros(longest, np.int64),
            slot_mapping=self.slot_mapping,
            block_tables=self.block_tables,
            seq_lens=self.seq_lens,
            cu_seqlens_q=np.zeros(rows + 1, np.int32),
            logits_indices=np.zeros(rows, np.int64),
            sample_rows=self.sample_rows,
            copies=self.copies,
        )

    @property
    def usage(self) -> float:
        """The share of the pool that sequences hold."""
        return self.pool.stats()["in_use"] / self.pool.num_usable

    def start(self, prompt: Sequence[int], max_tokens: int = 1, *, salt: str | None = None) -> int:
        """Open and admit a sequence."""
        handle = self.manager.open(prompt, max_tokens=max_tokens, cache_salt=salt)
        self.manager.admit(handle)
        return handle

    def prepare(self, budget: int | None = None) -> tuple[int, int]:
        """Schedule who runs and write the arrays; returns the step and how many of its rows sample."""
        budget = budget or len(self.token_ids)
        assert self.manager.schedule_running(budget, budget).blocked is None
        step = self.manager.prepare()
        return step.step, step.num_samples

    def compute(self, num_samples: int) -> list[int]:
        """Copy, write all slots that are not padding, and read; returns a token for each sampling row."""
        blocks = self.cache.reshape(len(self.cache), -1, self.block_size)
        for group, slots in enumerate(self.slot_mapping):
            # Padding pairs copy the null block onto itself.
            blocks[group][self.copies[:, 1]] = blocks[group][self.copies[:, 0]]
            self.cache[group][slots[slots >= 0]] = self.token_ids[slots >= 0]
        return [self._sample(row) for row in self.sample_rows[:num_samples]]

    def _sample(self, row: int) -> int:
        blocks = self.cache.reshape(len(self.cache), -1, self.block_size)
        texts = [
            group_blocks[tables[row]].ravel()[: self.seq_lens[row]].tolist()
            for group_blocks, tables in zip(blocks, self.block_tables, strict=True)
        ]
        assert all(text == texts[0] for text in texts)
        return next_token(texts[0])

    def step(self, budget: int | None = None) -> None:
        """One step from schedule to commit."""
        step, num_samples = self.prepare(budget)
        self.manager.commit_step(step, self.compute(num_samples))
        self.manager.check_invariants()

    def finish(self, handle: int) -> list[int]:
        """Step until a sequence is complete; returns what it wrote, and closes it."""
        while self.manager.finish_reason(handle) is None:
            self.step()
        tokens, num_output = self.manager.tokens(handle), self.manager.output_len(handle)
        self.manager.close(handle)
        self.manager.check_invariants()
        return tokens[-num_output:]

    def answer(self, prompt: Sequence[int], max_tokens: int = 1, *, salt: str | None = None) -> list[int]:
        """Serve one prompt from beginning to end."""
        return self.finish(self.start(prompt, max_tokens, salt=salt))

    def assert_empty(self) -> None:
        """Nothing is open, and every block is free."""
        self.manager.check_invariants()
        assert self.manager.num_open == 0
        assert self.pool.num_free == self.pool.num_usable
        assert sorted(self.pool.free_order()) == list(range(1, self.pool.num_blocks))
