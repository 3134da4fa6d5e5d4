"""What a model's attention layers are, learned by running one token through them.

Configurations spell the same things in many ways and leave some out (GPT-2's names no ``head_dim``); what
reaches the attention function is what the cache has to hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from looseleaf.errors import UnsupportedModelError
from looseleaf.models.paged_forward import PagedForward


@dataclass(slots=True, frozen=True)
class LayerAttention:
    """One layer's attention as the model calls it.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_size: width of a query, key or value head.
        scale: factor on the scores.
        sliding_window: keys a token sees, itself included; None for all.
        softcap: ``c`` of ``c · tanh(score / c)``; None for none.
        has_sinks: whether each head has an extra logit in the softmax's denominator.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int | None
    softcap: float | None
    has_sinks: bool


class LayerRecorder:
    """A store that keeps no keys and remembers how each layer asked."""

    def __init__(self) -> None:
        self.layers: list[LayerAttention] = []
        self._k_shape = self._v_shape = torch.Size()

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Remember the shapes that :meth:`attend` reports."""
        self._k_shape, self._v_shape = k.shape, v.shape

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
    ) -> torch.Tensor:
        """Record the layer; returns zeros."""
        num_heads, head_size = q.shape[1:]
        num_kv_heads = self._k_shape[1]
        if self._k_shape != self._v_shape or self._k_shape[2] != head_size or num_heads % num_kv_heads:
            raise UnsupportedModelError(
                f"layer {layer} attends with queries, keys and values of {list(q.shape[1:])}, "
                f"{list(self._k_shape[1:])} and {list(self._v_shape[1:])} [heads, head size]; they must have "
                "one head size, keys and values as many heads, and the queries a multiple of those"
            )
        self.layers.append(
            LayerAttention(
                num_heads,
                num_kv_heads,
                head_size,
                scale,
                sliding_window,
                softcap,
                has_sinks=sinks is not None,
            )
        )
        return torch.zeros_like(q)


def trace_layers(forward: PagedForward) -> tuple[tuple[LayerAttention, ...], int]:
    """Run one padding token through a model.

    Returns:
        Its layers in order, and the width of its logits.

    Raises:
        UnsupportedModelError: the model asks its attention or its cache for something that is not paged.
    """
    recorder = LayerRecorder()
    try:
        logits, _ = forward.run(recorder, forward.padding_batch())
    except UnsupportedModelError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        # What models with a state, or with cross-attention, raise on a cache of plain keys and values.
        raise UnsupportedModelError(
            f"{forward.name} needs more of its cache than keys and values ({error}); only plain attention is "
            "paged"
        ) from error
    return tuple(recorder.layers), logits.shape[-1]
