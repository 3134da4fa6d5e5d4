"""Standard error as a person sees it: log lines, and one line of progress that stays below them."""

from __future__ import annotations

import logging
import time
from typing import TextIO

_BAR_WIDTH = 24
_REDRAW_SECONDS = 0.1


class Progress:
    """A bar that counts finished prompts; drawn on a terminal only.

    Args:
        stream: where to draw, standard error.
        total: prompts in the run.
    """

    def __init__(self, stream: TextIO, total: int) -> None:
        self._stream = stream
        self._total = total
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._visible = False
        self._enabled = stream.isatty()

    def update(self, finished: int, tokens: int) -> None:
        """Show ``finished`` of all prompts and ``tokens`` written so far, a few times a second at most."""
        now = time.monotonic()
        if not self._enabled or now - self._drawn_at < _REDRAW_SECONDS:
            return
        self._drawn_at = now
        filled = _BAR_WIDTH * finished // self._total
        rate = tokens / max(now - self._started, 1e-9)
        self._stream.write(
            f"\r\x1b[K[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {finished} of {self._total} prompts,"
            f" {tokens} tokens, {rate:.1f} tokens/s"
        )
        self._stream.flush()
        self._visible = True

    def clear(self) -> None:
        """Take the bar off the screen; the next update draws it again."""
        if self._visible:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._visible = False
            self._drawn_at = 0.0


class LogHandler(logging.Handler):
    """Writes log lines to standard error without tearing a progress bar or streamed text apart.

    Attributes:
        stream: where lines go, standard error.
        progress: the bar to take off the screen before a line is written, if there is one.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.progress: Progress | None = None
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as one line."""
        if self.progress is not None:
            self.progress.clear()
        self.stream.write(self.format(record) + "\n")
        self.stream.flush()


def log_to(stream: TextIO, *, quiet: bool) -> LogHandler:
    """Send what the library logs to ``stream``: everything from INFO on, or with ``quiet`` only warnings."""
    handler = LogHandler(stream)
    logger = logging.getLogger("looseleaf")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    return handler
