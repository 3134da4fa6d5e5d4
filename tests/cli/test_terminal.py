"""Standard error: a bar on a terminal only, and log lines that do not tear it."""

from __future__ import annotations

import io
import logging

import pytest

from looseleaf.cli.terminal import Progress, log_to


class Terminal(io.StringIO):
    """Shows what a person would see on the last line, with what was erased gone."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        return [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]


def test_the_bar_grows_with_the_prompts_that_are_done() -> None:
    terminal = Terminal()
    progress = Progress(terminal, total=4)
    progress.update(1, tokens=10)
    (line,) = terminal.screen
    assert line.startswith("[######..................] 1 of 4 prompts, 10 tokens, ")
    progress.clear()
    assert terminal.screen == [""]


def test_nothing_is_drawn_where_nobody_looks() -> None:
    stream = io.StringIO()
    progress = Progress(stream, total=4)
    progress.update(1, tokens=10)
    progress.clear()
    assert stream.getvalue() == ""


def test_the_bar_is_not_redrawn_at_every_call() -> None:
    terminal = Terminal()
    progress = Progress(terminal, total=10**6)
    for finished in range(1000):
        progress.update(finished, tokens=finished)
    assert terminal.getvalue().count("prompts") < 100


def test_a_log_line_takes_the_place_of_the_bar() -> None:
    terminal = Terminal()
    handler = log_to(terminal, quiet=False)
    handler.progress = Progress(terminal, total=4)
    handler.progress.update(1, tokens=10)
    logging.getLogger("looseleaf.engine").info("half %s", "done")
    assert terminal.screen == ["INFO half done", ""]


@pytest.mark.parametrize(
    ("quiet", "lines"), [(False, ["INFO a", "WARNING b", ""]), (True, ["WARNING b", ""])]
)
def test_quiet_keeps_warnings(quiet: bool, lines: list[str]) -> None:
    stream = io.StringIO()
    log_to(stream, quiet=quiet)
    logging.getLogger("looseleaf.engine").info("a")
    logging.getLogger("looseleaf.engine").warning("b")
    assert stream.getvalue().split("\n") == lines
