"""A greedy engine of the least parts: block tables in lists, ragged steps, an argmax where a row is done."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from looseleaf.attention import CacheSpec
from looseleaf.engine.batch import StepBatch
from looseleaf.models import LoadedModel


def cache_spec(model: LoadedModel, num_blocks: int, block_size: int) -> CacheSpec:
    """The cache that ``model`` needs."""
    return CacheSpec(
        num_blocks=num_blocks,
        num_layers=model.num_layers,
        block_size=block_size,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        dtype=str(model.dtype).removeprefix("torch."),
    )


@dataclass
class Row:
    """A sequence: its tokens, how many of them are in the cache, and the blocks they are in."""

    tokens: list[int]
    num_prompt: int
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt :]


def pack(rows: Sequence[Row], counts: Sequence[int], block_size: int, num_padding: int) -> StepBatch:
    """The step that computes the next ``counts[i]`` tokens of each row, and some padding."""
    tokens, positions, slots, lengths, wanted, ends = [], [], [], [], [], [0]
    tables = torch.zeros((len(rows), max(len(row.blocks) for row in rows)), dtype=torch.int32)
    for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
        at = range(row.num_computed, row.num_computed + count)
        tokens += row.tokens[at.start : at.stop]
        positions += at
        slots += [row.blocks[p // block_size] * block_size + p % block_size for p in at]
        tables[index, : len(row.blocks)] = torch.tensor(row.blocks, dtype=torch.int32)
        lengths.append(at.stop if count else 0)
        ends.append(len(tokens))
        if count and at.stop == len(row.tokens):
            wanted.append(len(tokens) - 1)
    return StepBatch(
        token_ids=torch.tensor(tokens + [0] * num_padding),
        positions=torch.tensor(positions + [0] * num_padding),
        slot_mapping=torch.tensor(slots + [-1] * num_padding),
        block_tables=tables,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        cu_seqlens_q=torch.tensor(ends, dtype=torch.int32),
        logits_indices=torch.tensor(wanted, dtype=torch.int64),
        max_query_len=max(counts),
        max_seq_len=max(lengths),
    )


@dataclass
class PagedGenerator:
    """Runs prompts through a bound model.

    Row i arrives at step i, so that prefill chunks and decodes of other rows share steps. Blocks are handed
    out in a shuffled order: a table that is read as if its blocks lay side by side gives nonsense.
    """

    model: LoadedModel
    num_blocks: int
    block_size: int
    chunk: int = 48
    num_padding: int = 3

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The ``max_tokens`` likeliest tokens after each prompt."""
        free = list(range(1, self.num_blocks))
        random.Random(0).shuffle(free)
        rows = [Row(list(prompt), len(prompt)) for prompt in prompts]
        step = 0
        while any(len(row.output) < max_tokens for row in rows):
            counts = [
                min(len(row.tokens) - row.num_computed, self.chunk)
                if arrival <= step and len(row.output) < max_tokens
                else 0
                for arrival, row in enumerate(rows)
            ]
            for row, count in zip(rows, counts, strict=True):
                while len(row.blocks) * self.block_size < row.num_computed + count:
                    row.blocks.append(free.pop())
            sampled = iter(self.model.forward(pack(rows, counts, self.block_size, self.num_padding)))
            for row, count in zip(rows, counts, strict=True):
                row.num_computed += count
                if count and row.num_computed == len(row.tokens):
                    row.tokens.append(int(next(sampled).argmax()))
            step += 1
        return [row.output for row in rows]
