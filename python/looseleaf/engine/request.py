"""What Python knows of a request: its text and its parameters. The manager knows its tokens and lengths."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.engine.detokenizer import IncrementalDetokenizer
from looseleaf.engine.sampling_params import RequestOutputKind, SamplingParams


@dataclass(slots=True, eq=False)
class Request:
    """A request from the moment it is accepted to the moment it ends.

    Attributes:
        request_id: its name.
        handle: its sequence in the manager.
        prompt: the prompt's text, if it came as text.
        params: how to sample.
        seed: of its random numbers.
        detokenizer: its growing text, where somebody watches that; None where text is made at the end.
        num_reported: tokens that outputs with ``RequestOutputKind.DELTA`` have carried.
        num_cached_tokens: prompt tokens found in the prefix cache at the first admission; None before that.
        num_lost_tokens: tokens that were computed when a preemption took its blocks.
    """

    request_id: str
    handle: int
    prompt: str | None
    params: SamplingParams
    seed: int
    detokenizer: IncrementalDetokenizer | None
    num_reported: int = 0
    num_cached_tokens: int | None = None
    num_lost_tokens: int = 0

    @property
    def streams(self) -> bool:
        """Whether it wants an output for every step."""
        return self.params.output_kind is not RequestOutputKind.FINAL_ONLY
