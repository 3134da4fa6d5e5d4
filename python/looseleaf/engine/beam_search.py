"""Beam search over forks: the beams of a prompt share the blocks of all they have in common.

It drives the manager itself, a step at a time, for all prompts that have room at once. A beam that goes on in
several ways is forked, one that goes on in none is closed at once; nothing is copied but a shared last block
that somebody writes to.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from looseleaf.engine.batch import StepBuffers
from looseleaf.engine.beam_rules import BeamRules, Continuation, FinishedBeam
from looseleaf.engine.config import StepLimits
from looseleaf.engine.model_runner import ModelRunner
from looseleaf.errors import EngineError, NeverFitsError, OutOfBlocksError, RequestError

if TYPE_CHECKING:
    from looseleaf._core import BlockPool, KVCacheManager


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """How to search; the names are vLLM's, and the rules those of transformers' ``generate(num_beams=k)``.

    Attributes:
        beam_width: texts that are followed and returned for each prompt.
        max_tokens: tokens of a text at most.
        ignore_eos: go on past the end-of-text token.
        temperature: only 0, since a beam search draws nothing.
        length_penalty: a text's score is its log-probability divided by ``length ** length_penalty``.
        early_stopping: when a search may end before its limit, see :class:`BeamRules`.

    Raises:
        RequestError: a value is not allowed.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
                raise RequestError(f"{name} must be an integer of at least 1, found {value!r}")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos must be True or False, found {self.ignore_eos!r}")
        if self.temperature != 0:
            raise RequestError(
                "temperature must be 0, since a beam search draws no random numbers,"
                f" found {self.temperature!r}"
            )
        penalty = self.length_penalty
        if not isinstance(penalty, Real) or isinstance(penalty, bool) or not math.isfinite(penalty):
            raise RequestError(f"length_penalty must be a finite number, found {penalty!r}")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise RequestError(
                f"early_stopping must be True, False or 'never', found {self.early_stopping!r}"
            )


@dataclass(slots=True)
class _Search:
    """A prompt and its beams: sequences in the order in which the rules rank them."""

    index: int
    prompt: Sequence[int]
    cache_salt: str | None
    rules: BeamRules
    beams: list[int] = field(default_factory=list)


