"""From logits to tokens, for all rows of a step at once.

The order of the filters is vLLM's: temperature, min-p, top-k, then top-p over what top-k left. A row's result
depends on its logits, its parameters and its position alone, never on the other rows: which numbers are drawn
(:mod:`looseleaf.engine.random_stream`) and which of the ways below is taken are both decided by the row
itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from looseleaf.engine.random_stream import uniform
from looseleaf.engine.sampling_params import SamplingParams

# Likeliest tokens looked at before the whole vocabulary is sorted for top-k or top-p.
_NUM_CANDIDATES = 1024


@dataclass(slots=True, frozen=True)
class Sampled:
    """Tokens of one step.

    Attributes:
        token_ids: int32 [S].
        broken: bool [S], rows whose logits have no finite maximum; their token means nothing.
    """

    token_ids: npt.NDArray[np.int32]
    broken: npt.NDArray[np.bool_]


class Sampler:
    """Parameters of every row slot, set when a request takes the slot, and the choice of tokens.

    Args:
        max_num_seqs: row slots.
        vocab_size: width of the logits.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._num_candidates = min(_NUM_CANDIDATES, vocab_size)
        self._temperature = np.zeros(max_num_seqs, np.float32)
        self._top_k = np.zeros(max_num_seqs, np.int64)
        self._top_p = np.ones(max_num_seqs, np.float64)
        self._log_min_p = np.full(max_num_seqs, -np.inf, np.float32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._prompt_len = np.zeros(max_num_seqs, np.int64)
        # Tokens that a row may not choose yet: row, token, and the position from which it may.
        self._barred = np.zeros((0, 3), np.int64)
        self._index_of_row = np.full(max_num_seqs, -1, np.int64)

    def set_row(
        self, row: int, params: SamplingParams, *, seed: int, prompt_len: int, end_ids: npt.ArrayLike
    ) -> None:
        """Give a row slot to a request.

        Args:
            row: the slot.
            params: the request's parameters.
            seed: the request's seed.
            prompt_len: tokens before position 0 of its output.
            end_ids: int [n], tokens that end the text, and so may not come before ``params.min_tokens``.
        """
        self._temperature[row] = 0.0 if params.greedy else params.temperature
        self._top_k[row] = params.top_k if 0 < params.top_k < self._vocab_size else 0
        self._top_p[row] = params.top_p
        self._log_min_p[row] = np.log(params.min_p) if params.min_p > 0 else -np.inf
        self._seed[row] = seed % 2**64
        self._prompt_len[row] = prompt_len
        self._barred = self._barred[self._barred[:, 0] != row]
        if params.min_tokens:
            ids = np.asarray(end_ids, np.int64)
            rows = np.stack([np.full_like(ids, row), ids, np.full_like(ids, params.min_tokens)], axis=1)
            self._barred = np.concatenate([self._barred, rows])

    def sample(
        self, logits: torch.Tensor, rows: npt.NDArray[np.int32], lengths: npt.NDArray[np.int32]
    ) -> Sampled:
        """Choose one token for each row.

        Args:
            logits: float32 [S, vocab_size]; may be written to.
            rows: int32 [S], the rows' slots.
            lengths: int32 [S], tokens that each row has already.

        Returns:
            a token for each row. Of equally likely tokens a greedy row takes the lowest id.
        """
        positions = lengths - self._prompt_len[rows]
        if self._barred.size:
            self._bar(logits, rows, positions)
        best, token_ids = logits.max(dim=-1)
        random = np.flatnonzero(self._temperature[rows])
        if random.size:
            index = torch.from_numpy(random)
            token_ids[index] = self._draw(logits[index], best[index], rows[random], positions[random])
        return Sampled(token_ids.to(torch.int32).numpy(), ~torch.isfinite(best).numpy())

    def _bar(
        self, logits: torch.Tensor, rows: npt.NDArray[np.int32], positions: npt.NDArray[np.int64]
    ) -> None:
        barred_rows, barred_ids, until = self._barred.T
        self._index_of_row[rows] = np.arange(len(rows))
        index = self._index_of_row[barred_rows]
        self._index_of_row[rows] = -1
        live = (index >= 0) & (positions[index] < until)
        logits[torch.from_numpy(index[live]), torch.from_numpy(barred_ids[live])] = -torch.inf

    def _draw(
        self,
        logits: torch.Tensor,
        best: torch.Tensor,
        rows: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int64],
    ) -> torch.Tensor:
        """int64 [n]: a random token for each row; ``best`` are the largest logits, the rest as above."""
        distance = (logits - best[:, None]) / torch.from_numpy(self._temperature[rows])[:, None]
        unlikely = distance < torch.from_numpy(self._log_min_p[rows])[:, None]
        weights = distance.exp_().masked_fill_(unlikely, 0.0)
        numbers = torch.from_numpy(uniform(self._seed[rows], positions))
        token_ids = torch.empty(len(rows), dtype=torch.int64)
        truncated = (self._top_k[rows] > 0) | (self._top_p[rows] < 1)
        if not truncated.all():
            index = torch.from_numpy(np.flatnonzero(~truncated))
            token_ids[index] = _invert(weights[index], numbers[index])
        if truncated.any():
            index = torch.from_numpy(np.flatnonzero(truncated))
            token_ids[index] = self._draw_truncated(weights[index], numbers[index], rows[truncated])
        return token_ids

    def _draw_truncated(
        self, weights: torch.Tensor, numbers: torch.Tensor, rows: npt.NDArray[np.int32]
    ) -> torch.Tensor:
        """int64 [n]: a token for each row of ``weights``, float32 [n, vocab], that top-k and top-p leave."""
        top_k, top_p = torch.from_numpy(self._top_k[rows]), torch.from_numpy(self._top_p[rows])
        total = weights.sum(dim=-1, dtype=torch.float64)
        candidates, ids = weights.topk(self._num_candidates)
        reached = candidates.sum(dim=-1, dtype=torch.float64) >= top_p * total
        enough = torch.where(top_k > 0, top_k <= self._num_candidates, reached)
        token_ids = _draw_sorted(candidates, ids, numbers, total, top_k, top_p)
        if not enough.all():
            rest = ~enough
            candidates, ids = weights[rest].sort(descending=True, stable=True)
            token_ids[rest] = _draw_sorted(
                candidates, ids, numbers[rest], total[rest], top_k[rest], top_p[rest]
            )
        return token_ids


