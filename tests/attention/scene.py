"""Rows in a cache of shuffled blocks, and their attention computed densely.

The oracle never sees a block: it has each row's keys and values in one piece and takes one softmax over all
of them, in float64. It shares no code with the backends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from looseleaf.attention import AttentionBackend, CacheSpec

Float64 = npt.NDArray[np.float64]

LAYER = 1
NUM_LAYERS = 2


@dataclass(frozen=True)
class Heads:
    """What a model fixes."""

    num_kv_heads: int = 2
    group: int = 3
    head_size: int = 64
    dtype: str = "float32"

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group


@dataclass(frozen=True)
class Row:
    """A row with ``num_keys`` keys, of which the last ``num_tokens`` are this step's."""

    num_keys: int
    num_tokens: int


class Scene:
    """A step, with the keys and values that its rows have in the cache.

    Args:
        heads: of the model.
        rows: of the step.
        block_size: tokens per block.
        num_shared_blocks: blocks that all rows begin with, as far as they fill them.
        num_padding: query tokens behind those of the rows, and table columns behind the longest row's.
        spread: standard deviation of the queries; that of the scores with the usual scale.
        seed: of everything random.
    """

    def __init__(
        self,
        heads: Heads,
        rows: list[Row],
        *,
        block_size: int = 16,
        num_shared_blocks: int = 0,
        num_padding: int = 0,
        spread: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.heads, self.rows, self.block_size = heads, rows, block_size
        self._random = np.random.default_rng(seed)
        self.scale = heads.head_size**-0.5
        num_tokens = sum(row.num_tokens for row in rows)
        self.q = self._normal(num_tokens + num_padding, heads.num_heads) * spread
        longest = max(row.num_keys for row in rows)
        self.keys = [self._normal(longest, heads.num_kv_heads) for _ in rows]
        self.values = [self._normal(longest, heads.num_kv_heads) for _ in rows]
        width = -(-longest // block_size)
        self.num_blocks = len(rows) * width + 2
        ids = self._random.permutation(self.num_blocks)[: len(rows) * width].reshape(len(rows), width)
        self.block_tables = torch.zeros(len(rows), width + num_padding, dtype=torch.int32)
        self.block_tables[:, :width] = torch.from_numpy(ids.astype(np.int32))
        for row in range(1, len(rows)):
            shared = min(num_shared_blocks, rows[0].num_keys // block_size, rows[row].num_keys // block_size)
            self.block_tables[row, :shared] = self.block_tables[0, :shared]
            self.keys[row][: shared * block_size] = self.keys[0][: shared * block_size]
            self.values[row][: shared * block_size] = self.values[0][: shared * block_size]
        self.seq_lens = torch.tensor([row.num_keys for row in rows], dtype=torch.int32)
        ends = np.cumsum([0, *(row.num_tokens for row in rows)])
        self.cu_seqlens_q = torch.from_numpy(ends.astype(np.int32))

    @property
    def spec(self) -> CacheSpec:
        heads = self.heads
        return CacheSpec(
            self.num_blocks, NUM_LAYERS, self.block_size, heads.num_kv_heads, heads.head_size, heads.dtype
        )

    def fill(self, backend: AttentionBackend) -> None:
        """Write all rows, in any order, into a cache that is NaN everywhere else."""
        backend.cache.fill_(float("nan"))
        slots = [torch.arange(row.num_keys) for row in self.rows]
        for row, positions in enumerate(slots):
            blocks = self.block_tables[row, positions // self.block_size].long()
            slots[row] = blocks * self.block_size + positions % self.block_size
        slot_mapping = torch.cat([*slots, torch.tensor([-1, -1])])
        pieces = [
            (k[: r.num_keys], v[: r.num_keys])
            for k, v, r in zip(self.keys, self.values, self.rows, strict=True)
        ]
        padding = self.keys[0].new_zeros(2, self.heads.num_kv_heads, self.heads.head_size)
        k = torch.cat([*(k for k, _ in pieces), padding])
        v = torch.cat([*(v for _, v in pieces), padding])
        order = torch.from_numpy(self._random.permutation(len(slot_mapping)))
        backend.write(LAYER, k[order], v[order], slot_mapping[order])

    def attend(self, backend: AttentionBackend, **terms: Any) -> torch.Tensor:
        terms.setdefault("scale", self.scale)
        return backend.attend(LAYER, self.q, self.block_tables, self.seq_lens, self.cu_seqlens_q, **terms)

    def expected(
        self,
        *,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> Float64:
        """The result by the definition, ``[T, heads, head_size]``."""
        out = np.zeros(self.q.shape)
        begin = 0
        for row, keys, values in zip(self.rows, self.keys, self.values, strict=True):
            end = begin + row.num_tokens
            q = self.q[begin:end].double().numpy().transpose(1, 0, 2)
            k = keys[: row.num_keys].double().numpy().repeat(self.heads.group, axis=1).transpose(1, 2, 0)
            v = values[: row.num_keys].double().numpy().repeat(self.heads.group, axis=1).transpose(1, 0, 2)
            scores = q @ k * self.scale
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            distance = np.arange(row.num_keys - row.num_tokens, row.num_keys)[:, None] - np.arange(
                row.num_keys
            )
            scores[:, distance < 0] = -np.inf
            if sliding_window is not None:
                scores[:, distance >= sliding_window] = -np.inf
            sink = np.full(self.heads.num_heads, -np.inf) if sinks is None else sinks.double().numpy()
            if row.num_tokens:
                top = np.maximum(scores.max(axis=-1), sink[:, None])
                weights = np.exp(scores - top[..., None])
                total = weights.sum(axis=-1) + np.exp(sink[:, None] - top)
                out[begin:end] = (weights / total[..., None] @ v).transpose(1, 0, 2)
            begin = end
        return out

    def _normal(self, num_tokens: int, num_heads: int) -> torch.Tensor:
        numbers = self._random.standard_normal(
            (num_tokens, num_heads, self.heads.head_size), dtype=np.float32
        )
        return torch.from_numpy(numbers).to(getattr(torch, self.heads.dtype))


def relative_error(found: torch.Tensor, expected: Float64) -> float:
    """Of the whole, in the Euclidean norm; infinite when anything is not a number."""
    error = np.linalg.norm(found.double().numpy() - expected) / max(np.linalg.norm(expected), 1e-30)
    return float(error) if np.isfinite(error) else float("inf")
