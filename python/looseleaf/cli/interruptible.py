"""Taking outputs one by one so that a Ctrl-C at any moment loses none of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

from looseleaf.engine.interrupts import DeferredInterrupt
from looseleaf.engine.outputs import RequestOutput


def take_all(stream: Generator[RequestOutput], take: Callable[[RequestOutput], None]) -> bool:
    """Hand every output of ``stream`` to ``take``, the last ones of an interrupted stream included.

    Args:
        stream: what :meth:`looseleaf.LLM.stream` returns. When interrupted it aborts its requests, yields
            what they had written, and raises KeyboardInterrupt.
        take: is never interrupted; a second Ctrl-C takes effect after it.

    Returns:
        Whether the stream ended by itself, and not by Ctrl-C.
    """
    advance: Callable[[], RequestOutput] = partial(next, stream)
    try:
        while True:
            try:
                output = advance()
            except StopIteration:
                return True
            except KeyboardInterrupt:
                return False
            advance = partial(next, stream)
            try:
                with DeferredInterrupt():
                    take(output)
            except KeyboardInterrupt:
                advance = partial(stream.throw, KeyboardInterrupt)
    finally:
        stream.close()
