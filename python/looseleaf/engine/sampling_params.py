"""How tokens are chosen and when a text ends: vLLM's ``SamplingParams``, by the same names and defaults."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from numbers import Integral, Real
from typing import Any

from looseleaf.errors import RequestError, UnsupportedError

# Below this a temperature divides logits by so little that sampling is greedy in all but cost.
_GREEDY_BELOW = 1e-5

_MOST = 2**63 - 1

_UNSUPPORTED = {
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

    def __post_init__(self) -> None:
        self._refuse_unsupported()
        self._set("n", _integer("n", self.n, lowest=1))
        self._set("temperature", _real("temperature", self.temperature, "at least 0", lambda x: x >= 0))
        self._set("top_p", _real("top_p", self.top_p, "above 0 and at most 1", lambda x: 0 < x <= 1))
        self._set("min_p", _real("min_p", self.min_p, "from 0 to 1", lambda x: 0 <= x <= 1))
        self._set("top_k", _integer("top_k", self.top_k, lowest=-1, highest=_MOST))
        self._set("min_tokens", _integer("min_tokens", self.min_tokens, lowest=0, highest=_MOST))
        if self.max_tokens is not None:
            self._set("max_tokens", _integer("max_tokens", self.max_tokens, lowest=1, highest=_MOST))
            if self.min_tokens > self.max_tokens:
                raise RequestError(
                    f"min_tokens must be at most max_tokens ({self.max_tokens}), found {self.min_tokens}"
                )
        if self.seed == -1:  # vLLM's other way of saying None
            self._set("seed", None)
        if self.seed is not None:
            self._set("seed", _integer("seed", self.seed, lowest=-(2**63), highest=2**64 - 1))
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, found {getattr(self, name)!r}")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(f"output_kind must be a RequestOutputKind, found {self.output_kind!r}")
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
            if reason is None or value == spec.default or (spec.default is None and value in ([], (), {})):
                continue
            raise UnsupportedError(
                f"{spec.name}={value!r} is not supported: {reason}; leave it at {spec.default!r}"
            )


def _real(name: str, value: object, allowed: str, holds: Callable[[float], bool]) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not math.isfinite(number) or not holds(number):
        raise RequestError(f"{name} must be a finite number {allowed}, found {value!r}")
    return number


def _integer(name: str, value: object, *, lowest: int, highest: int | None = None) -> int:
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or number < lowest or (highest is not None and number > highest):
        bounds = f"at least {lowest}" + ("" if highest is None else f" and at most {highest}")
        raise RequestError(f"{name} must be an integer of {bounds}, found {value!r}")
    return number


def _stop_strings(stop: object) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(strings, Sequence) or not all(isinstance(text, str) for text in strings):
        raise RequestError(f"stop must be a string or a list of strings, found {stop!r}")
    if "" in strings:
        raise RequestError("stop must not contain the empty string, which every text contains")
    return tuple(strings)


def _token_ids(name: str, ids: object) -> tuple[int, ...]:
    if ids is None:
        return ()
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise RequestError(f"{name} must be a list of token ids, found {ids!r}")
    return tuple(dict.fromkeys(_integer(name, token, lowest=0) for token in ids))
