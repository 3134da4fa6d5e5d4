"""The cache object that transformers is handed, and the attention function that goes with it.

One packed batch is one sequence to transformers: ``[1, T]`` token ids with explicit positions. Which row a
token belongs to, where its keys and values go and what it may see is in the step's arrays. They stay here,
and the attention function reaches them through its own cache object; transformers never learns of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import torch

from looseleaf.errors import UnsupportedModelError

if TYPE_CHECKING:
    from looseleaf.engine.batch import StepBatch

# Words to other parts of a model that reach its attention as well. Positions are in the keys already.
_IRRELEVANT = frozenset({"position_ids", "use_cache", "output_router_logits"})


class LayerStore(Protocol):
    """The part of :class:`looseleaf.attention.base.AttentionBackend` that a forward pass uses."""

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Write ``[T, kv_heads, head_size]`` to the slots."""

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
        """Attend with ``[T, heads, head_size]`` queries; returns the same shape."""


class PagedCache:
    """One model's cache, as transformers sees it, and the attention over it.

    Deliberately no subclass of transformers' ``Cache``: with one, masks would be sized from a sequence length
    that a packed batch does not have.
    """

    is_compileable = False

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._store: LayerStore | None = None
        self._batch: StepBatch | None = None
        self._num_attended = 0

    def begin(self, store: LayerStore, batch: StepBatch) -> None:
        """Point :meth:`attend` at ``store`` and ``batch`` for the forward that follows."""
        self._store, self._batch, self._num_attended = store, batch, 0

    def end(self) -> int:
        """Forget the step; returns how many layers attended in it, each once and in order."""
        self._store = self._batch = None
        return self._num_attended

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are explicit, so nothing may be added to them."""
        return 0

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Pass the new keys and values on: :meth:`attend` writes what a layer really attends to."""
        return key_states, value_states

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        is_causal: bool | None = None,
        **others: object,
    ) -> tuple[torch.Tensor, None]:
        """Write one layer's new keys and values to their slots, then read through the block tables.

        The parameters are the terms of attention that a backend honours; whatever else a model says must be
        known to change nothing.

        Args:
            module: the attention layer, which knows its ``layer_idx``.
            query: ``[1, heads, T, head_size]``.
            key: ``[1, kv_heads, T, head_size]``: this step's tokens, positions applied.
            value: like ``key``.
            attention_mask: must be None; what a token sees follows from positions.
            scaling: factor on the scores; None means ``head_size ** -0.5``.
            sliding_window: how many keys a token sees, itself included; None for all.
            softcap: ``c`` of ``c · tanh(score / c)``.
            s_aux: ``[heads]``, the attention sinks.

        Returns:
            ``[1, T, heads, head_size]``, and None for the weights, which are never formed.

        Raises:
            UnsupportedModelError: the model says something else, or layers attend out of order.
        """
        asked = sorted(name for name in others.keys() - _IRRELEVANT if not _is_off(others[name]))
        if asked:
            raise UnsupportedModelError(
                f"{self._model_name} passes {', '.join(map(repr, asked))} to its attention; the paged cache "
                "honours scaling, sliding_window, softcap and s_aux"
            )
        if attention_mask is not None:
            raise UnsupportedModelError(
                f"{self._model_name} builds an attention mask of its own; only causal attention, with or "
                "without a sliding window, is paged"
            )
        if is_causal is False or not getattr(module, "is_causal", True):
            raise UnsupportedModelError(
                f"{self._model_name} lets tokens see later ones; only causal attention is paged"
            )
        layer, store, batch = cast(int, module.layer_idx), self._store, self._batch
        if store is None or batch is None or layer != self._num_attended:
            raise UnsupportedModelError(
                f"{self._model_name} attends in layer {layer} when layer {self._num_attended} is due; every "
                "layer must attend once per forward, in order"
            )
        self._num_attended += 1
        store.write(layer, _tokens_first(key), _tokens_first(value), batch.slot_mapping)
        out = store.attend(
            layer,
            _tokens_first(query),
            batch.block_tables,
            batch.seq_lens,
            batch.cu_seqlens_q,
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            sliding_window=sliding_window,
            softcap=softcap,
            sinks=s_aux,
        )
        return out.unsqueeze(0), None


def _is_off(given: object) -> bool:
    return given is None or given is False


def _tokens_first(heads_first: torch.Tensor) -> torch.Tensor:
    """``[1, heads, T, head_size]`` as ``[T, heads, head_size]``."""
    return heads_first.squeeze(0).transpose(0, 1)
