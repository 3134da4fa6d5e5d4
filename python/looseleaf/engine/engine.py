"""The loop: requests in, one step at a time, outputs out."""

from __future__ import annotations

import heapq
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from looseleaf._core import BlockPool, GroupSpec, KVCacheManager, StepInfo
from looseleaf.engine.batch import StepBuffers
from looseleaf.engine.beam_search import BeamSearch, BeamSearchParams
from looseleaf.engine.bounds import shown
from looseleaf.engine.completions import Completions, Ending
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.detokenizer import IncrementalDetokenizer, Tokenizer
from looseleaf.engine.model_runner import BlockStore, CausalModel, ModelRunner
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.random_stream import derived_seed
from looseleaf.engine.request import Request, check_priority, check_timeout
from looseleaf.engine.sampler import Sampled, Sampler
from looseleaf.engine.samples import SampleGroup
from looseleaf.engine.sampling_params import RequestOutputKind, SamplingParams
from looseleaf.engine.scheduler import Schedule, Scheduler
from looseleaf.engine.stats import EngineStats, HitRate, PeriodicLog
from looseleaf.engine.swapping import Swapping
from looseleaf.errors import BlocksInUseError, EngineError, RequestError
from looseleaf.tiers.base import Tier

logger = logging.getLogger(__name__)

# What a prompt is checked with where nothing is sampled.
_UNSAMPLED = SamplingParams()

_NOT_NUMBERS = "the model's logits are not numbers"


