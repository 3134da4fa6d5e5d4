"""Which tokens the next step computes.

A request is a number of computed tokens and a number of tokens in all. Each step has a budget of tokens:

1. Every running row that needs exactly one token gets it. A row without a block for it takes the blocks of
   a victim that the policy names, which goes back to the head of its queue and computes again later.
2. What is left goes to prompts in the policy's order. While a long one runs, prompts with at most a *chunk*
   to go, waiting ones included, are kept up to half of it, so that a short newcomer has its first token
   within two steps. A chunk is ``long_prefill_token_threshold``, or half the budget without one.
3. Waiting requests are admitted in order, each with the blocks for all its tokens, if that leaves room for
   those that run to grow. Short ones pass long ones for which the step has no tokens, and anybody passes a
   long one whose next blocks a running prompt is about to compute: it finds them soon. Nobody passes a
   request that waits for free blocks.

A step that took blocks away admits nobody, since the newcomer would be the next to lose them. Where a tier
has blocks of a waiting request, they are copied back when it takes its row, and no step has it before they
are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from looseleaf.engine.block_budget import BlockBudget
from looseleaf.engine.config import StepLimits
from looseleaf.engine.policies.factory import make_policy
from looseleaf.engine.preemption_notice import PreemptionNotice
from looseleaf.engine.request import Request
from looseleaf.engine.running_prompts import RunningPrompts
from looseleaf.engine.swapping import Swapping
from looseleaf.engine.waiting_queue import WaitingQueue
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
        forked: samples that took a row beside the one whose prompt they share.
        failed: requests that can never go on, each with the reason; the caller ends them.
    """

    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_recomputed_tokens: int = 0
    admitted: list[Request] = field(default_factory=list)
    started: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    forked: list[Request] = field(default_factory=list)
    failed: list[tuple[Request, str]] = field(default_factory=list)


