"""A model ready to run packed batches over a paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from looseleaf.errors import InvalidConfigError, UnsupportedModelError
from looseleaf.models.attention_layers import trace_layers
from looseleaf.models.checks import check_layers
from looseleaf.models.paged_forward import PagedForward

if TYPE_CHECKING:
    from looseleaf.attention.base import AttentionBackend
    from looseleaf.engine.batch import StepBatch


class LoadedModel:
    """A causal language model whose keys and values live in an attention backend.

    Usable from one thread at a time. Call :meth:`bind` once before :meth:`forward`.

    Attributes:
        name: what to call the model in output and in the HTTP API.
        config: the Hugging Face configuration.
        tokenizer: with its chat template if it has one; None when the model's folder holds no tokenizer.
        layers: the attention of each layer.
        vocab_size: width of the logits.
        max_model_len: tokens of prompt and output together that the positions allow.
        eos_token_ids: ids that end a text, without repeats.
        dtype: of weights and activations, and of the keys and values that the backend receives.
    """

    def __init__(self, name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Take ``model``, whose attention is the paged one from here on.

        Raises:
            UnsupportedModelError: the paged cache would compute this model wrongly.
        """
        self.name = name
        self.config: PretrainedConfig = model.config
        self.tokenizer = tokenizer
        self.dtype: torch.dtype = model.dtype
        self.max_model_len = _max_model_len(model.config)
        self.eos_token_ids = _eos_token_ids(model, tokenizer)
        self._forward = PagedForward(model)
        self.layers, self.vocab_size = trace_layers(self._forward)
        check_layers(model.config, self.layers)
        self._backend: AttentionBackend | None = None

    @property
    def num_layers(self) -> int:
        """Layers that hold keys and values."""
        return len(self.layers)

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.layers[0].num_heads

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads of every layer."""
        return self.layers[0].num_kv_heads

    @property
    def head_size(self) -> int:
        """Width of a query, key or value head in every layer."""
        return self.layers[0].head_size

    def bind(self, backend: AttentionBackend) -> None:
        """Make ``backend`` the place of this model's keys and values, in place of one bound before.

        One padding token runs through both: it shows that every layer attends once, and changes no block.

        Raises:
            InvalidConfigError: the backend's cache has another shape or dtype than the model.
            UnsupportedModelError: not every layer attends through the paged cache.
        """
        for field, needed in (
            ("num_layers", self.num_layers),
            ("num_kv_heads", self.num_kv_heads),
            ("head_size", self.head_size),
            ("dtype", str(self.dtype).removeprefix("torch.")),
        ):
            found = getattr(backend.spec, field)
            if found != needed:
                raise InvalidConfigError(f"{field} of {self.name}'s cache must be {needed}, found {found}")
        self._run(backend, self._forward.padding_batch())
        self._backend = backend

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Run one step: write its keys and values, and return logits where they are wanted.

        Args:
            batch: tokens of any mix of prefill chunks and decodes, row after row; padding may follow.

        Returns:
            float32 ``[S, vocab_size]``, one row for each of ``batch.logits_indices``.

        Raises:
            RuntimeError: no backend is bound.
        """
        if self._backend is None:
            raise RuntimeError(f"{self.name} has no backend yet: call bind() before forward()")
        return self._run(self._backend, batch)

    def _run(self, backend: AttentionBackend, batch: StepBatch) -> torch.Tensor:
        logits, num_attended = self._forward.run(backend, batch)
        # An implementation changed behind our back computes on, without rows and without a cache.
        if num_attended != self.num_layers:
            raise UnsupportedModelError(
                f"{self.name} attended in {num_attended} of its {self.num_layers} layers; all must use the "
                "paged cache"
            )
        return logits


def _max_model_len(config: PretrainedConfig) -> int:
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:
        raise UnsupportedModelError(
            f"{text.model_type} has max_position_embeddings={limit} in its configuration; it must be positive"
        )
    return limit


def _eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Those of the generation settings, or else of the configuration, and the tokenizer's own."""
    settings = model.generation_config.eos_token_id if model.generation_config is not None else None
    if settings is None:
        settings = model.config.get_text_config(decoder=True).eos_token_id
    listed = settings if isinstance(settings, list) else [settings]
    own = tokenizer.eos_token_id if tokenizer is not None else None
    return tuple(dict.fromkeys(int(token_id) for token_id in (*listed, own) if token_id is not None))
