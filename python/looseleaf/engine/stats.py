"""Counters of an engine, and the lines in which it reports them."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field, replace

from looseleaf.engine.outputs import FinishReason

logger = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 10.0

# Requests over which the hit rate is taken: long enough to be steady, short enough to follow a change.
_HIT_RATE_REQUESTS = 1000


@dataclass(slots=True)
class EngineStats:
    """What an engine has done since it started.

    Attributes:
        num_steps: steps computed.
        num_prompt_tokens: prompt tokens computed, each counted once.
        num_cached_tokens: prompt tokens taken from the prefix cache instead.
        num_generation_tokens: tokens written.
        num_recomputed_tokens: tokens computed again after a preemption.
        num_preemptions: times that a request lost its blocks.
        num_swaps_out: times that its blocks were copied out before it did.
        num_swaps_in: times that blocks were copied back for a request that took a row.
        num_bytes_swapped_out: bytes copied out.
        num_bytes_swapped_in: bytes copied back.
        num_swap_fallbacks: times that a copy failed or found no room, so that tokens were computed instead.
        peak_blocks_in_use: most blocks held at once.
        num_finished: requests that ended, by reason.
    """

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_preemptions: int = 0
    num_swaps_out: int = 0
    num_swaps_in: int = 0
    num_bytes_swapped_out: int = 0
    num_bytes_swapped_in: int = 0
    num_swap_fallbacks: int = 0
    peak_blocks_in_use: int = 0
    num_finished: dict[FinishReason, int] = field(default_factory=dict)


class HitRate:
    """The share of prompt tokens found in the prefix cache, over the last requests."""

    def __init__(self) -> None:
        self._requests: deque[tuple[int, int]] = deque()
        self._queried = 0
        self._hit = 0

    def record(self, queried: int, hit: int) -> None:
        """Count a request at its first admission: tokens of its prompt, and how many were found."""
        self._requests.append((queried, hit))
        self._queried += queried
        self._hit += hit
        if len(self._requests) > _HIT_RATE_REQUESTS:
            old_queried, old_hit = self._requests.popleft()
            self._queried -= old_queried
            self._hit -= old_hit

    def clear(self) -> None:
        """Begin anew, as the cache does when it is reset."""
        self.__init__()  # type: ignore[misc]

    @property
    def percent(self) -> float:
        """0 to 100."""
        return 100.0 * self._hit / self._queried if self._queried else 0.0


class PeriodicLog:
    """One line for each interval in which the engine worked.

    Args:
        stats: the counters to report, read when a line is due.
        now: seconds on a clock that never goes back.
    """

    def __init__(self, stats: EngineStats, now: float) -> None:
        self._stats = stats
        self._since = now
        self._before = replace(stats)

    def restart(self, now: float) -> None:
        """Begin an interval, so that the idle time before it is not averaged in."""
        self._since = now
        self._before = replace(self._stats)

    def report(self, now: float, *, running: int, waiting: int, usage: float, hit_percent: float) -> None:
        """Write a line if an interval has passed.

        Args:
            now: seconds on the same clock.
            running: requests with a row.
            waiting: requests without one.
            usage: share of the usable blocks that are held, 0 to 1.
            hit_percent: 0 to 100.
        """
        seconds = now - self._since
        if seconds < LOG_INTERVAL_SECONDS:
            return
        stats, before = self._stats, self._before
        preemptions = stats.num_preemptions - before.num_preemptions
        logger.info(
            "Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s,"
            " Running: %d reqs, Waiting: %d reqs, %sKV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
            (stats.num_prompt_tokens - before.num_prompt_tokens) / seconds,
            (stats.num_generation_tokens - before.num_generation_tokens) / seconds,
            running,
            waiting,
            f"Preemptions: {preemptions}, " if preemptions else "",
            100.0 * usage,
            hit_percent,
        )
        self.restart(now)