class Scheduler:
    """The queue of waiting requests and the order of the running ones.

    Args:
        manager: holds the sequences.
        pool: the blocks that the manager takes.
        limits: budget, rows, lengths and the policy.
        swapping: moves blocks of preempted requests to a tier; by default they are computed again.

    Attributes:
        waiting: requests without a row, in the policy's order.
        running: requests with a row by handle, in order of admission.
        swapping: as given.
    """

    def __init__(
        self, manager: KVCacheManager, pool: BlockPool, limits: StepLimits, swapping: Swapping | None = None
    ) -> None:
        self.swapping = Swapping(manager, pool) if swapping is None else swapping
        self._policy = make_policy(limits, manager, pool)
        self.waiting = WaitingQueue(self._policy)
        self.running: dict[int, Request] = {}
        self._prompts = RunningPrompts(manager)
        # Running requests with samples that are still to fork off; rows are kept for these.
        self._unforked: dict[int, Request] = {}
        self._blocks = BlockBudget(manager, pool, limits.watermark)
        self._notice = PreemptionNotice()
        self._manager = manager
        self._pool = pool
        self._limits = limits
        self._threshold = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self._chunk = limits.long_prefill_token_threshold or max(1, limits.max_num_batched_tokens // 2)
        self._num_added = 0
        self._num_steps = 0

    def add(self, request: Request) -> None:
        """Put a new request into the queue."""
        request.arrival = self._num_added
        request.arrival_step = self._num_steps
        self._num_added += 1
        self.waiting.push(request)

    def remove(self, request: Request) -> None:
        """Forget a request that ends, in whatever state it is."""
        self.waiting.discard(request)
        self.running.pop(request.handle, None)
        self._unforked.pop(request.handle, None)
        self._prompts.discard(request)
        self.swapping.forget(request)

    def never_fits(self, num_tokens: int) -> str | None:
        """Why even an empty pool could not hold a sequence of ``num_tokens`` tokens; None if it could."""
        return self._blocks.never_fits(num_tokens)

    def schedule(self) -> Schedule:
        """Open the next step in the manager and put its tokens in.

        Raises:
            EngineError: requests wait or run, and nothing can be done for any of them.
        """
        schedule = Schedule()
        self._num_steps += 1
        for request in self.swapping.landed():
            self._append_prompt(schedule, request, self._remaining(request.handle), 0)
        self._fork(schedule)
        left = self._limits.max_num_batched_tokens - self._continue_rows(schedule)
        kept = self._wanted_by_short_prompts(left // 2, newcomers=not schedule.preempted)
        left, kept = self._continue_prompts(schedule, left, kept)
        if not schedule.preempted:
            self._admit(schedule, left, kept)
        done = schedule.num_tokens or schedule.failed or schedule.admitted or self.swapping.busy
        if not done and (self.waiting or self.running):
            raise EngineError(self._blocks.stuck(len(self.running), self.waiting))
        self._notice.count_step(len(schedule.preempted))
        return schedule

    def _fork(self, schedule: Schedule) -> None:
        """Give samples their sequences once all of their prompt is computed but its last token.

        That one each computes itself, so that each has the logits to sample from, and writes what a separate
        request would write.
        """
        for request in [r for r in self._unforked.values() if self._remaining(r.handle) == 1]:
            handles = self._manager.fork(request.handle, len(request.siblings))
            for sibling, handle in zip(request.siblings, handles, strict=True):
                sibling.handle = handle
                sibling.arrival, sibling.arrival_step = request.arrival, request.arrival_step
                sibling.num_cached_tokens = request.num_cached_tokens
                self.running[handle] = sibling
            schedule.forked += request.siblings
            request.siblings = []
            del self._unforked[request.handle]

    def _free_rows(self) -> int:
        kept = sum(len(request.siblings) for request in self._unforked.values())
        return self._limits.max_num_seqs - len(self.running) - kept

    def _continue_rows(self, schedule: Schedule) -> int:
        """Give one token to each row that needs one; returns how many."""
        count = 0
        while True:
            rows = len(self.running) - len(self._prompts) - self.swapping.num_loading
            outcome = self._manager.schedule_running(rows - count, 1)
            count += outcome.num_tokens_scheduled
            if outcome.blocked is None:
                break
            blocked, missing = outcome.blocked
            late = self.swapping.blocks_to_come()
            if late < missing:
                taken_back, late = self._make_room(schedule, blocked)
                count -= taken_back
            if late >= missing:
                # To take more would not help sooner: the row waits for the next step, the others do not.
                count += self._continue_those_with_room()
                break
        schedule.num_tokens += count
        return count

    def _make_room(self, schedule: Schedule, blocked: int) -> tuple[int, int]:
        """Take a victim's blocks for the row ``blocked``, which may be the victim's own.

        Rows of one token come first in a step, so none of the blocks has been promised to anybody in it.

        Returns:
            the tokens that the victim had been given in this step, and how many of its blocks only become
            free later, because this step copies from them or they are being copied out.
        """
        reason = self.never_fits(self._manager.num_tokens(blocked))
        if reason is None and len(self.running) == 1:
            reason = self._blocks.no_block_left(blocked)
        if reason is not None:
            request = self.running[blocked]
            self._evict(request)
            schedule.failed.append((request, reason))
            return 0, 0
        movable = [request for request in self.running.values() if not self.swapping.is_loading(request)]
        request = self._policy.victim(movable)
        taken_back = len(self._manager.slots_of(request.handle))
        ref_cnt, free = self._pool.snapshot().ref_cnt, self._pool.num_free
        own = sum(ref_cnt[block] == 1 for block in self._manager.block_ids(request.handle))
        self._evict(request, keep=True)
        self.waiting.push(request)
        schedule.preempted.append(request)
        return taken_back, own - (self._pool.num_free - free)

    def _continue_those_with_room(self) -> int:
        """Give a token to each row of this step that has none yet and finds a block; returns how many."""
        count = 0
        for handle in self.running:
            if self._remaining(handle) == 1 and not self._manager.slots_of(handle):
                try:
                    self._manager.append(handle, 1)
                except OutOfBlocksError:
                    continue
                count += 1
        return count

    def _evict(self, request: Request, *, keep: bool = False) -> None:
        self.remove(request)
        if keep:
            self.swapping.store(request)
        lost = self._manager.num_computed_tokens(request.handle)
        request.num_lost_tokens = max(request.num_lost_tokens, lost)
        self._manager.preempt(request.handle)

    def _wanted_by_short_prompts(self, most: int, *, newcomers: bool) -> int:
        """Tokens, at most ``most``, that prompts with a chunk or less to go could use in this step."""
        remaining = [self._remaining(request.handle) for request in self._prompts]
        wanted = sum(count for count in remaining if count <= self._chunk)
        beside_long_ones = any(count > self._chunk for count in remaining)
        promised = 0
        free_rows = self._free_rows()
        for request in islice(self.waiting, _LOOKAHEAD if newcomers and free_rows else 0):
            blocks, count = self._blocks.wanted(request)
            if (supplied := self._supplied(request, count)) is None:
                continue
            count -= supplied
            if count > self._chunk and self._finds_more_soon(request):
                continue
            if not (free_rows and self._blocks.suffices(request.handle, promised + blocks, self.running)):
                break
            promised += blocks
            if count <= self._chunk:
                wanted += count
                free_rows -= 1
            else:
                beside_long_ones = True
        return min(wanted, most) if beside_long_ones else 0

    def _continue_prompts(self, schedule: Schedule, left: int, kept: int) -> tuple[int, int]:
        """Compute more of the running prompts with ``left`` tokens of the step.

        Short ones alone may have the last ``kept`` of them. Returns what remains of both.
        """
        todo = [(request, self._remaining(request.handle)) for request in self._prompts]
        todo.sort(key=lambda item: (item[1] <= self._chunk, self._policy.place(item[0])))
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
        free_rows = self._free_rows()
        for request in list(islice(self.waiting, free_rows + _LOOKAHEAD)):
            if left <= 0 or self._free_rows() <= len(request.siblings):
                return
            handle = request.handle
            if reason := self.never_fits(self._manager.num_tokens(handle)):
                self.remove(request)
                schedule.failed.append((request, reason))
                continue
            blocks, remaining = self._blocks.wanted(request)
            if (supplied := self._supplied(request, remaining)) is None:
                continue
            remaining -= supplied
            if remaining > self._chunk and self._finds_more_soon(request):
                continue
            if not self._blocks.suffices(handle, blocks, self.running):
                return
            if remaining > self._chunk and left <= kept:
                continue
            try:
                num_cached_tokens = self._manager.admit(handle, supplied) - supplied
            except OutOfBlocksError:
                return  # another user of the pool was faster
            self._seat(schedule, request, num_cached_tokens)
            if not supplied:
                self.swapping.forget(request)
            elif not self.swapping.load(request, num_cached_tokens, supplied):
                continue
            remaining = self._remaining(handle)
            short = remaining <= self._chunk
            count = min(remaining, self._threshold, left if short else max(1, left - kept))
            self._append_prompt(schedule, request, remaining, count)
            left -= count
            kept = max(0, kept - count) if short else kept

    def _supplied(self, request: Request, remaining: int) -> int | None:
        """Tokens of ``remaining`` that a tier has; None if it is better to wait for a copy."""
        return self.swapping.supply(request.handle, self._manager.num_tokens(request.handle) - remaining)

    def _finds_more_soon(self, request: Request) -> bool:
        """Whether a running prompt will compute the request's next blocks no later than it could itself."""
        prompt = self._prompts.compute_for(request)
        return prompt is not None and self._policy.place(prompt) < self._policy.place(request)

    def _seat(self, schedule: Schedule, request: Request, num_cached_tokens: int) -> None:
        self.waiting.discard(request)
        self.running[request.handle] = request
        if request.siblings:
            self._unforked[request.handle] = request
        schedule.admitted.append(request)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = num_cached_tokens
            schedule.started.append(request)

    def _append_prompt(self, schedule: Schedule, request: Request, remaining: int, count: int) -> None:
        handle = request.handle
        if request.siblings:
            count = min(count, remaining - 1)  # see _fork
        if count:
            self._manager.append(handle, count)
        schedule.num_tokens += count
        num_tokens = self._manager.num_tokens(handle)
        start = num_tokens - remaining
        end = start + count
        if remaining - count > 1:
            self._prompts.add(request)
        else:
            # With one token to go it becomes a row like those that write text, so that token is counted here.
            self._prompts.discard(request)
            end = num_tokens
        schedule.num_recomputed_tokens += max(0, min(end, request.num_lost_tokens) - start)
        prompt_end = min(end, num_tokens - self._manager.output_len(handle))
        schedule.num_prompt_tokens += max(0, prompt_end - max(start, request.num_lost_tokens))

    def _remaining(self, handle: int) -> int:
        return self._manager.num_tokens(handle) - self._manager.num_computed_tokens(handle)
