"""A transformers model whose attention is the paged one."""

from __future__ import annotations

import inspect
import itertools

import torch
from transformers import AttentionInterface, PreTrainedModel

from looseleaf.engine.batch import StepBatch
from looseleaf.errors import UnsupportedModelError
from looseleaf.models.paged_cache import LayerStore, PagedCache

# What forward calls its cache, newest first; the second up to transformers 5.19.
CACHE_KEYWORDS = ("cache", "past_key_values")

_numbers = itertools.count()


class PagedForward:
    """Run packed batches through ``model`` over any store of keys and values.

    Taking the model changes its attention implementation for good: it must not be used elsewhere afterwards.

    Attributes:
        name: the model's class.

    Raises:
        UnsupportedModelError: transformers left the model on its own attention.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.name = type(model).__name__
        self._cache = PagedCache(self.name)
        parameters = inspect.signature(model.forward).parameters
        self._keyword = next(keyword for keyword in CACHE_KEYWORDS if keyword in parameters)
        implementation = f"looseleaf_{next(_numbers)}"
        # The registry lives as long as the process. Between steps the cache object holds no store, so that is
        # all that stays of a model which nobody uses any more.
        AttentionInterface.register(implementation, self._cache.attend)
        model.set_attn_implementation(implementation)
        # transformers only warns when a model keeps its own code.
        actual = model.config.get_text_config(decoder=True)._attn_implementation
        if actual != implementation:
            raise UnsupportedModelError(
                f"{self.name} stays on its own attention ({actual}); a model must take its attention "
                "function from transformers' AttentionInterface"
            )

    def padding_batch(self) -> StepBatch:
        """Build a step of one padding token and one empty row; it leaves a cache as it is."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._model.device)

        return StepBatch(
            token_ids=zeros(1),
            positions=zeros(1),
            slot_mapping=zeros(1) - 1,
            block_tables=zeros(1, 1, dtype=torch.int32),
            seq_lens=zeros(1, dtype=torch.int32),
            cu_seqlens_q=zeros(2, dtype=torch.int32),
            logits_indices=zeros(1),
            max_query_len=0,
            max_seq_len=0,
        )

    @torch.inference_mode()
    def run(self, store: LayerStore, batch: StepBatch) -> tuple[torch.Tensor, int]:
        """Run one step.

        Args:
            store: written and read by every layer.
            batch: the step, on the model's device.

        Returns:
            Logits ``[S, vocab]`` in float32 for ``batch.logits_indices``, and how many layers attended.
        """
        self._cache.begin(store, batch)
        try:
            output = self._model(
                input_ids=batch.token_ids.unsqueeze(0),
                position_ids=batch.positions.unsqueeze(0),
                use_cache=True,
                logits_to_keep=batch.logits_indices,
                **{self._keyword: self._cache},
            )
        finally:
            num_attended = self._cache.end()
        logits: torch.Tensor = output.logits
        return logits.squeeze(0).float(), num_attended
