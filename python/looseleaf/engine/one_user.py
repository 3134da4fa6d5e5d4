"""Who may use an engine now: one thread at a time, and nobody while a step is half done."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from looseleaf.engine.interrupts import DeferredInterrupt
from looseleaf.errors import ConcurrentUseError


class OneUser:
    """Keeps an engine to the calls of one thread, which may overlap; whoever else comes is refused.

    A call that has begun is never the one to be refused. A generator can end anywhere, since the garbage
    collector ends those that nobody refers to: in another thread, or in the middle of a step. What such a
    call leaves behind is put aside until the engine is at rest.

    Args:
        abort: ends what a call left unfinished; takes the call's requests.
    """

    def __init__(self, abort: Callable[[Iterable[str]], None]) -> None:
        self._abort = abort
        # Taken for bookkeeping and aborts only, never for a step: nobody waits for a model. It is entered
        # again when the garbage collector runs while it is held.
        self._lock = threading.RLock()
        # The thread of each unfinished call.
        self._calls: dict[object, int] = {}
        self._inside = False
        self._left: deque[Iterable[str]] = deque()

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call that begins and ends in this thread.

        Raises:
            ConcurrentUseError: another thread has calls that have not ended, or a step is half done.
        """
        call = object()
        try:
            self._enter(call)
            yield
        finally:
            self.end(call, ())

    @contextmanager
    def inside(self, call: object) -> Iterator[None]:
        """The time during which ``call`` changes the engine; Ctrl-C waits for its end.

        A call that has no other beside it may go on in another thread than it began in.

        Raises:
            ConcurrentUseError: as for :meth:`call`.
        """
        with DeferredInterrupt():
            self._enter(call, inside=True)
            try:
                yield
            finally:
                self._inside = False
                self._settle()

    def end(self, call: object, requests: Iterable[str]) -> None:
        """Note that ``call`` has ended, wherever that happens, and abort its ``requests``."""
        with DeferredInterrupt():
            self._left.append(requests)
            with self._lock:
                self._calls.pop(call, None)
            self._settle()

    def _enter(self, call: object, *, inside: bool = False) -> None:
        with self._lock:
            if self._foreign(but=call):
                raise ConcurrentUseError(
                    "this LLM is in use by another thread, whose calls and streams have not ended; keep an"
                    " LLM to one thread, or hold a lock of your own during each call"
                )
            if self._inside:
                raise ConcurrentUseError(
                    "this LLM was entered again from within one of its own steps; call it when the step is"
                    " over, from the code that takes its outputs"
                )
            self._calls[call] = threading.get_ident()
            self._inside = inside

    def _foreign(self, but: object = None) -> bool:
        """Whether another thread has unfinished calls, not counting one."""
        me = threading.get_ident()
        return any(thread != me for call, thread in list(self._calls.items()) if call is not but)

    def _settle(self) -> None:
        """Abort what ended calls left, unless somebody is there who will do it when leaving."""
        with self._lock:
            while self._left and not self._inside and not self._foreign():
                self._inside = True
                try:
                    self._abort(self._left.popleft())
                finally:
                    self._inside = False