class BeamSearch:
    """Searches for several prompts at once.

    Args:
        manager: has no other sequences.
        pool: the manager's blocks.
        runner: computes steps.
        buffers: the arrays that the manager fills.
        limits: rows, tokens and lengths.
        vocab_size: width of the logits.
        end_ids: the model's end-of-text tokens.
        prompts: token ids and salt of each.
        params: how to search.

    Attributes:
        finished: for each prompt its texts, best first, once it is done.

    Raises:
        RequestError: a prompt or the parameters can not be served; nothing was opened.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        pool: BlockPool,
        runner: ModelRunner,
        buffers: StepBuffers,
        limits: StepLimits,
        *,
        vocab_size: int,
        end_ids: tuple[int, ...],
        prompts: Sequence[tuple[Sequence[int], str | None]],
        params: BeamSearchParams,
    ) -> None:
        self._manager, self._pool = manager, pool
        self._runner, self._buffers, self._limits = runner, buffers, limits
        self._params = params
        self._end_ids = () if params.ignore_eos else end_ids
        self.finished: list[list[FinishedBeam]] = [[] for _ in prompts]
        self._active: list[_Search] = []
        self._check(vocab_size, [len(token_ids) for token_ids, _ in prompts])
        self._waiting = deque(
            _Search(index, token_ids, salt, self._rules()) for index, (token_ids, salt) in enumerate(prompts)
        )

    def step(self) -> bool:
        """Compute one step; False, and nothing is done, when all searches are over.

        Raises:
            EngineError: a single search needs more blocks than the pool has.
        """
        self._start_waiting()
        if not self._active:
            return False
        self._schedule()
        step = self._manager.prepare()
        try:
            logits = self._runner.logits(step)
        except BaseException:
            self._manager.fail_step(step.step)
            raise
        rows = self._buffers.sample_rows(step)
        place_of = {int(row): place for place, row in enumerate(rows)}
        sampled = np.zeros(len(rows), np.int32)
        grown = []
        for search in self._active:
            places = [place_of.get(self._row(beam)) for beam in search.beams]
            if None in places:
                continue  # some of its prompt is still to be computed
            continuations = search.rules.advance(torch.log_softmax(logits[places].float(), dim=-1))
            grown.append((search, continuations))
            # A beam's first continuation is committed to it; whatever a loser gets goes with it.
            for continuation in reversed(continuations):
                sampled[places[continuation.parent]] = continuation.token
        self._manager.commit_step(step.step, sampled)
        for search, continuations in grown:
            if search.rules.done:
                self._finish(search)
            else:
                self._follow(search, continuations)
        return True

    def close(self) -> None:
        """Give back what unfinished searches hold."""
        for search in self._active:
            self._drop(search)
        self._active.clear()
        self._waiting.clear()

    def _check(self, vocab_size: int, prompt_lens: list[int]) -> None:
        width, limits = self._params.beam_width, self._limits
        if width > limits.max_num_seqs:
            raise RequestError(
                f"beam_width must be at most max_num_seqs ({limits.max_num_seqs}), the rows of a step,"
                f" found {width}"
            )
        candidates = max(2, 1 + len(self._end_ids)) * width
        if candidates > vocab_size:
            raise RequestError(
                f"a beam_width of {width} looks at {candidates} candidates, and the vocabulary has"
                f" {vocab_size} tokens: use at most {vocab_size * width // candidates}"
            )
        for prompt_len in prompt_lens:
            if prompt_len + self._params.max_tokens > limits.max_model_len:
                raise RequestError(
                    f"a prompt of {prompt_len} tokens and max_tokens of {self._params.max_tokens} are more"
                    f" than max_model_len ({limits.max_model_len}) together"
                )

    def _rules(self) -> BeamRules:
        params = self._params
        return BeamRules(
            params.beam_width,
            params.max_tokens,
            self._end_ids,
            float(params.length_penalty),
            params.early_stopping,
        )

    def _start_waiting(self) -> None:
        """Admit prompts while there are rows for all their beams, and blocks for the prompt."""
        most = self._limits.max_num_seqs // self._params.beam_width
        while self._waiting and len(self._active) < most:
            search = self._waiting[0]
            beam = self._manager.open(
                search.prompt, cache_salt=search.cache_salt, max_tokens=self._params.max_tokens
            )
            try:
                self._manager.admit(beam)
            except (OutOfBlocksError, NeverFitsError):
                self._manager.close(beam)
                if not self._active:
                    raise
                return
            search.beams = [beam]
            self._active.append(self._waiting.popleft())

    def _schedule(self) -> None:
        """Give every beam its token and every prompt a piece; who has no block takes the newest prompt's."""
        left = self._limits.max_num_batched_tokens
        while True:
            outcome = self._manager.schedule_running(left, left)
            left -= outcome.num_tokens_scheduled
            if outcome.blocked is None:
                return
            if len(self._active) == 1:
                raise EngineError(
                    f"a beam search of width {self._params.beam_width} is alone and has no block for its next"
                    f" tokens: it holds {self._pool.num_usable - self._pool.num_free} of"
                    f" {self._pool.num_usable}; use fewer beams or tokens, or a larger pool"
                )
            # It starts again from its prompt: the rules would come to the same beams.
            newest = self._active.pop()
            self._drop(newest)
            newest.rules = self._rules()
            self._waiting.appendleft(newest)

    def _row(self, beam: int) -> int:
        row = self._manager.row(beam)
        assert row is not None, "beams hold a row from admission to close"
        return row

    def _follow(self, search: _Search, continuations: list[Continuation]) -> None:
        """Make the sequences those that the rules chose."""
        manager, parents = self._manager, search.beams
        chosen: dict[int, list[int]] = {}
        for place, continuation in enumerate(continuations):
            chosen.setdefault(continuation.parent, []).append(place)
        # Losers first, so that their rows and blocks are there for the forks.
        for index, parent in enumerate(parents):
            if index not in chosen:
                manager.close(parent)
        beams = [0] * len(continuations)
        for index, (first, *others) in chosen.items():
            beams[first] = parents[index]
            if others:
                for place, child in zip(others, manager.fork(parents[index], len(others)), strict=True):
                    manager.truncate(child, manager.num_tokens(child) - 1)
                    manager.push_token(child, continuations[place].token)
                    beams[place] = child
        search.beams = beams

    def _finish(self, search: _Search) -> None:
        self._drop(search)
        self._active.remove(search)
        self.finished[search.index] = search.rules.finished

    def _drop(self, search: _Search) -> None:
        for beam in search.beams:
            self._manager.close(beam)
        search.beams = []
