"""What an attention backend promises.

A backend owns the cache: keys and values of every block in every layer, in one tensor, block-major, so that
one block of all layers is one run of bytes. What lies inside a (block, layer) is the backend's own business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from looseleaf.errors import InvalidConfigError, UnsupportedError

if TYPE_CHECKING:
    import torch

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(slots=True, frozen=True)
class CacheSpec:
    """The shape of a cache whose layers are all alike.

    Attributes:
        num_blocks: blocks, the null block included.
        num_layers: layers in each block.
        block_size: tokens in each block.
        num_kv_heads: key and value heads of a layer.
        head_size: numbers in one head of a token's keys, and of its values.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``, of the cache, and of what is written to it and
            asked of it.
    """

    num_blocks: int
    num_layers: int
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str

    def __post_init__(self) -> None:
        for field in ("num_blocks", "num_layers", "block_size", "num_kv_heads", "head_size"):
            if getattr(self, field) < 1:
                raise InvalidConfigError(f"{field} must be at least 1, not {getattr(self, field)}")
        if self.dtype not in _BYTES:
            raise InvalidConfigError(f"dtype must be one of {', '.join(_BYTES)}, not {self.dtype!r}")

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: 2 · layers · block size · kv heads · head size · bytes per number."""
        numbers = 2 * self.num_layers * self.block_size * self.num_kv_heads * self.head_size
        return numbers * _BYTES[self.dtype]

    @property
    def num_slots(self) -> int:
        """Slots for tokens; the slot of a token is block · block size + offset."""
        return self.num_blocks * self.block_size


class AttentionBackend(ABC):
    """Writes keys and values to slots, and attends to them through block tables.

    Within a layer all writes of a step come before its reads, and all copies of a step before its writes; the
    caller sees to the order. Calls that are refused change nothing. Tensors are on the backend's device and
    stay the caller's; a backend keeps none of them, and changes none but its cache and ``out``.

    Args:
        spec: the cache to allocate. It need not be cleared: what no row owns is never looked at.

    Raises:
        UnsupportedError: as :meth:`check`.

    Attributes:
        spec: as given.
        cache: ``[num_blocks, …]``, the one tensor with all keys and values.
    """

    name: ClassVar[str]
    """What :func:`looseleaf.attention.create_backend` knows it by."""

    kv_layout: ClassVar[str]
    """How a (block, layer) is laid out: N block size, H heads, D head size, from the outermost inwards."""

    preferred_block_size: ClassVar[int] = 16
    """Tokens in a block when the user has no wish of their own."""

    cache: torch.Tensor

    def __init__(self, spec: CacheSpec) -> None:
        self.check(spec)
        self.spec = spec

    @classmethod
    @abstractmethod
    def supported_head_sizes(cls) -> range:
        """The head sizes this backend does."""

    @classmethod
    @abstractmethod
    def supported_block_sizes(cls) -> range:
        """The block sizes this backend does."""

    @classmethod
    @abstractmethod
    def supported_dtypes(cls) -> tuple[str, ...]:
        """The dtypes of a cache this backend does."""

    @classmethod
    def check(cls, spec: CacheSpec) -> None:
        """Refuse a cache that this backend cannot do, before anything is allocated.

        Raises:
            UnsupportedError: names the field, its value, and what is supported.
        """
        for field, allowed in (
            ("head_size", cls.supported_head_sizes()),
            ("block_size", cls.supported_block_sizes()),
        ):
            if getattr(spec, field) not in allowed:
                cls._refuse(field, getattr(spec, field), _in_words(allowed))
        if spec.dtype not in cls.supported_dtypes():
            cls._refuse("dtype", spec.dtype, ", ".join(cls.supported_dtypes()))

    @classmethod
    def _refuse(cls, field: str, value: object, supported: str) -> None:
        raise UnsupportedError(
            f"{field} {value} is not supported by the {cls.name} attention backend; supported: {supported}"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return self.cache.nbytes

    @abstractmethod
    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Store the keys and values of T tokens.

        Nothing outside the named slots changes. When a slot occurs twice, the later token stays.

        Args:
            layer: index of the layer.
            k: ``[T, num_kv_heads, head_size]``, of the cache's dtype.
            v: as ``k``.
            slot_mapping: int64 ``[T]``, block · block size + offset; tokens with −1 are ignored.

        Raises:
            InvalidBufferError: an argument has the wrong dtype or shape, or a slot is outside the cache.
            InvalidConfigError: there is no such layer.
        """

    @abstractmethod
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
        """Causal attention of R rows: any mix of whole prompts, pieces of prompts and single tokens.

        Token j of row r, of its n, sits at position p = ``seq_lens[r]`` − n + j and sees the keys at
        positions 0 to p, of those the last ``sliding_window`` only. Its score with the key at i is
        sᵢ = ``scale`` · q·kᵢ, or ``softcap`` · tanh(sᵢ / ``softcap``). Its output is the sum of exp(sᵢ) vᵢ,
        divided by that of exp(sᵢ), to which exp(sink) is added if there are sinks. Query head h reads
        key/value head h // (heads // num_kv_heads).

        Args:
            layer: index of the layer.
            q: ``[T, heads, head_size]``, of the cache's dtype; heads is a multiple of ``num_kv_heads``.
            block_tables: int32 ``[R, B]``: the block of each ``block_size`` positions of each row. Only
                entries up to a row's last key, and with a window from its first visible one, are read.
            seq_lens: int32 ``[R]``, keys of each row, those of this step included.
            cu_seqlens_q: int32 ``[R + 1]``, from 0: row r has the tokens ``cu_seqlens_q[r]`` to
                ``cu_seqlens_q[r + 1]``, none for a row that is not in the step.
            scale: factor on q·k.
            sliding_window: most keys a token sees, itself included; None for all.
            softcap: bound on the scores; None for none.
            sinks: ``[heads]``, one logit more for each head, in the denominator only; None for none.
            out: where to put the result, shaped as ``q``, contiguous, and no memory of an argument.

        Returns:
            ``[T, heads, head_size]``, ``out`` if given. Tokens past ``cu_seqlens_q[R]`` are padding: zeros.

        Raises:
            InvalidBufferError: an argument has the wrong dtype or shape, a needed block id is outside the
                cache, or a row has fewer keys than tokens, or more than its table has blocks for.
            InvalidConfigError: there is no such layer, or a term is out of range.
        """

    @abstractmethod
    def copy_blocks(self, copies: torch.Tensor) -> None:
        """Copy whole blocks, all layers, one after the other.

        Args:
            copies: int32 ``[n, 2]``, from and to.

        Raises:
            InvalidBufferError: wrong dtype or shape, or a block outside the cache.
        """


def _in_words(sizes: range) -> str:
    if sizes.step == 1:
        return f"{sizes[0]} to {sizes[-1]}"
    return f"multiples of {sizes.step} from {sizes[0]} to {sizes[-1]}"
