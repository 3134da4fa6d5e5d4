"""Which tokens the next step computes.

A request is a number of computed tokens and a number of tokens in all. Each step has a budget of tokens:

1. Every running row that needs exactly one token gets it. A row without a block for it takes the blocks of
   the newest running request, which goes back to the head of the queue and computes again later.
2. What is left goes to prompts, oldest first. While a long one runs, prompts with at most a *chunk* to go,
   waiting ones included, are kept up to half of it, so that a short newcomer has its first token within two
   steps. A chunk is ``long_prefill_token_threshold``, or half the budget without one.
3. Waiting requests are admitted in order, each with the blocks for all its tokens. Short ones pass long ones
   for which the step has no tokens, but nobody passes a request that waits for blocks.

A step that took blocks away admits nobody, since the newcomer would be the next to lose them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from looseleaf.engine.config import StepLimits
from looseleaf.engine.request import Request
from looseleaf.errors import EngineError, OutOfBlocksError

if TYPE_CHECKING:
    from looseleaf._core import BlockPool, KVCacheManager

# Waiting requests among which short ones are looked for; bounds the work of a step.
_LOOKAHEAD = 16


@dataclass(slots=True)
class Schedule:
    """What one step does.

    Attributes:
        num_tokens: tokens that it computes.
        num_prompt_tokens: how many of them are prompt tokens computed for the first time.
        num_recomputed_tokens: how many of them had been computed before a preemption.
        admitted: requests that took a row.
        started: those of them that had never had one.
        preempted: requests that lost theirs.
        failed: requests that can never go on, each with the reason; the caller ends them.
    """

    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_recomputed_tokens: int = 0
    admitted: list[Request] = field(default_factory=list)
    started: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    failed: list[tuple[Request, str]] = field(default_factory=list)


class Scheduler:
    """The queue of waiting requests and the order of the running ones.

    Args:
        manager: holds the sequences.
        pool: the blocks that the manager takes.
        limits: budget, rows and lengths.
        block_size: tokens per block.

    Attributes:
        waiting: requests without a row by handle, first come first.
        running: requests with a row by handle, in order of admission.
    """

    def __init__(self, manager: KVCacheManager, pool: BlockPool, limits: StepLimits, block_size: int) -> None:
        self.waiting: OrderedDict[int, Request] = OrderedDict()
        self.running: dict[int, Request] = {}
        self._manager = manager
        self._pool = pool
        self._limits = limits
        self._block_size = block_size
        self._threshold = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self._chunk = limits.long_prefill_token_threshold or max(1, limits.max_num_batched_tokens // 2)
        # Running requests with more than one token to compute, in order of admission.
        self._prompts: dict[int, Request] = {}

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting[request.handle] = request

    def remove(self, request: Request) -> None:
        """Forget a request that ends, in whatever state it is."""
        self.waiting.pop(request.handle, None)
        self.running.pop(request.handle, None)
        self._prompts.pop(request.handle, None)

    def never_fits(self, num_tokens: int) -> str | None:
        """Why even an empty pool could not hold a sequence of ``num_tokens`` tokens; None if it could."""
        blocks = -(-num_tokens // self._block_size)
        if blocks <= self._pool.num_usable:
            return None
        return (
            f"{num_tokens} tokens need {blocks} blocks of {self._block_size} tokens, and the whole pool has"
            f" {self._pool.num_usable}, enough for {self._pool.num_usable * self._block_size} tokens"
        )

    def schedule(self) -> Schedule:
        """Open the next step in the manager and put its tokens in.

        Raises:
            EngineError: requests wait or run, and nothing can be done for any of them.
        """
        schedule = Schedule()
        left = self._limits.max_num_batched_tokens - self._continue_rows(schedule)
        kept = self._wanted_by_short_prompts(left // 2, newcomers=not schedule.preempted)
        left, kept = self._continue_prompts(schedule, left, kept)
        if not schedule.preempted:
            self._admit(schedule, left, kept)
        if not schedule.num_tokens and not schedule.failed and (self.waiting or self.running):
            raise EngineError(self._stuck())
        return schedule

    def _continue_rows(self, schedule: Schedule) -> int:
        """Give one token to each row that needs one; returns how many."""
        count = 0
        while True:
            outcome = self._manager.schedule_running(len(self.running) - len(self._prompts) - count, 1)
            count += outcome.num_tokens_scheduled
            if outcome.blocked is None:
                schedule.num_tokens += count
                return count
            self._make_room(schedule, outcome.blocked[0])

    def _make_room(self, schedule: Schedule, blocked: int) -> None:
        """Take the newest request's blocks for the row ``blocked``, which may be that request's own.

        Rows of one token come first in a step, so none of the blocks has been promised to anybody in it.
        """
        reason = self.never_fits(self._manager.num_tokens(blocked))
        if reason is None and len(self.running) == 1:
            reason = self._no_block_left(blocked)
        if reason is not None:
            schedule.failed.append((self._evict(blocked), reason))
            return
        request = self._evict(next(reversed(self.running)))
        self.waiting[request.handle] = request
        self.waiting.move_to_end(request.handle, last=False)
        schedule.preempted.append(request)

    def _evict(self, handle: int) -> Request:
        request = self.running[handle]
        self.remove(request)
        request.num_lost_tokens = max(request.num_lost_tokens, self._manager.num_computed_tokens(handle))
        self._manager.preempt(handle)
        return request

    def _wanted_by_short_prompts(self, most: int, *, newcomers: bool) -> int:
        """Tokens, at most ``most``, that prompts with a chunk or less to go could use in this step."""
        remaining = [self._remaining(handle) for handle in self._prompts]
        if not any(count > self._chunk for count in remaining):
            return 0
        wanted = sum(count for count in remaining if count <= self._chunk)
        free_blocks = self._pool.num_free
        free_rows = self._limits.max_num_seqs - len(self.running)
        for handle in islice(self.waiting, _LOOKAHEAD if newcomers and free_rows else 0):
            blocks, count = self._wanted(handle)
            if wanted >= most or blocks > free_blocks:
                break
            if count <= self._chunk:
                wanted += count
                free_blocks -= blocks
        return min(wanted, most)

    def _continue_prompts(self, schedule: Schedule, left: int, kept: int) -> tuple[int, int]:
        """Compute more of the running prompts with ``left`` tokens of the step.

        Short ones alone may have the last ``kept`` of them. Returns what remains of both.
        """
        todo = [(request, self._remaining(handle)) for handle, request in self._prompts.items()]
        todo.sort(key=lambda item: item[1] <= self._chunk)
        for request, remaining in todo:
            short = remaining <= self._chunk
            count = min(remaining, self._threshold, left if short else left - kept)
            if count > 0:
                self._append_prompt(schedule, request, remaining, count)
                left -= count
                kept = max(0, kept - count) if short else kept
        return left, kept

    def _admit(self, schedule: Schedule, left: int, kept: int) -> None:
        """Start waiting requests with ``left`` tokens of the step, ``kept`` of which are for short ones."""
        free_rows = self._limits.max_num_seqs - len(self.running)
        for request in list(islice(self.waiting.values(), free_rows + _LOOKAHEAD)):
            if left <= 0 or len(self.running) == self._limits.max_num_seqs:
                return
            handle = request.handle
            if reason := self.never_fits(self._manager.num_tokens(handle)):
                self.remove(request)
                schedule.failed.append((request, reason))
                continue
            if left <= kept:
                blocks, remaining = self._wanted(handle)
                if blocks > self._pool.num_free:
                    return
                if remaining > self._chunk:
                    continue
            try:
                num_cached_tokens = self._manager.admit(handle, 0)
            except OutOfBlocksError:
                return
            self._seat(schedule, request, num_cached_tokens)
            remaining = self._remaining(handle)
            short = remaining <= self._chunk
            count = min(remaining, self._threshold, left if short else max(1, left - kept))
            self._append_prompt(schedule, request, remaining, count)
            left -= count
            kept = max(0, kept - count) if short else kept

    def _seat(self, schedule: Schedule, request: Request, num_cached_tokens: int) -> None:
        del self.waiting[request.handle]
        self.running[request.handle] = request
        schedule.admitted.append(request)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached_tokens
            schedule.started.append(request)

    def _wanted(self, handle: int) -> tuple[int, int]:
        """Blocks that a waiting request takes from the free ones, and tokens that it has to compute."""
        found = self._manager.match_prefix(handle)
        tokens = self._manager.num_tokens(handle) - found.num_cached_tokens
        return found.new_blocks + found.free_hit_blocks, tokens

    def _append_prompt(self, schedule: Schedule, request: Request, remaining: int, count: int) -> None:
        handle = request.handle
        self._manager.append(handle, count)
        schedule.num_tokens += count
        num_tokens = self._manager.num_tokens(handle)
        start = num_tokens - remaining
        end = start + count
        if remaining - count > 1:
            self._prompts[handle] = request
        else:
            # With one token to go it becomes a row like those that write text, so that token is counted here.
            self._prompts.pop(handle, None)
            end = num_tokens
        schedule.num_recomputed_tokens += max(0, min(end, request.num_lost_tokens) - start)
        prompt_end = min(end, num_tokens - self._manager.output_len(handle))
        schedule.num_prompt_tokens += max(0, prompt_end - max(start, request.num_lost_tokens))

    def _remaining(self, handle: int) -> int:
        return self._manager.num_tokens(handle) - self._manager.num_computed_tokens(handle)

    def _no_block_left(self, handle: int) -> str:
        return (
            f"no block is free for token {self._manager.num_tokens(handle)} of the only running request,"
            f" which holds {len(self._manager.block_ids(handle, 0))} of {self._pool.num_usable}"
        )

    def _stuck(self) -> str:
        text = f"nothing could be scheduled: {len(self.running)} requests run and {len(self.waiting)} wait"
        if not self.running:
            blocks, _ = self._wanted(next(iter(self.waiting)))
            text += (
                f"; the first needs {blocks} blocks, and {self._pool.num_free} of {self._pool.num_usable} are"
                " free, which nothing that runs here will change"
            )
        return text
