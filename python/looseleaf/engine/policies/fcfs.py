"""First come, first served."""

from __future__ import annotations

from collections.abc import Sequence

from looseleaf.engine.policies.base import SchedulingPolicy
from looseleaf.engine.request import Request


class FcfsPolicy(SchedulingPolicy):
    """The newest running request gives way, and is the first to come back."""

    def place(self, request: Request) -> tuple[int, ...]:
        """Preempted requests first, then those that never ran, each by arrival."""
        return (not request.started, request.arrival)

    def victim(self, running: Sequence[Request]) -> Request:
        """The one that was admitted last."""
        return running[-1]