class LLMEngine:
    """Runs requests over one pool, a step at a time. Usable from one thread.

    Args:
        config: what was asked for.
        model: bound to ``store``.
        store: the contents of the pool's blocks.
        group: the model's layers, and what a block of them holds.
        num_blocks: blocks of the pool, the null block included.
        tokenizer: None if all prompts are token ids and nobody wants text.
        tier: where blocks of preempted requests go; by default they are computed again.
        clock: seconds that never go back; ``time.monotonic`` by default.

    Attributes:
        pool: the blocks.
        manager: the sequences that hold them.
        group: as given.
        limits: of a step and of a sequence.
        tokenizer: as given.
        stats: what has been done so far.
        swapping: moves blocks of preempted requests.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: CausalModel,
        store: BlockStore,
        group: GroupSpec,
        num_blocks: int,
        tokenizer: Tokenizer | None = None,
        tier: Tier | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.limits = config.limits(model.max_model_len)
        self.pool = BlockPool(num_blocks)
        self.manager = KVCacheManager(
            self.pool,
            [group],
            max_num_seqs=self.limits.max_num_seqs,
            max_model_len=self.limits.max_model_len,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
            hash_algo=config.hash_algorithm,
            # The pool is this process's own, so nobody else needs to compute the same hashes.
            hash_key=os.urandom(32) if config.hash_algorithm == "blake3" else None,
        )
        self.group = group
        self.tokenizer = tokenizer
        self.stats = EngineStats()
        self._model = model
        self._seed = config.seed
        self._num_added = 0
        self._buffers = StepBuffers(self.limits, group.block_size)
        self._buffers.bind(self.manager)
        self._sampler = Sampler(self.limits.max_num_seqs, model.vocab_size)
        self._runner = ModelRunner(model, store, self._buffers, self._sampler)
        self.swapping = Swapping(
            self.manager, self.pool, tier, bytes_per_block=group.bytes_per_block, stats=self.stats
        )
        self._scheduler = Scheduler(self.manager, self.pool, self.limits, self.swapping)
        self._completions = Completions(self.manager, tokenizer)
        # The samples of each request that have not ended.
        self._requests: dict[str, list[Request]] = {}
        self._by_handle: dict[int, Request] = {}
        self._by_row: list[Request | None] = [None] * self.limits.max_num_seqs
        # Requests that are looked at whenever they get a token: they stream, or have stop strings.
        self._watched: dict[int, Request] = {}
        self._token_of_row = np.full(self.limits.max_num_seqs, -1, np.int32)
        self._clock = time.monotonic if clock is None else clock
        # When requests must have ended, the earliest first, each with its samples; some have ended since.
        self._deadlines: list[tuple[float, int, list[Request]]] = []
        self._hit_rate = HitRate()
        self._log = PeriodicLog(self.stats, self._clock())

    def check(self, prompt: TokenPrompt, params: SamplingParams) -> None:
        """Refuse what could not be served; nothing is changed.

        Raises:
            RequestError: the prompt is empty, has a token that the model does not know, leaves no room for an
                output, or can never fit in the pool; or the parameters do not suit the model.
        """
        num_tokens = len(prompt.token_ids)
        if not num_tokens:
            raise RequestError("the prompt is empty: at least one token is needed")
        self._check_vocabulary("prompt_token_ids", prompt.token_ids)
        if num_tokens >= self.limits.max_model_len:
            raise RequestError(
                f"a prompt of {num_tokens} tokens leaves no room for an output: prompt and output may have"
                f" max_model_len={self.limits.max_model_len} tokens together, so the prompt at most"
                f" {self.limits.max_model_len - 1}"
            )
        if params.n > self.limits.max_num_seqs:
            raise RequestError(
                f"n must be at most max_num_seqs ({self.limits.max_num_seqs}), the rows of a step,"
                f" found {params.n}"
            )
        if reason := self._scheduler.never_fits(num_tokens):
            raise RequestError(f"the prompt can never fit: {reason}")
        self.check_params(params)

    def check_params(self, params: SamplingParams) -> None:
        """Refuse parameters that do not suit the model, whatever the prompt; nothing is changed.

        Raises:
            RequestError: they stop at a token that the model does not know, or at text that it never writes.
        """
        self._check_vocabulary("stop_token_ids", params.stop_ids)
        if params.stop_strings and self.tokenizer is None:
            raise RequestError(
                "stop needs text to look in, and the model has no tokenizer: use stop_token_ids"
            )

    def add_request(
        self,
        request_id: str,
        prompt: TokenPrompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Queue a request.

        Args:
            request_id: a name that no running request has.
            prompt: token ids, the text they were made of, and a salt.
            params: how to sample.
            priority: smaller numbers come first, under the policy ``priority``.
            timeout: seconds from now after which the request is ended, waiting or running, with the reason
                ``timeout`` and what it has written; looked at before each step. vLLM has no such argument.

        Raises:
            RequestError: the name is taken, the priority is not an integer, the timeout is not a number above
                0, or :meth:`check` refuses the request.
        """
        if request_id in self._requests:
            raise RequestError(f"request_id {request_id!r} belongs to a request that has not ended")
        check_priority(priority)
        check_timeout(timeout)
        self.check(prompt, params)
        if not self._requests:
            self._log.restart(self._clock())
        room = self.limits.max_model_len - len(prompt.token_ids)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        handle = self.manager.open(
            prompt.token_ids,
            cache_salt=prompt.cache_salt,
            max_tokens=max_tokens,
            min_tokens=min(params.min_tokens, max_tokens),
            eos_token_ids=() if params.ignore_eos else self._model.eos_token_ids,
            stop_token_ids=params.stop_ids,
        )
        samples = []
        group = SampleGroup(params.n, params.output_kind) if params.n > 1 else None
        for index in range(params.n):
            own = derived_seed(self._seed, self._num_added)
            samples.append(
                Request(
                    request_id=request_id,
                    handle=0 if index else handle,
                    prompt=prompt.text,
                    params=params,
                    seed=own if params.seed is None else params.seed + index,
                    detokenizer=self._detokenizer(prompt, params),
                    priority=priority,
                    max_tokens=max_tokens,
                    cache_salt=prompt.cache_salt,
                    index=index,
                    group=group,
                )
            )
            self._num_added += 1
        samples[0].siblings = samples[1:]
        self._requests[request_id] = samples
        if timeout is not None:
            heapq.heappush(self._deadlines, (self._clock() + timeout, self._num_added, samples))
        self._note(samples[0])
        self._scheduler.add(samples[0])

    def beam_search(self, prompts: Sequence[TokenPrompt], params: BeamSearchParams) -> BeamSearch:
        """A search for these prompts that the caller drives; no request may run meanwhile.

        Raises:
            EngineError: requests have not ended.
            RequestError: a prompt or the parameters cannot be served.
        """
        if self._requests:
            raise EngineError(
                f"a beam search needs the engine for itself: {len(self._requests)} requests have not ended"
            )
        for prompt in prompts:
            self.check(prompt, _UNSAMPLED)
        return BeamSearch(
            self.manager,
            self.pool,
            self._runner,
            self._buffers,
            self.limits,
            vocab_size=self._model.vocab_size,
            end_ids=self._model.eos_token_ids,
            prompts=[(prompt.token_ids, prompt.cache_salt) for prompt in prompts],
            params=params,
        )

    def abort_request(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests in whatever state they are; ids that name none, or none any more, are passed over.

        May be called while a step runs, from within the model; blocks that the step writes to come back with
        its end, all others at once.

        Returns:
            the last output of each request that was ended, with what it had written.
        """
        ids = [request_ids] if isinstance(request_ids, str) else request_ids
        outputs = []
        for name in ids:
            if (samples := self._requests.get(name)) is not None:
                outputs += self._end_all(samples, Ending("abort"))
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Whether a step would have anything to do."""
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    def step(self) -> list[RequestOutput]:
        """Compute one step.

        An exception in the model ends the requests of the step with the reason ``error``; the others go on.
        Requests whose time is up are ended before it.

        Returns:
            an output for each request that ended, and for each one that streams and got a token.

        Raises:
            EngineError: there are requests, and nothing can be done for any of them.
        """
        if not self._requests:
            self.swapping.landed()
            return []
        outputs = self._end_overdue()
        if not self._requests:
            return outputs
        schedule = self._scheduler.schedule()
        for request in schedule.forked:
            self._note(request)
        for request, reason in schedule.failed:
            outputs += self._end(request, Ending("error", error=reason))
        self._seat(schedule)
        if schedule.num_tokens:
            outputs += self._compute(schedule)
        elif self.swapping.busy:
            self.swapping.wait()
        self._log.report(
            self._clock(),
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            usage=self._blocks_in_use() / self.pool.num_usable,
            hit_percent=self._hit_rate.percent,
        )
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing is forgotten, while requests hold some."""
        try:
            self.pool.reset_prefix_cache()
        except BlocksInUseError as error:
            logger.warning("The prefix cache is not reset: %s", error)
            return False
        self.swapping.clear()
        self._hit_rate.clear()
        return True

    def _check_vocabulary(self, name: str, ids: Iterable[int]) -> None:
        vocab_size = self._model.vocab_size
        for token in ids:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"{name} must be from 0 to {vocab_size - 1}, the vocabulary, found {shown(token)}"
                )

    def _detokenizer(self, prompt: TokenPrompt, params: SamplingParams) -> IncrementalDetokenizer | None:
        """For a request whose text somebody watches as it grows."""
        streams = params.output_kind is not RequestOutputKind.FINAL_ONLY
        if self.tokenizer is None or not params.detokenize or not (streams or params.stop_strings):
            return None
        return IncrementalDetokenizer(
            self.tokenizer,
            prompt.token_ids,
            stop=params.stop_strings,
            min_tokens=params.min_tokens,
            skip_special_tokens=params.skip_special_tokens,
            include_stop=params.include_stop_str_in_output,
        )

    def _note(self, request: Request) -> None:
        """Know a request by the sequence that it has from now on."""
        self._by_handle[request.handle] = request
        if request.detokenizer is not None or request.streams:
            self._watched[request.handle] = request

    def _seat(self, schedule: Schedule) -> None:
        """Note what only changes when a request takes or loses its row."""
        for request in (*schedule.admitted, *schedule.forked):
            if request.handle not in self._scheduler.running:
                continue  # it forked off and lost its row again in one step
            row = self.manager.row(request.handle)
            assert row is not None, "it runs"
            self._by_row[row] = request
            self._sampler.set_row(
                row,
                request.params,
                seed=request.seed,
                prompt_len=self._prompt_len(request),
                end_ids=(*self._model.eos_token_ids, *request.params.stop_ids),
            )
        for request in schedule.started:
            hit = request.num_cached_tokens or 0
            self._hit_rate.record(self._prompt_len(request), hit)
            self.stats.num_cached_tokens += hit
        self.stats.num_preemptions += len(schedule.preempted)

    def _compute(self, schedule: Schedule) -> list[RequestOutput]:
        self.stats.peak_blocks_in_use = max(self.stats.peak_blocks_in_use, self._blocks_in_use())
        step = self.manager.prepare()
        began = time.perf_counter()
        try:
            sampled = self._runner.run(step)
        except BaseException as error:
            outputs = self._fail(step, error)
            if not isinstance(error, Exception):
                raise
            return outputs
        num_prefill_tokens = schedule.num_prompt_tokens + schedule.num_recomputed_tokens
        self.swapping.cost.count_step(schedule.num_tokens, num_prefill_tokens, time.perf_counter() - began)
        self.stats.num_steps += 1
        self.stats.num_prompt_tokens += schedule.num_prompt_tokens
        self.stats.num_recomputed_tokens += schedule.num_recomputed_tokens
        self.stats.num_generation_tokens += step.num_samples
        return self._commit(step, sampled)

    def _fail(self, step: StepInfo, error: BaseException) -> list[RequestOutput]:
        """End the requests of a step that did not happen."""
        handles = self.manager.fail_step(step.step)
        affected = [self._by_handle[handle] for handle in handles if handle in self._by_handle]
        logger.error("A step failed and ends its %d requests", len(affected), exc_info=error)
        ending = Ending("error", error=f"the step failed: {type(error).__name__}: {error}")
        return [output for request in affected for output in self._end(request, ending)]

    def _commit(self, step: StepInfo, sampled: Sampled) -> list[RequestOutput]:
        rows = self._buffers.sample_rows(step)
        outputs = []
        for row in rows[sampled.broken]:
            request = self._by_row[row]
            if request is not None and request.handle in self._by_handle:  # not aborted meanwhile
                outputs += self._end(request, Ending("error", error=_NOT_NUMBERS))
        grown = self._watched_tokens(rows, sampled)
        finished = {row.handle: row.reason for row in self.manager.commit_step(step.step, sampled.token_ids)}
        for request, token in grown:
            outputs += self._advance(request, token, finished.pop(request.handle, None))
        for handle, reason in finished.items():
            request = self._by_handle[handle]
            outputs += self._end(request, self._ending(request, reason))
        return outputs

    def _watched_tokens(self, rows: npt.NDArray[np.int32], sampled: Sampled) -> list[tuple[Request, int]]:
        """The watched requests that get a token in this step; the cost grows with them, not with the rows."""
        if not self._watched:
            return []
        self._token_of_row[rows] = sampled.token_ids
        grown = []
        for handle, request in self._watched.items():
            row = self.manager.row(handle)
            if row is not None and self._token_of_row[row] >= 0:
                grown.append((request, int(self._token_of_row[row])))
        self._token_of_row[rows] = -1
        return grown

    def _advance(self, request: Request, token: int, reason: str | None) -> list[RequestOutput]:
        """Take a token in that somebody watches for."""
        if request.detokenizer is not None:
            stop = request.detokenizer.append(token, is_stop_token=reason in ("eos", "stop_token"))
            if stop is not None:
                return self._end(request, Ending("stop", stop_reason=stop))
        if reason is not None:
            return self._end(request, self._ending(request, reason))
        return _collected(request, self._completions.progress(request)) if request.streams else []

    def _ending(self, request: Request, reason: str) -> Ending:
        """The ending that the manager's ``reason`` stands for."""
        if reason == "length":
            return Ending("length")
        if reason == "eos":
            return Ending("stop", by_token=True)
        return Ending("stop", stop_reason=self.manager.tokens(request.handle)[-1], by_token=True)

    def _end_overdue(self) -> list[RequestOutput]:
        """End the requests whose time is up."""
        outputs: list[RequestOutput] = []
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            _, _, samples = heapq.heappop(self._deadlines)
            outputs += self._end_all(samples, Ending("timeout"))
        return outputs

    def _end_all(self, samples: list[Request], ending: Ending) -> list[RequestOutput]:
        """End what has not ended of a request."""
        outputs = []
        while samples:  # the first of them ends those that have not forked off yet
            outputs += self._end(samples[0], ending)
        return outputs

    def _end(self, request: Request, ending: Ending) -> list[RequestOutput]:
        """End a request, and samples that were to fork off from it."""
        output = self._completions.final(request, ending)
        outputs = _collected(request, output)
        for sibling in request.siblings:
            outputs += _collected(sibling, self._completions.unwritten(sibling, output, ending))
        self.manager.close(request.handle)
        self._scheduler.remove(request)
        self._watched.pop(request.handle, None)
        del self._by_handle[request.handle]
        samples = self._requests[request.request_id]
        samples[:] = [sample for sample in samples if sample is not request and sample.handle]
        if not samples:
            del self._requests[request.request_id]
        counts = self.stats.num_finished
        counts[ending.finish_reason] = counts.get(ending.finish_reason, 0) + 1 + len(request.siblings)
        return outputs

    def _prompt_len(self, request: Request) -> int:
        return self.manager.num_tokens(request.handle) - self.manager.output_len(request.handle)

    def _blocks_in_use(self) -> int:
        return self.pool.num_usable - self.pool.num_free


def _collected(request: Request, output: RequestOutput) -> list[RequestOutput]:
    """What of a sample's output is handed out now."""
    if request.group is None:
        return [output]
    collected = request.group.collect(request.index, output)
    return [] if collected is None else [collected]
