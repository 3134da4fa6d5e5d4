"""Which beams live on: the rules of transformers' ``generate(num_beams=k)`` for one prompt.

Scores are sums of float32 log-probabilities. A finished text's score is its sum divided by
``length ** length_penalty``, the token that ended it included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam of the next step: beam ``parent`` of this one and one more token."""

    parent: int
    token: int


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A text that has ended.

    Attributes:
        token_ids: what was generated, the token that ended it included.
        cum_logprob: sum of the tokens' log-probabilities.
        score: what it is ranked by.
        finish_reason: ``stop`` for an end-of-text token, ``length`` at the limit.
    """

    token_ids: tuple[int, ...]
    cum_logprob: float
    score: float
    finish_reason: FinishReason


@dataclass(slots=True)
class BeamRules:
    """The beams of one prompt.

    Args:
        beam_width: texts that are kept.
        max_tokens: tokens of a text at most.
        end_ids: tokens that end a text.
        length_penalty: above 0 favours long texts, below 0 short ones.
        early_stopping: True ends as soon as ``beam_width`` texts have ended; False also goes on while a
            running one could become better than the worst of them, judged by its present length; ``"never"``
            judges by the length that serves it best.

    Attributes:
        finished: texts that have ended, best first, at most ``beam_width``.
        done: whether the search is over.
    """

    beam_width: int
    max_tokens: int
    end_ids: tuple[int, ...]
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    finished: list[FinishedBeam] = field(default_factory=list)
    done: bool = False
    _texts: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    _scores: torch.Tensor = field(default_factory=lambda: torch.zeros(1))

    def advance(self, log_probs: torch.Tensor) -> list[Continuation]:
        """Take the next token of every beam.

        Args:
            log_probs: float32 [beams, vocab_size], of the tokens that may follow each running beam.

        Returns:
            The beams that run on, best first; what it says is of no use once ``done``.
        """
        vocab_size = log_probs.shape[1]
        # So many that ``beam_width`` of them do not stop, whatever the others do.
        num_candidates = max(2, 1 + len(self.end_ids)) * self.beam_width
        sums, places = (log_probs + self._scores[:, None]).flatten().topk(num_candidates)
        candidates = [Continuation(*divmod(place, vocab_size)) for place in places.tolist()]
        length = len(self._texts[0]) + 1
        at_limit = length == self.max_tokens
        stops = [at_limit or candidate.token in self.end_ids for candidate in candidates]
        self._finish(candidates, stops, sums, length)
        running = [index for index, stop in enumerate(stops) if not stop][: self.beam_width]
        if running:
            self._scores = sums[running]
            self._texts = [self._text(candidates[index]) for index in running]
        self.done = not running or self._is_settled(length)
        return [candidates[index] for index in running]

    def _text(self, candidate: Continuation) -> tuple[int, ...]:
        return (*self._texts[candidate.parent], candidate.token)

    def _finish(
        self, candidates: list[Continuation], stops: list[bool], sums: torch.Tensor, length: int
    ) -> None:
        """Keep the best texts that stop here; only the best ``beam_width`` candidates count."""
        scores = sums / length**self.length_penalty
        for index in range(self.beam_width):
            if stops[index]:
                candidate = candidates[index]
                self.finished.append(
                    FinishedBeam(
                        token_ids=self._text(candidate),
                        cum_logprob=float(sums[index]),
                        score=float(scores[index]),
                        finish_reason="stop" if candidate.token in self.end_ids else "length",
                    )
                )
        self.finished.sort(key=lambda beam: -beam.score)
        del self.finished[self.beam_width :]

    def _is_settled(self, length: int) -> bool:
        if len(self.finished) < self.beam_width:
            return False
        if self.early_stopping is True:
            return True
        longest = self.early_stopping == "never" and self.length_penalty > 0
        judged_at = self.max_tokens if longest else length
        best = self._scores[0] / judged_at**self.length_penalty
        return not bool(best > np.float32(self.finished[-1].score))