def _draw_sorted(
    weights: torch.Tensor,
    ids: torch.Tensor,
    numbers: torch.Tensor,
    total: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
) -> torch.Tensor:
    """Draw from the likeliest tokens.

    Args:
        weights: float32 [n, C], the largest weights of each row, largest first.
        ids: int64 [n, C], their tokens.
        numbers: float64 [n] in [0, 1).
        total: float64 [n], sum of all weights of the row.
        top_k: int64 [n], 0 for all.
        top_p: float64 [n].

    Returns:
        int64 [n] tokens.
    """
    least = weights.gather(1, (top_k - 1).clamp(0, weights.shape[1] - 1)[:, None])
    left = weights.double().masked_fill_((weights < least) & (top_k > 0)[:, None], 0.0)
    mass = torch.where(top_k > 0, left.sum(dim=-1), total) * top_p
    before = left.cumsum(dim=-1) - left
    left.masked_fill_((before >= mass[:, None]) & (top_p < 1)[:, None], 0.0)
    return ids.gather(1, _invert(left, numbers)[:, None])[:, 0]


def _invert(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """int64 [n]: where the running sum of each row of ``weights`` [n, C] passes that share of its total."""
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    index = torch.searchsorted(sums, (numbers * sums[:, -1])[:, None], right=True)[:, 0]
    return index.clamp_(max=weights.shape[-1] - 1)  # past the end only where logits were not numbers
