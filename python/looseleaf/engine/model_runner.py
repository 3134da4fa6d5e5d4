"""One step on the device: copies, forward pass, tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from looseleaf.engine.batch import StepBatch, StepBuffers
from looseleaf.engine.sampler import Sampled, Sampler

if TYPE_CHECKING:
    from looseleaf._core import StepInfo


class CausalModel(Protocol):
    """What the engine asks of a model; :class:`looseleaf.models.LoadedModel` is one."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together that the positions allow."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""

    def forward(self, batch: StepBatch) -> torch.Tensor:
        """Write the step's keys and values, read through the block tables, and return logits.

        Returns:
            float32 [S, vocab_size], one row for each of ``batch.logits_indices``.
        """


class BlockStore(Protocol):
    """Where the contents of blocks are; an attention backend is one."""

    def copy_blocks(self, copies: torch.Tensor) -> None:
        """Copy whole blocks over all layers.

        Args:
            copies: int32 [n, 2], source and destination.
        """


class ModelRunner:
    """Computes prepared steps.

    Args:
        model: reads and writes ``store``.
        store: the contents of the pool's blocks.
        buffers: the arrays that the manager fills.
        sampler: knows how each row samples.
    """

    def __init__(self, model: CausalModel, store: BlockStore, buffers: StepBuffers, sampler: Sampler) -> None:
        self._model = model
        self._store = store
        self._buffers = buffers
        self._sampler = sampler

    @torch.inference_mode()
    def logits(self, step: StepInfo) -> torch.Tensor:
        """Compute a step; returns float32 [S, vocab_size], the logits of each row that reached its end."""
        if step.num_copies:
            self._store.copy_blocks(self._buffers.copies(step))
        return self._model.forward(self._buffers.batch(step))

    @torch.inference_mode()
    def run(self, step: StepInfo) -> Sampled:
        """Compute a step; returns one token for each row that reached its end."""
        logits = self.logits(step)
        if not step.num_samples:
            return Sampled(np.zeros(0, np.int32), np.zeros(0, np.bool_))
        rows = self._buffers.sample_rows(step)
        return self._sampler.sample(logits, rows, self._buffers.lengths(rows))
