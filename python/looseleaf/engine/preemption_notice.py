"""A word to whoever runs the engine when requests keep losing their blocks."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

WINDOW_STEPS = 200
# One in ten steps.
FREQUENT = 20


class PreemptionNotice:
    """Says once that preemptions are frequent, and what would help."""

    def __init__(self) -> None:
        self._given = False
        self._steps = 0
        self._preemptions = 0

    def count_step(self, num_preempted: int) -> None:
        """Count a step and the requests that lost their blocks in it."""
        if self._given:
            return
        self._steps += 1
        self._preemptions += num_preempted
        if self._preemptions >= FREQUENT:
            self._given = True
            logger.warning(
                "%d preemptions in %d steps: there are too few blocks for what runs side by side, and tokens"
                " are computed again. Give the pool more blocks (kv_cache_memory_bytes,"
                " gpu_memory_utilization, num_gpu_blocks_override), run less at once (max_num_seqs,"
                " max_num_batched_tokens), keep more blocks free for growth (watermark), or spread the load"
                " over more cards. This is said once.",
                self._preemptions,
                self._steps,
            )
        elif self._steps == WINDOW_STEPS:
            self._steps = self._preemptions = 0
