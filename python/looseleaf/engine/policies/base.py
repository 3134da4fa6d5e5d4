"""What a scheduling policy decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from looseleaf.engine.request import Request


class SchedulingPolicy(ABC):
    """Who is admitted first, and who gives way when blocks run out.

    A policy changes nothing: the scheduler moves requests, and takes all of a victim's blocks or none.
    """

    @abstractmethod
    def place(self, request: Request) -> tuple[int, ...]:
        """Where a request stands among all others; the smallest place is served first.

        A place holds until the request is admitted or preempted, and no two are equal.
        """

    @abstractmethod
    def victim(self, running: Sequence[Request]) -> Request:
        """The request that loses its blocks.

        Args:
            running: those with a row, at least one, in order of admission. The row that needs a block is one
                of them, and may be the answer.
        """
