"""Whether to copy a request's blocks or to compute them again."""

from __future__ import annotations

import logging
from collections import deque

logger = logging.getLogger(__name__)

# Copies and steps that the figures are taken from: recent ones, so that they follow a change.
_RECENT = 32


class SwapCost:
    """Compares what copies and steps have really taken.

    The bandwidth is that of the recent copies together. The speed of computing is that of the fastest recent
    step with prompt tokens: others have more rows that only write one token, and say less about prompts.
    """

    def __init__(self) -> None:
        self._copies: deque[tuple[int, float]] = deque(maxlen=_RECENT)
        self._token_rates: deque[float] = deque(maxlen=_RECENT)
        self._logged = False

    @property
    def bytes_per_second(self) -> float | None:
        """Of copies; None before the first."""
        seconds = sum(seconds for _, seconds in self._copies)
        return sum(num_bytes for num_bytes, _ in self._copies) / seconds if seconds else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of computing prompts; None before the first step of one."""
        return max(self._token_rates, default=None)

    def count_copy(self, num_bytes: int, seconds: float) -> None:
        """Take the time of a copy in."""
        if num_bytes:
            self._copies.append((num_bytes, seconds))

    def count_step(self, num_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take the time of a step in.

        Args:
            num_tokens: of the step.
            num_prefill_tokens: how many of them are of prompts, or computed again.
            seconds: the step took.
        """
        if num_prefill_tokens and seconds:
            self._token_rates.append(num_tokens / seconds)

    def prefers_copy(self, num_bytes: float, num_tokens: float) -> bool:
        """Whether ``num_bytes``, out and in again, are copied sooner than ``num_tokens`` are computed.

        Says no as long as one of the two has never been measured. The log has both figures once.
        """
        bandwidth, speed = self.bytes_per_second, self.tokens_per_second
        if bandwidth is None or speed is None:
            return False
        if not self._logged:
            self._logged = True
            logger.info(
                "Swap: blocks are copied at %.2f GiB/s and tokens computed at %.0f tokens/s; the %.0f tokens"
                " that a preempted request would lose take %.2f ms to copy out and in, and %.2f ms to"
                " compute. The shorter of the two is done, each time by the figures of that moment",
                bandwidth / 2**30,
                speed,
                num_tokens,
                1e3 * num_bytes / bandwidth,
                1e3 * num_tokens / speed,
            )
        return num_bytes / bandwidth < num_tokens / speed
