"""Requests without a row, in the order in which they are to get one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from looseleaf.engine.policies.base import SchedulingPolicy
from looseleaf.engine.request import Request


class WaitingQueue:
    """Sorted by the policy's places.

    Args:
        policy: gives each request its place when it enters.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        # The handle makes entries differ, so that requests themselves are never compared.
        self._entries: list[tuple[tuple[int, ...], int, Request]] = []
        self._places: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._entries)

    def push(self, request: Request) -> None:
        """Put a request where it belongs now."""
        place = self._policy.place(request)
        self._places[request.handle] = place
        insort(self._entries, (place, request.handle, request))

    def discard(self, request: Request) -> None:
        """Take a request out, if it is here."""
        place = self._places.pop(request.handle, None)
        if place is not None:
            del self._entries[bisect_left(self._entries, (place, request.handle))]
