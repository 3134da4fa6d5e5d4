"""What Python knows of a request: its text and its parameters. The manager knows its tokens and lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from looseleaf.engine.bounds import shown
from looseleaf.engine.detokenizer import IncrementalDetokenizer
from looseleaf.engine.samples import SampleGroup
from looseleaf.engine.sampling_params import RequestOutputKind, SamplingParams
from looseleaf.errors import RequestError


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
        priority: smaller numbers come first, under the policy that looks at it.
        max_tokens: tokens that it may write; it may end sooner.
        cache_salt: only prompts with the same one share blocks.
        index: which sample of its group it is.
        group: where its outputs go if the request has several samples.
        siblings: samples that fork off when its prompt is computed; they have no sequence before that.
        arrival: how many came before it, which the scheduler counts.
        arrival_step: steps that had been scheduled then.
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
    priority: int = 0
    max_tokens: int = 0
    cache_salt: str | None = None
    index: int = 0
    group: SampleGroup | None = None
    siblings: list[Request] = field(default_factory=list)
    arrival: int = 0
    arrival_step: int = 0

    @property
    def started(self) -> bool:
        """Whether it has ever had a row; one that waits and has was preempted."""
        return self.num_cached_tokens is not None

    @property
    def streams(self) -> bool:
        """Whether it wants an output for every step."""
        return self.params.output_kind is not RequestOutputKind.FINAL_ONLY


def check_priority(priority: object) -> None:
    """Refuse what is not an integer.

    Raises:
        RequestError: with what was found.
    """
    if not isinstance(priority, Integral) or isinstance(priority, bool):
        raise RequestError(f"priority must be an integer, and smaller numbers come first, found {priority!r}")


def listed_priorities(priority: Sequence[int] | None, num_prompts: int) -> list[int]:
    """One priority for each prompt of a call; 0 for all where none is given.

    Raises:
        RequestError: there are not as many as prompts, or one is not an integer.
    """
    if priority is None:
        return [0] * num_prompts
    if isinstance(priority, str) or not isinstance(priority, Sequence):
        raise RequestError(f"priority must be a list with an integer for each prompt, found {priority!r}")
    if len(priority) != num_prompts:
        raise RequestError(f"{num_prompts} prompts need as many priorities, found {len(priority)}")
    for number in priority:
        check_priority(number)
    return list(priority)


def check_timeout(timeout: object) -> None:
    """Refuse what is neither None nor a number of seconds above 0.

    Raises:
        RequestError: with what was found.
    """
    number: Any = timeout if isinstance(timeout, Real) and not isinstance(timeout, bool) else math.nan
    if timeout is not None and not 0 < number < math.inf:  # comparisons with nan are false
        raise RequestError(
            "timeout must be a finite number of seconds above 0, or None for no limit, found"
            f" {shown(timeout)}"
        )


def listed_timeouts(timeout: float | Sequence[float | None] | None, num_prompts: int) -> list[float | None]:
    """One timeout for each prompt of a call: the one for all, or as many as there are prompts.

    Raises:
        RequestError: there are not as many as prompts, or one is not a number of seconds.
    """
    if isinstance(timeout, str) or not isinstance(timeout, Sequence):
        check_timeout(timeout)
        return [timeout] * num_prompts
    if len(timeout) != num_prompts:
        raise RequestError(f"{num_prompts} prompts need one timeout or as many, found {len(timeout)}")
    for seconds in timeout:
        check_timeout(seconds)
    return list(timeout)
