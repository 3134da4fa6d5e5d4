"""Times two implementations of the same work in turns, so that a busy moment of the machine hits both."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Side = Callable[[int], Callable[[], object]]
"""Readies what ``n`` operations need, untimed, and returns the call that performs them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One question put to both sides.

    Attributes:
        ours: this library's side.
        peer: the other side.
        disagreements: in which results the two, or they and published figures, differ; a faster wrong answer
            wins nothing.
        most_at_once: operations of either side that are readied together, at most; a sample takes several
            rounds then. For operations whose inputs would otherwise fill the memory as no server's do.
    """

    ours: Side
    peer: Side
    disagreements: tuple[str, ...] = ()
    most_at_once: int | None = None


def alternate(comparison: Comparison, repeats: int, sample_s: float) -> tuple[float, float]:
    """Time both sides in turns.

    Args:
        comparison: what to time.
        repeats: samples of each side.
        sample_s: seconds that one sample should last; one operation is the least.

    Returns:
        The median seconds per operation of ours and of the peer.
    """
    sides = (comparison.ours, comparison.peer)
    rounds = comparison.most_at_once
    counts = [_operations_that_last(side, sample_s, rounds) for side in sides]
    # What exists by now lives as long as the run. A server freezes it too, so that collections that the timed
    # work triggers do not scan it.
    gc.collect()
    gc.freeze()
    samples: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats):
        # Who comes second finds the caches warmed or soiled by who came first.
        order = (0, 1) if repeat % 2 == 0 else (1, 0)
        for index in order:
            samples[index].append(_time(sides[index], counts[index], rounds) / counts[index])
    gc.unfreeze()
    return statistics.median(samples[0]), statistics.median(samples[1])


def _operations_that_last(side: Side, seconds: float, most_at_once: int | None) -> int:
    """How many operations take about so long. Doubles up to a quarter of it, which also warms up."""
    operations = 1
    while (elapsed := _time(side, operations, most_at_once)) < seconds / 4:
        operations *= 2
    return max(1, round(operations * seconds / elapsed))


def _time(side: Side, operations: int, most_at_once: int | None) -> float:
    elapsed = 0.0
    for done in range(0, operations, most_at_once or operations):
        perform = side(min(most_at_once or operations, operations - done))
        gc.collect()
        started = time.perf_counter()
        perform()
        elapsed += time.perf_counter() - started
    return elapsed
