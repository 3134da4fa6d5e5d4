"""A scheduler over a real manager and pool, and no model: every token that is written is the same.

For what depends on lengths and blocks alone, at thousands of steps a second. What is written is checked
elsewhere, with a model that depends on every token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.request import Request
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.scheduler import Schedule, Scheduler

_TOKEN = 7


class ScheduledServer:
    """Adds requests, and takes steps until they end.

    Args:
        num_usable: blocks that can be handed out.
        block_size: tokens per block.
        longest: most tokens of a request.
        enable_prefix_caching: as in EngineConfig.
        options: other fields of EngineConfig.

    Attributes:
        requests: those that have not ended, by name.
        ended: names in the order in which requests ended, with the tokens that each wrote.
        failed: why others were given up.
        first_token: by name, the step that gave its first token; steps count from 1.
        preemptions: by name, how often it lost its blocks.
        computed: by name, the tokens computed for it.
        num_tokens: of all steps.
        num_steps: so far.
        usages: share of the pool that was held in each step.
    """

    def __init__(
        self,
        num_usable: int,
        block_size: int = 4,
        *,
        longest: int = 256,
        enable_prefix_caching: bool = True,
        **options: object,
    ) -> None:
        config = EngineConfig(model="none", max_model_len=longest, **options)  # type: ignore[arg-type]
        self.limits = limits = config.limits(longest)
        self.pool = BlockPool(num_usable + 1)
        self.manager = KVCacheManager(
            self.pool,
            [GroupSpec([LayerSpec(kv_heads=1, head_size_k=8)], block_size)],
            max_num_seqs=limits.max_num_seqs,
            max_model_len=longest,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
            hash_algo="xxh3",
        )
        rows, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        self.manager.bind(
            token_ids=np.zeros(tokens, np.int64),
            positions=np.zeros(tokens, np.int64),
            slot_mapping=[np.zeros(tokens, np.int64)],
            block_tables=[np.zeros((rows, self.manager.max_blocks_per_seq), np.int32)],
            seq_lens=np.zeros(rows, np.int32),
            cu_seqlens_q=np.zeros(rows + 1, np.int32),
            logits_indices=np.zeros(rows, np.int64),
            sample_rows=np.zeros(rows, np.int32),
            copies=np.zeros((rows, 2), np.int32),
        )
        self.scheduler = Scheduler(self.manager, self.pool, limits)
        self.requests: dict[str, Request] = {}
        self.ended: dict[str, int] = {}
        self.failed: dict[str, str] = {}
        self.first_token: dict[str, int] = {}
        self.preemptions: Counter[str] = Counter()
        self.computed: Counter[str] = Counter()
        self.num_tokens = 0
        self.num_steps = 0
        self.usages: list[float] = []

    @property
    def running(self) -> list[str]:
        """Names of the requests with a row, in order of admission."""
        return [request.request_id for request in self.scheduler.running.values()]

    @property
    def waiting(self) -> list[str]:
        """Names of the others, in the order in which they will be admitted."""
        return [request.request_id for request in self.scheduler.waiting]

    def add(
        self,
        name: str,
        prompt: int | Sequence[int],
        max_tokens: int,
        *,
        priority: int = 0,
        salt: str | None = None,
    ) -> Request:
        """Queue a request; a number stands for a prompt of that length that begins like no other."""
        if isinstance(prompt, int):
            prompt = [1000 + len(self.requests) + len(self.ended) + len(self.failed), *range(prompt - 1)]
        handle = self.manager.open(prompt, max_tokens=max_tokens, cache_salt=salt)
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(
            name, handle, None, params, 0, None, priority=priority, max_tokens=max_tokens, cache_salt=salt
        )
        self.requests[name] = request
        self.scheduler.add(request)
        return request

    def fork(self, name: str, twin: str) -> Request:
        """A request that goes on from where another one is, in a row of its own."""
        original = self.requests[name]
        (handle,) = self.manager.fork(original.handle, 1)
        request = replace(original, request_id=twin, handle=handle, arrival=len(self.requests))
        self.requests[twin] = request
        self.scheduler.running[handle] = request
        return request

    def abort(self, name: str) -> None:
        """End a request in whatever state it is."""
        request = self.requests.pop(name)
        self.manager.close(request.handle)
        self.scheduler.remove(request)

    def step(self) -> Schedule:
        """One step from schedule to commit."""
        schedule = self.scheduler.schedule()
        self.num_steps += 1
        self.num_tokens += schedule.num_tokens
        self.usages.append(1 - self.pool.num_free / self.pool.num_usable)
        for request in schedule.preempted:
            self.preemptions[request.request_id] += 1
        for request, reason in schedule.failed:
            self.failed[request.request_id] = reason
            self.abort(request.request_id)
        for name, request in self.requests.items():
            if self.manager.row(request.handle) is not None:
                self.computed[name] += len(self.manager.slots_of(request.handle))
        if schedule.num_tokens:
            self._commit()
        return schedule

    def _commit(self) -> None:
        step = self.manager.prepare()
        finished = self.manager.commit_step(step.step, [_TOKEN] * step.num_samples)
        for name, request in self.requests.items():
            if name not in self.first_token and self.manager.output_len(request.handle):
                self.first_token[name] = self.num_steps
        names = {request.handle: name for name, request in self.requests.items()} if finished else {}
        for row in finished:
            name = names[row.handle]
            self.ended[name] = self.manager.output_len(row.handle)
            self.abort(name)

    def run(self, most_steps: int = 100_000) -> None:
        """Step until nothing is left, which must be before ``most_steps``; nothing may be held then."""
        end = self.num_steps + most_steps
        while self.requests:
            assert self.num_steps < end, "the requests do not come to an end"
            self.step()
        self.assert_empty()

    def assert_empty(self) -> None:
        """Nothing is open, and every block is free."""
        self.manager.check_invariants()
        assert self.manager.num_open == 0
        assert self.pool.num_free == self.pool.num_usable
