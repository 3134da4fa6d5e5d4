"""What a request gives back; the fields are vLLM's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


@dataclass(slots=True)
class CompletionOutput:
    """One text that a request produced.

    Attributes:
        index: which output of the request; 0, since each has one.
        text: the text, or with ``RequestOutputKind.DELTA`` what is new of it.
        token_ids: the tokens behind ``text``, the one that ended it included.
        cumulative_logprob: always None; log-probabilities are not computed.
        logprobs: always None.
        finish_reason: None while it runs; ``stop`` (end of text, a stop token or a stop string), ``length``
            (``max_tokens`` or ``max_model_len`` reached), ``abort``, ``error``, or, which vLLM does not have,
            ``timeout``.
        stop_reason: the stop string or the stop token that ended it; None for the end-of-text token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether the text has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The state of a request, running or finished.

    Attributes:
        request_id: the name given when it was added.
        prompt: the prompt's text, if it came as text.
        prompt_token_ids: the prompt as the model saw it.
        outputs: one completion.
        finished: whether the request has ended.
        num_cached_tokens: prompt tokens taken from the prefix cache when the request was first admitted; None
            if it never was. Tokens found again after a preemption are not counted.
        prompt_logprobs: always None.
        error: why ``finish_reason`` is ``error``, and None otherwise.
        prompt_index: which prompt of the call to ``LLM`` this answers.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
    prompt_logprobs: None = None
    error: str | None = None
    prompt_index: int = 0


@dataclass(slots=True)
class BeamSearchSequence:
    """One text that a beam search found.

    Attributes:
        tokens: the prompt's tokens and what was generated, the end-of-text token included.
        cum_logprob: sum of the generated tokens' log-probabilities.
        score: ``cum_logprob`` divided by the generated length to the power of ``length_penalty``.
        text: the generated text; empty without a tokenizer.
        finish_reason: ``stop`` at an end-of-text token, ``length`` at ``max_tokens``.
    """

    tokens: list[int]
    cum_logprob: float
    score: float
    text: str
    finish_reason: Literal["stop", "length"]


@dataclass(slots=True)
class BeamSearchOutput:
    """What a beam search found for one prompt: ``beam_width`` texts, best first."""

    sequences: list[BeamSearchSequence]
