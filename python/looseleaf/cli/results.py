"""What a prompt became, and how it is written to standard output."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from looseleaf.cli.prompts import BadPrompt, Prompt
from looseleaf.cli.summary import Summary
from looseleaf.engine.outputs import RequestOutput

_TITLE_LENGTH = 72


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt that ran, whole or until it was interrupted.

    Attributes:
        index: its place among all prompts, from 0.
        prompt: as it was given.
        output: the last output of its request.
    """

    index: int
    prompt: Prompt
    output: RequestOutput


@dataclass(frozen=True, slots=True)
class Refused:
    """A prompt that never ran.

    Attributes:
        index: its place among all prompts, from 0.
        why: what is wrong with it.
    """

    index: int
    why: BadPrompt


Result = Answered | Refused


class Writer(Protocol):
    """Writes results in the order in which they are given to it."""

    def write(self, result: Result) -> None:
        """Write one result and flush, so that a reader sees it at once."""

    def summarize(self, summary: Summary) -> None:
        """Write the figures of the run."""


class TextWriter:
    """Text for people. What is wrong with a refused prompt is left to standard error.

    Args:
        stream: for texts, standard output.
        notes: for the figures, standard error.
        titled: whether a line with the prompt stands above each text.
    """

    def __init__(self, stream: TextIO, notes: TextIO, *, titled: bool) -> None:
        self._stream = stream
        self._notes = notes
        self._titled = titled

    def write(self, result: Result) -> None:
        """Write the text of a prompt, unless nothing came of it."""
        if isinstance(result, Refused):
            return
        (completion,) = result.output.outputs
        if not completion.token_ids:
            return
        text = completion.text
        if self._titled:
            text = f"[{result.prompt.source}] {title(result.prompt)}\n{text}\n"
        self._stream.write(text + "\n")
        self._stream.flush()

    def summarize(self, summary: Summary) -> None:
        """Write the figures as lines."""
        self._notes.write("\n".join(summary.lines()) + "\n")


class JsonWriter:
    """One JSON object a line.

    Args:
        stream: standard output.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, result: Result) -> None:
        """Write a result as an object; one that was refused has ``error`` and no text."""
        self._line(as_json(result))

    def summarize(self, summary: Summary) -> None:
        """Write ``{"stats": {…}}``."""
        self._line({"stats": summary.as_dict()})

    def _line(self, value: dict[str, Any]) -> None:
        self._stream.write(json.dumps(value, ensure_ascii=False) + "\n")
        self._stream.flush()


class InOrder:
    """Holds results back until all that come before them are there.

    Args:
        writer: gets the results in the order of the prompts.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._next = 0
        self._waiting: dict[int, Result] = {}

    def add(self, result: Result) -> None:
        """Take a result, and write what can be written now."""
        self._waiting[result.index] = result
        while self._next in self._waiting:
            self._writer.write(self._waiting.pop(self._next))
            self._next += 1


def title(prompt: Prompt) -> str:
    """The prompt on one line, shortened."""
    if not isinstance(prompt.content, str):
        return f"{len(prompt.content)} token ids"
    line = " ".join(prompt.content.split())
    return line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1] + "…"


def as_json(result: Result) -> dict[str, Any]:
    """The fields of one result."""
    if isinstance(result, Refused):
        return {"index": result.index, "source": result.why.source, "error": result.why.reason}
    output = result.output
    (completion,) = output.outputs
    fields: dict[str, Any] = {
        "index": result.index,
        "source": result.prompt.source,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_cached_tokens": output.num_cached_tokens,
    }
    if isinstance(result.prompt.content, str):
        fields["prompt"] = result.prompt.content
    if output.error is not None:
        fields["error"] = output.error
    return fields
