"""Where prompts come from: flags, a JSON Lines file, or standard input.

A line of the file is a JSON string, or an object with ``prompt`` (text) or ``prompt_token_ids`` (a list), any
sampling field for this prompt alone, and ``cache_salt``. Empty lines are skipped but counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from looseleaf.cli.options import SAMPLING_FIELDS

# Far beyond every limit, and below what Python refuses to read.
_MOST_DIGITS = 1000
_CONTENT_FIELDS = ("prompt", "prompt_token_ids")
_LINE_FIELDS = (*_CONTENT_FIELDS, "cache_salt", *SAMPLING_FIELDS)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing to continue or answer.

    Attributes:
        source: where it was given, for messages and titles: ``prompt 2`` or ``line 7``.
        content: text, or token ids that are used as they are.
        sampling: fields that override the flags for this prompt.
        cache_salt: prompts share cached blocks only with those of the same salt.
    """

    source: str
    content: str | list[int]
    sampling: dict[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class BadPrompt:
    """A prompt that cannot be read, or that the engine refuses, and why."""

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


def from_flags(texts: list[str]) -> list[Prompt | BadPrompt]:
    """The values of ``--prompt``, in order."""
    return [_from_flag(f"prompt {number}", text) for number, text in enumerate(texts, start=1)]


def check_argument(text: str) -> None:
    """Refuse a word of the command line that was not UTF-8.

    Raises:
        ValueError: it was not; Python stands such bytes in for by halves of surrogate pairs.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise ValueError(f"not UTF-8 text: byte 0x{byte:02x} behind {error.start} characters") from None


def from_file(path: str, stdin: BinaryIO | None) -> list[Prompt | BadPrompt]:
    """The lines of a JSON Lines file; ``-`` names standard input.

    Raises:
        OSError: the file cannot be read.
        ValueError: ``path`` is ``-`` and standard input is closed.
    """
    if path != "-":
        with Path(path).open("rb") as lines:
            return from_lines(lines)
    if stdin is None:
        raise ValueError("standard input is closed")
    return from_lines(stdin)


def from_lines(lines: Iterable[bytes]) -> list[Prompt | BadPrompt]:
    """One prompt for each line that is not empty; one that cannot be read keeps its place as a BadPrompt."""
    return [_from_line(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def from_stdin(stdin: BinaryIO) -> Prompt | BadPrompt:
    """All of standard input as one text, without the line end that closes it."""
    try:
        return Prompt("standard input", stdin.read().decode().removesuffix("\n"))
    except UnicodeDecodeError as error:
        return BadPrompt("standard input", f"not UTF-8 text: {error}")


def _from_flag(source: str, text: str) -> Prompt | BadPrompt:
    try:
        check_argument(text)
    except ValueError as error:
        return BadPrompt(source, str(error))
    return Prompt(source, text)


def _from_line(number: int, line: bytes) -> Prompt | BadPrompt:
    source = f"line {number}"
    try:
        return _parse(source, json.loads(line.decode("utf-8-sig"), parse_int=_integer))
    except RecursionError:
        return BadPrompt(source, "not valid JSON: nested too deeply")
    except UnicodeDecodeError as error:
        return BadPrompt(source, f"not UTF-8 text: {error}")
    except json.JSONDecodeError as error:
        # Some of these messages end in the word themselves.
        return BadPrompt(source, f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.colno}")
    except ValueError as error:
        return BadPrompt(source, str(error))


def _parse(source: str, value: object) -> Prompt:
    if isinstance(value, str):
        return Prompt(source, _text(value))
    if not isinstance(value, dict):
        raise ValueError(f"expected a string or an object, found {_kind(value)}")
    unknown = [name for name in value if name not in _LINE_FIELDS]
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}; allowed are {', '.join(_LINE_FIELDS)}")
    if sum(name in value for name in _CONTENT_FIELDS) != 1:
        raise ValueError("give exactly one of " + " and ".join(_CONTENT_FIELDS))
    salt = value.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise ValueError(f"cache_salt must be a string, found {_kind(salt)}")
    sampling = {name: value[name] for name in SAMPLING_FIELDS if name in value}
    if "prompt" in value:
        return Prompt(source, _text(value["prompt"]), sampling, salt)
    return Prompt(source, _token_ids(value["prompt_token_ids"]), sampling, salt)


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"no number here has {len(digits)} digits: {digits[:20]}…")
    return int(digits)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"prompt must be a string, found {_kind(value)}")
    return value


def _token_ids(value: object) -> list[int]:
    if not isinstance(value, list):
        raise ValueError(f"prompt_token_ids must be a list of integers, found {_kind(value)}")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int):
            raise ValueError(f"prompt_token_ids must be a list of integers, found {_kind(item)} in it")
    return value


def _kind(value: object) -> str:
    """What JSON calls it, with the value where that is short."""
    match value:
        case None:
            return "null"
        case list():
            return "a list"
        case dict():
            return "an object"
        case str():
            return "a string"
        case _:
            return json.dumps(value)
