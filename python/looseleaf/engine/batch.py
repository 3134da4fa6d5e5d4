"""The arrays of one step: filled by the manager in Rust, read by the model, allocated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from looseleaf.engine.config import StepLimits

if TYPE_CHECKING:
    from looseleaf._core import KVCacheManager, StepInfo


@dataclass(slots=True, frozen=True)
class StepBatch:
    """One step as the model sees it: T tokens of R rows, S of which want logits.

    Rows are the manager's row slots. A row that is not in this step has length 0 and no tokens.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T], each token's position in its own sequence.
        slot_mapping: int64 [T], block · block_size + offset.
        block_tables: int32 [R, B], the null block where a row has no block.
        seq_lens: int32 [R], tokens of the row in the cache once this step is written.
        cu_seqlens_q: int32 [R + 1], prefix sum of the rows' token counts in this step.
        logits_indices: int64 [S], indices into T.
        max_query_len: most tokens of a row in this step.
        max_seq_len: largest of ``seq_lens``.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    cu_seqlens_q: torch.Tensor
    logits_indices: torch.Tensor
    max_query_len: int
    max_seq_len: int


class StepBuffers:
    """Arrays of the largest step there can be, at addresses that never change.

    Args:
        limits: how many rows and tokens a step may have, and how long a sequence.
        block_size: tokens per block.
    """

    def __init__(self, limits: StepLimits, block_size: int) -> None:
        tokens, rows = limits.max_num_batched_tokens, limits.max_num_seqs
        blocks = -(-limits.max_model_len // block_size)
        self._token_ids = np.zeros(tokens, np.int64)
        self._positions = np.zeros(tokens, np.int64)
        self._slot_mapping = np.full(tokens, -1, np.int64)
        self._block_tables = np.zeros((rows, blocks), np.int32)
        self._seq_lens = np.zeros(rows, np.int32)
        self._cu_seqlens_q = np.zeros(rows + 1, np.int32)
        self._logits_indices = np.zeros(rows, np.int64)
        self._sample_rows = np.zeros(rows, np.int32)
        # Copy-on-write: a row writes at most one shared block in a step.
        self._copies = np.zeros((rows, 2), np.int32)
        self._views = StepBatch(
            token_ids=torch.from_numpy(self._token_ids),
            positions=torch.from_numpy(self._positions),
            slot_mapping=torch.from_numpy(self._slot_mapping),
            block_tables=torch.from_numpy(self._block_tables),
            seq_lens=torch.from_numpy(self._seq_lens),
            cu_seqlens_q=torch.from_numpy(self._cu_seqlens_q),
            logits_indices=torch.from_numpy(self._logits_indices),
            max_query_len=tokens,
            max_seq_len=limits.max_model_len,
        )

    def bind(self, manager: KVCacheManager) -> None:
        """Make these the arrays that ``manager.prepare()`` fills."""
        manager.bind(
            token_ids=self._token_ids,
            positions=self._positions,
            slot_mapping=[self._slot_mapping],
            block_tables=[self._block_tables],
            seq_lens=self._seq_lens,
            cu_seqlens_q=self._cu_seqlens_q,
            logits_indices=self._logits_indices,
            sample_rows=self._sample_rows,
            copies=self._copies,
        )

    def batch(self, step: StepInfo) -> StepBatch:
        """The part of the arrays that a prepared step fills, as tensors over the same memory."""
        whole, rows = self._views, step.num_rows
        return StepBatch(
            token_ids=whole.token_ids[: step.num_tokens],
            positions=whole.positions[: step.num_tokens],
            slot_mapping=whole.slot_mapping[: step.num_tokens],
            block_tables=whole.block_tables[:rows],
            seq_lens=whole.seq_lens[:rows],
            cu_seqlens_q=whole.cu_seqlens_q[: rows + 1],
            logits_indices=whole.logits_indices[: step.num_samples],
            max_query_len=step.max_query_len,
            max_seq_len=step.max_seq_len,
        )

    def copies(self, step: StepInfo) -> torch.Tensor:
        """int32 [n, 2]: block ids, source and destination, to copy before anything of the step is written."""
        return torch.from_numpy(self._copies[: step.num_copies])

    def sample_rows(self, step: StepInfo) -> npt.NDArray[np.int32]:
        """int32 [S]: the rows that want a token, in the order of the logits."""
        return self._sample_rows[: step.num_samples]

    def lengths(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """int32 [S]: tokens that each of ``rows`` has before it gets its next one."""
        return self._seq_lens[rows]
