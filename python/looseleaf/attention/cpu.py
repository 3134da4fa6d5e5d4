"""Paged attention on the CPU: torch tensors over the compiled kernels, nothing copied."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy.typing as npt
import torch

from looseleaf._core import CpuAttention
from looseleaf.attention.base import AttentionBackend, CacheSpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CpuBackend(AttentionBackend):
    """The kernels of the crate ``looseleaf-attention``.

    Each head of a (block, layer) has its keys transposed, ``[head_size, block_size]``, and right behind them
    its values, ``[block_size, head_size]``. Results depend neither on the number of threads nor on the other
    rows of a call.

    Args:
        spec: the cache to allocate.
        num_threads: threads of a call, the calling one included; by default one for each processor.

    Raises:
        UnsupportedError: as :meth:`check`.
        MemoryError: there is not that much address space.
    """

    name = "cpu"
    kv_layout = "HDN+HND per head"

    def __init__(self, spec: CacheSpec, *, num_threads: int | None = None) -> None:
        super().__init__(spec)
        self.cache = _allocate(spec)
        self._attention = CpuAttention(
            _array(self.cache),
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            num_threads=num_threads,
        )

    @classmethod
    def supported_head_sizes(cls) -> range:
        return range(CpuAttention.GRAIN, CpuAttention.MAX_HEAD_SIZE + 1, CpuAttention.GRAIN)

    @classmethod
    def supported_block_sizes(cls) -> range:
        return range(CpuAttention.GRAIN, 2**16 + 1, CpuAttention.GRAIN)

    @classmethod
    def supported_dtypes(cls) -> tuple[str, ...]:
        return tuple(_DTYPES)

    @property
    def num_threads(self) -> int:
        """Threads that a call may use, the calling one included."""
        return self._attention.num_threads

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        self._attention.write(layer, _array(k.contiguous()), _array(v.contiguous()), _array(slot_mapping))

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
        q = q.contiguous()
        if out is None:
            out = torch.empty_like(q)
        self._attention.attend(
            layer,
            _array(q),
            _array(block_tables),
            _array(seq_lens),
            _array(cu_seqlens_q),
            _array(out),
            scale=scale,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=None if sinks is None else _array(sinks.float().contiguous()),
        )
        return out

    def copy_blocks(self, copies: torch.Tensor) -> None:
        self._attention.copy_blocks(_array(copies.contiguous()))


def _allocate(spec: CacheSpec) -> torch.Tensor:
    """A tensor of zeros that takes memory only where it is used, in huge pages where the system has them.

    Reading through small pages costs more than the arithmetic; torch's own allocator does not ask for others.
    """
    num_bytes = spec.num_blocks * spec.bytes_per_block
    try:
        # Private: shared memory, the default, would stay shared with a forked child.
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(
            f"no room for a cache of {num_bytes} bytes: {spec.num_blocks} blocks of {spec.bytes_per_block}"
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    cache = torch.frombuffer(pages, dtype=_DTYPES[spec.dtype])
    return cache.view(spec.num_blocks, spec.num_layers, -1)


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The same memory as a NumPy array, which has no bfloat16: int16 then."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    array: npt.NDArray[Any] = tensor.numpy()
    return array
