"""Paged attention by its definition, in NumPy and float64: slow, plain, and the measure of the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from looseleaf.attention.base import AttentionBackend, CacheSpec
from looseleaf.errors import InvalidBufferError, InvalidConfigError

Float64 = npt.NDArray[np.float64]


class ReferenceBackend(AttentionBackend):
    """Keys and values as ``[num_blocks, num_layers, 2, block_size, num_kv_heads, head_size]`` in float64.

    What was never written is NaN, so that reading it shows.
    """

    name = "reference"
    kv_layout = "NHD"

    def __init__(self, spec: CacheSpec) -> None:
        super().__init__(spec)
        shape = (spec.num_blocks, spec.num_layers, 2, spec.block_size, spec.num_kv_heads, spec.head_size)
        self.cache = torch.full(shape, float("nan"), dtype=torch.float64)
        self._cache: Float64 = self.cache.numpy()

    @classmethod
    def supported_head_sizes(cls) -> range:
        return range(1, 2**16 + 1)

    @classmethod
    def supported_block_sizes(cls) -> range:
        return range(1, 2**16 + 1)

    @classmethod
    def supported_dtypes(cls) -> tuple[str, ...]:
        return ("float32", "bfloat16", "float16")

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        self._check_layer(layer)
        slots = slot_mapping.tolist()
        self._check_tensor("k", k, (len(slots), self.spec.num_kv_heads, self.spec.head_size))
        self._check_tensor("v", v, (len(slots), self.spec.num_kv_heads, self.spec.head_size))
        _check_ids("slot_mapping", slots, -1, self.spec.num_slots)
        for slot, key, value in zip(slots, _float64(k), _float64(v), strict=True):
            if slot >= 0:
                block, offset = divmod(slot, self.spec.block_size)
                self._cache[block, layer, :, offset] = key, value

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self._check_layer(layer)
        self._check_tensor("q", q, (q.shape[0], q.shape[1], self.spec.head_size))
        if q.shape[1] % self.spec.num_kv_heads:
            raise InvalidBufferError(
                f"q: found {q.shape[1]} heads, required a multiple of {self.spec.num_kv_heads}"
            )
        if sliding_window is not None and sliding_window < 1:
            raise InvalidConfigError(f"sliding_window: found {sliding_window}, required 1 or more")
        if softcap is not None and not softcap > 0:
            raise InvalidConfigError(f"softcap: found {softcap}, required a number above 0")
        queries = _float64(q)
        result = np.zeros(queries.shape)
        extra = None if sinks is None else _float64(sinks)
        ends = cu_seqlens_q.tolist()
        for row, num_keys in enumerate(seq_lens.tolist()):
            begin, end = ends[row], ends[row + 1]
            if num_keys < end - begin:
                raise InvalidBufferError(
                    f"seq_lens: found {num_keys}, required {end - begin} or more for the tokens of row {row}"
                )
            for token in range(begin, end):
                stop = num_keys - (end - token) + 1
                start = 0 if sliding_window is None else max(0, stop - sliding_window)
                keys, values = self._gather(layer, block_tables[row].tolist(), start, stop)
                result[token] = _attend(queries[token], keys, values, scale, softcap, extra)
        if out is None:
            out = torch.empty_like(q)
        return out.copy_(torch.from_numpy(result))

    def copy_blocks(self, copies: torch.Tensor) -> None:
        pairs = copies.tolist()
        _check_ids("copies", [block for pair in pairs for block in pair], 0, self.spec.num_blocks)
        for source, destination in pairs:
            self._cache[destination] = self._cache[source]

    def _gather(self, layer: int, table: list[int], start: int, stop: int) -> tuple[Float64, Float64]:
        """The keys and values from ``start`` to ``stop``, each ``[positions, kv_heads, head_size]``."""
        positions = np.arange(start, stop)
        needed = table[start // self.spec.block_size : -(-stop // self.spec.block_size)]
        _check_ids("block_tables", needed, 0, self.spec.num_blocks)
        blocks = np.array(table)[positions // self.spec.block_size]
        both = self._cache[blocks, layer, :, positions % self.spec.block_size]
        return both[:, 0], both[:, 1]

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.spec.num_layers:
            raise InvalidConfigError(f"layer: found {layer}, required 0 to {self.spec.num_layers - 1}")

    def _check_tensor(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        dtype = getattr(torch, self.spec.dtype)
        if tensor.dtype != dtype or tensor.shape != shape:
            raise InvalidBufferError(
                f"{name}: found {tensor.dtype} {tuple(tensor.shape)}, required {dtype} {shape}"
            )


def _attend(
    query: Float64,
    keys: Float64,
    values: Float64,
    scale: float,
    softcap: float | None,
    sinks: Float64 | None,
) -> Float64:
    """One token's ``[heads, head_size]`` queries on ``[n, kv_heads, head_size]`` keys and values."""
    num_kv_heads, head_size = keys.shape[1:]
    grouped = query.reshape(num_kv_heads, -1, head_size)
    scores = scale * np.einsum("hgd,nhd->hgn", grouped, keys)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if sinks is not None:
        # A key that every token sees, and that has no value.
        scores = np.concatenate([scores, sinks.reshape(num_kv_heads, -1, 1)], axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    result: Float64 = np.einsum("hgn,nhd->hgd", weights[..., : len(keys)], values)
    return result.reshape(query.shape)


def _float64(tensor: torch.Tensor) -> Float64:
    array: Float64 = tensor.detach().double().numpy()
    return array


def _check_ids(name: str, ids: list[int], first: int, end: int) -> None:
    for found in ids:
        if not first <= found < end:
            raise InvalidBufferError(f"{name}: found {found}, required {first} to {end - 1}")
