"""How tokens are chosen and when a text ends: vLLM's ``SamplingParams``, by the same names and defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from numbers import Real
from typing import Any, NoReturn

from looseleaf.engine.bounds import bounded_integer, shown
from looseleaf.engine.prompts import refuse_surrogates
from looseleaf.errors import RequestError, UnsupportedError

# Below this a temperature divides logits by so little that sampling is greedy in all but cost.
_GREEDY_BELOW = 1e-5

_MOST = 2**63 - 1

_UNSUPPORTED = {
    "best_of": "vLLM has dropped it, too; ask for n outputs and choose among them",
    "presence_penalty": "logits are not changed by what was written before",
    "frequency_penalty": "logits are not changed by what was written before",
    "repetition_penalty": "logits are not changed by what was written before",
    "logprobs": "log-probabilities are not returned",
    "prompt_logprobs": "log-probabilities are not returned",
    "logprob_token_ids": "log-probabilities are not returned",
    "logit_bias": "logits are not changed before sampling",
    "allowed_token_ids": "logits are not changed before sampling",
    "bad_words": "logits are not changed before sampling",
    "structured_outputs": "output is not constrained to a grammar",
    "thinking_token_budget": "thinking is not told from other text",
    "repetition_detection": "repetition does not end a text",
    "extra_args": "there are no plug-ins that would read them",
}


class RequestOutputKind(Enum):
    """What the outputs of a request that is still running carry."""

    CUMULATIVE = 0
    """All text and tokens so far."""
    DELTA = 1
    """Only what is new."""
    FINAL_ONLY = 2
    """Nothing: one output, at the end."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request.

    Attributes:
        n: outputs per prompt. The prompt is computed and stored once; the outputs share its blocks.
        temperature: what logits are divided by; 0 takes the likeliest token.
        top_p: draw from the likeliest tokens that together reach this probability.
        top_k: draw from this many likeliest tokens; 0 or -1 from all.
        min_p: drop tokens less likely than this share of the likeliest one.
        seed: the random numbers of a request depend on its seed and the position in its output, and on
            nothing else; output i of several has the seed plus i, as if it were a request of its own.
            Without one, seeds follow from the engine's and from how many outputs were asked for before.
            Any integer from -2**63 to 2**64 - 1, of which -1 means None; both are vLLM's rule, where other
            negative seeds are seeds like all others.
        stop: strings that end the text and are cut from it.
        stop_token_ids: tokens that end the text; they stay in ``token_ids``, their own text is left out.
        ignore_eos: go on past the end-of-text token.
        max_tokens: tokens to write at most; None goes on to ``max_model_len``.
        min_tokens: end-of-text and stop tokens are not chosen before this many tokens are written, and stop
            strings are not looked for.
        detokenize: whether to make text of the tokens.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string, or the text of the stop token, at the end.
        output_kind: what streamed outputs carry.

    The remaining fields exist so that asking for what they do is refused with a reason.

    Raises:
        RequestError: a value is not allowed.
        UnsupportedError: vLLM would do this, looseleaf does not.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: Any = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    extra_args: dict[str, Any] | None = None
    best_of: int | None = None

    def __post_init__(self) -> None:
        self._refuse_unsupported()
        self._set("n", bounded_integer("n", self.n, RequestError, lowest=1))
        self._set("temperature", _real("temperature", self.temperature, "at least 0", lambda x: x >= 0))
        self._set("top_p", _real("top_p", self.top_p, "above 0 and at most 1", lambda x: 0 < x <= 1))
        self._set("min_p", _real("min_p", self.min_p, "from 0 to 1", lambda x: 0 <= x <= 1))
        self._set("top_k", bounded_integer("top_k", self.top_k, RequestError, lowest=-1, highest=_MOST))
        self._set(
            "min_tokens",
            bounded_integer("min_tokens", self.min_tokens, RequestError, lowest=0, highest=_MOST),
        )
        if self.max_tokens is not None:
            self._set(
                "max_tokens",
                bounded_integer("max_tokens", self.max_tokens, RequestError, lowest=1, highest=_MOST),
            )
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens must be at most max_tokens ({self.max_tokens}), found {self.min_tokens}"
                )
        if self.seed == -1:  # vLLM's other way of saying None
            self._set("seed", None)
        if self.seed is not None:
            self._set(
                "seed",
                bounded_integer("seed", self.seed, RequestError, lowest=-(2**63), highest=2**64 - 1),
            )
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, found {shown(getattr(self, name))}")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(f"output_kind must be a RequestOutputKind, found {shown(self.output_kind)}")
        if self.n > 1 and self.greedy:
            raise RequestError(
                "n must be 1 where the likeliest token is taken, since all outputs would be the same, found"
                f" {self.n}: use a temperature above 0"
            )
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.stop and not self.detokenize:
            raise RequestError("stop needs the text to look in: leave detokenize at True, or stop empty")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < _GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop``, as it is after validation."""
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """``stop_token_ids``, as it is after validation."""
        assert isinstance(self.stop_token_ids, tuple)
        return self.stop_token_ids

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _refuse_unsupported(self) -> None:
        for spec in fields(self):
            reason = _UNSUPPORTED.get(spec.name)
            value = getattr(self, spec.name)
            if reason is None or value is spec.default or _asks_for_nothing(spec.name, value, spec.default):
                continue
            raise UnsupportedError(
                f"{spec.name}={shown(value)} is not supported: {reason}; leave it at {spec.default!r}"
            )


def one_for_each(
    params: SamplingParams | Iterable[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """The parameters of each prompt of a call: those for all, or as many as there are prompts.

    Raises:
        RequestError: something else was given, or more or fewer.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    found: list[SamplingParams] = []
    if isinstance(params, Mapping | str) or not isinstance(params, Iterable):
        _refuse_params(params)
    for param in params:
        if not isinstance(param, SamplingParams):
            _refuse_params(param)
        found.append(param)
    if len(found) != num_prompts:
        raise RequestError(f"{num_prompts} prompts need one SamplingParams or as many, found {len(found)}")
    return found


def _refuse_params(found: object) -> NoReturn:
    hint = "; write SamplingParams(**…) around it" if isinstance(found, Mapping) else ""
    raise RequestError(
        "sampling_params must be SamplingParams, or a list of them with one for each prompt, found"
        f" {shown(found)}{hint}"
    )


def _asks_for_nothing(name: str, value: object, default: object) -> bool:
    """Whether a value of something that is not done comes to the same as its default."""
    if not isinstance(value, bool | int | float | list | tuple | dict):  # others need not compare
        return False
    if name == "best_of" and value == 1:
        return True
    return value == default or (default is None and value in ([], (), {}))


def _real(name: str, value: object, allowed: str, holds: Callable[[float], bool]) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not holds(number):
        raise RequestError(f"{name} must be a finite number {allowed}, found {shown(value)}")
    return number


def _stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(strings, Sequence) or not all(isinstance(text, str) for text in strings):
        raise RequestError(f"stop must be a string or a list of strings, found {shown(stop)}")
    if "" in strings:
        raise RequestError("stop must not contain the empty string, which every text contains")
    for text in strings:
        refuse_surrogates("stop", text)
    return tuple(strings)


def _token_ids(name: str, ids: object) -> tuple[int, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise RequestError(f"{name} must be a list of token ids, found {shown(ids)}")
    return tuple(dict.fromkeys(bounded_integer(name, token, RequestError, lowest=0) for token in ids))
