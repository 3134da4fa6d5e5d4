"""What a number may be, and how a value that may not be is shown in a sentence."""

from __future__ import annotations

from numbers import Integral

from looseleaf.errors import LooseleafError

_MOST_SHOWN = 80
# Limits that say more as what they are than as nineteen digits.
_POWERS = {2**63 - 1: "2**63 - 1", 2**64 - 1: "2**64 - 1", -(2**63): "-2**63", 2**31 - 1: "2**31 - 1"}


def bounded_integer(
    name: str, value: object, error: type[LooseleafError], *, lowest: int, highest: int | None = None
) -> int:
    """Take an integer of any kind but ``bool``.

    Args:
        name: of the value, for the sentence.
        value: what was given.
        error: what to raise.
        lowest: allowed.
        highest: allowed; None sets no limit.

    Raises:
        LooseleafError: of class ``error``, with the bound that the value breaks.
    """
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or number < lowest:
        raise error(f"{name} must be an integer of at least {_limit(lowest)}, found {shown(value)}")
    if highest is not None and number > highest:
        raise error(f"{name} must be an integer of at most {_limit(highest)}, found {shown(value)}")
    return number


def shown(value: object) -> str:
    """A value as it stands in code, cut where it would drown the sentence around it."""
    try:
        text = repr(value)
    except ValueError:  # Python writes out no integer of more than some thousand digits
        return f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def _limit(number: int) -> str:
    return _POWERS.get(number, str(number))
