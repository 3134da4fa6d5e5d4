"""Priorities: a smaller number is served first."""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.engine.policies.base import SchedulingPolicy
from looseleaf.engine.request import Request


class PriorityPolicy(SchedulingPolicy):
    """vLLM's order: by priority, then by arrival; the largest number gives way, among equals the newest.

    A preempted request goes ahead of those of its priority that never ran: blocks of it are still cached.

    With aging, what counts is ``priority · aging_steps + the step of arrival``. So a request catches up by
    one priority with every ``aging_steps`` steps, and is overtaken only by the finitely many that arrive
    before it has caught up: nobody waits for ever. Since all age alike, the order of two requests never
    changes, and one that came to its turn by age does not lose its blocks to the next of a better priority.

    Args:
        aging_steps: steps that make up for one priority; 0 turns aging off.
    """

    def __init__(self, aging_steps: int = 0) -> None:
        self._aging_steps = aging_steps

    def place(self, request: Request) -> tuple[int, ...]:
        """By priority; within one, preempted requests first, then by arrival."""
        return (self._rank(request), not request.started, request.arrival)

    def victim(self, running: Sequence[Request]) -> Request:
        """The largest number; among equals the one that arrived last."""
        return max(running, key=lambda request: (self._rank(request), request.arrival))

    def _rank(self, request: Request) -> int:
        if not self._aging_steps:
            return request.priority
        return request.priority * self._aging_steps + request.arrival_step
