"""Whatever the scheduler does, every request writes what it would have written alone.

Hypothesis draws arrivals, lengths, budgets, pool sizes, block sizes, thresholds, policies, priorities,
watermarks, salts, aborts between steps and within them, timeouts, failing steps, and tiers with slow or
failing copies. The oracle computes each text from its tokens, without engine, pool or cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from hypothesis import event, given
from hypothesis import strategies as st

from engine.made_up_model import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    assert_nothing_is_held,
    expected_output,
    made_up_engine,
)
from engine.slow_tier import SlowTier
from looseleaf import RequestOutput, SamplingParams
from looseleaf.engine.batch import StepBatch
from looseleaf.engine.config import SCHEDULING_POLICIES
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import RequestOutputKind
from looseleaf.tiers.base import Tier
from looseleaf.tiers.host import HostTier

MAX_MODEL_LEN = 40
TOKENS = st.integers(0, VOCAB_SIZE - 1)


@dataclass(frozen=True)
class Arrival:
    """A request, when it comes, and when it is aborted if it is, before a step or while that runs.

    A step takes a second of the timeout.
    """

    step: int
    prompt: TokenPrompt
    params: SamplingParams
    abort_at: int | None
    abort_within: bool
    timeout: int | None
    priority: int


@dataclass(frozen=True)
class Workload:
    """An engine and what happens to it."""

    options: dict[str, object]
    arrivals: list[Arrival]
    failing_passes: frozenset[int]


@st.composite
def arrivals(draw: st.DrawFn, trunk: list[int]) -> Arrival:
    """A prompt that shares some of ``trunk``, so that prefixes meet inside and at the edges of blocks."""
    shared = draw(st.integers(0, len(trunk)))
    own = draw(st.lists(TOKENS, min_size=0 if shared else 1, max_size=8))
    salt = draw(st.sampled_from([None, None, "a", "b"]))
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 30)))
    params = SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.0, 1.0])),
        top_k=draw(st.sampled_from([0, 3])),
        top_p=draw(st.sampled_from([1.0, 0.5])),
        seed=draw(st.one_of(st.none(), st.integers(0, 3))),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(max_tokens or 4, 4))),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.lists(TOKENS, max_size=2)),
        output_kind=draw(st.sampled_from(list(RequestOutputKind))),
    )
    return Arrival(
        step=draw(st.integers(0, 6)),
        prompt=TokenPrompt(trunk[:shared] + own, cache_salt=salt),
        params=params,
        abort_at=draw(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 25))),
        abort_within=draw(st.booleans()),
        timeout=draw(st.one_of(*[st.none()] * 6, st.integers(1, 25))),
        priority=draw(st.integers(-2, 2)),
    )


@st.composite
def tiers(draw: st.DrawFn, num_blocks: int) -> Callable[[torch.Tensor], Tier]:
    if draw(st.booleans()):
        return lambda cache: HostTier(cache, num_blocks)
    polls = draw(st.lists(st.integers(0, 8), min_size=1, max_size=4))
    failing = draw(st.frozensets(st.integers(1, 12), max_size=3))
    return lambda cache: SlowTier(cache, num_blocks, polls=polls, failing=failing)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    block_size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    longest = -(-MAX_MODEL_LEN // block_size)
    max_num_seqs = draw(st.integers(1, 8))
    options = {
        "block_size": block_size,
        "num_blocks": 1 + longest + draw(st.sampled_from([0, 0, 1, longest // 2, 10 * longest])),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw(st.sampled_from([0, 1, 5, 17, 64])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 3, 10])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "scheduling_policy": draw(st.sampled_from(SCHEDULING_POLICIES)),
        "priority_aging_steps": draw(st.sampled_from([0, 0, 1, 8])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.6])),
    }
    if draw(st.booleans()):
        options["tier"] = draw(tiers(num_blocks=draw(st.sampled_from([1, longest, 10 * longest]))))
    trunk = draw(st.lists(TOKENS, min_size=1, max_size=24))
    return Workload(
        options=options,
        arrivals=draw(st.lists(arrivals(trunk), min_size=1, max_size=9)),
        failing_passes=draw(st.one_of(st.just(frozenset()), st.frozensets(st.integers(1, 20), max_size=2))),
    )


def run(workload: Workload) -> tuple[LLMEngine, dict[str, RequestOutput]]:
    """Play a workload with the books checked after every step; returns the last output of every request."""
    step = 0
    engine, model = made_up_engine(max_model_len=MAX_MODEL_LEN, clock=lambda: float(step), **workload.options)
    model.errors = {number: RuntimeError("planted") for number in workload.failing_passes}
    outputs: dict[str, RequestOutput] = {}
    streamed: dict[str, list[int]] = {}

    def take(taken: list[RequestOutput]) -> None:
        for output in taken:
            assert output.request_id not in outputs or not outputs[output.request_id].finished
            streamed.setdefault(output.request_id, []).extend(output.outputs[0].token_ids)
            outputs[output.request_id] = output

    def abort(*, within: bool) -> None:
        for index, arrival in enumerate(workload.arrivals):
            if arrival.abort_at == step and arrival.abort_within == within:
                take(engine.abort_request([str(index)]))

    forward = model.forward

    def interrupted(batch: StepBatch) -> torch.Tensor:
        try:
            return forward(batch)
        finally:
            abort(within=True)

    model.forward = interrupted  # type: ignore[method-assign]
    while step < 7 or engine.has_unfinished_requests():
        for index, arrival in enumerate(workload.arrivals):
            if arrival.step == step:
                engine.add_request(
                    str(index),
                    arrival.prompt,
                    arrival.params,
                    priority=arrival.priority,
                    timeout=arrival.timeout,
                )
        abort(within=False)
        take(engine.step())
        engine.manager.check_invariants()
        step += 1
        assert step < 2000, "the workload does not come to an end"
    for name, output in outputs.items():
        if workload.arrivals[int(name)].params.output_kind is RequestOutputKind.DELTA:
            output.outputs[0].token_ids = streamed[name]
    assert_nothing_is_held(engine)
    return engine, outputs


def alone(arrival: Arrival, num_arrivals_before: int) -> tuple[list[int], str | None, object]:
    """What a request that draws random numbers writes in an engine of its own with room for everything."""
    engine, _ = made_up_engine(max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False)
    # Seeds that requests do not bring along follow from how many came before.
    for number in range(num_arrivals_before):
        engine.add_request(f"before {number}", TokenPrompt([0]), SamplingParams(max_tokens=1))
        engine.abort_request(f"before {number}")
    params = replace(arrival.params, output_kind=RequestOutputKind.FINAL_ONLY)
    engine.add_request("alone", arrival.prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            completion = output.outputs[0]
    return completion.token_ids, completion.finish_reason, completion.stop_reason


@given(workload=workloads())
def test_every_request_writes_what_it_would_write_alone(workload):
    engine, outputs = run(workload)
    event(f"policy: {workload.options['scheduling_policy']}")
    event(f"preemptions: {min(engine.stats.num_preemptions, 3)}")
    event(f"swapped in: {min(engine.stats.num_swaps_in, 3)}")
    event(f"fallbacks: {engine.stats.num_swap_fallbacks > 0}")
    event(f"cached tokens: {engine.stats.num_cached_tokens > 0}")
    order = sorted(range(len(workload.arrivals)), key=lambda index: (workload.arrivals[index].step, index))
    for before, index in enumerate(order):
        arrival = workload.arrivals[index]
        if arrival.abort_at is not None and arrival.abort_at < arrival.step:
            arrival = replace(arrival, abort_at=None)
        event(f"ended by: {outputs[str(index)].outputs[0].finish_reason}")
        if arrival.params.temperature:
            tokens, finish_reason, stop_reason = alone(arrival, before)
        else:
            tokens, finish_reason, stop_reason = expected_output(
                arrival.prompt.token_ids, arrival.params, max_model_len=MAX_MODEL_LEN
            )
        output = outputs[str(index)]
        completion = output.outputs[0]
        assert output.prompt_token_ids == arrival.prompt.token_ids
        if completion.finish_reason == "error":
            assert "planted" in (output.error or "")
            assert workload.failing_passes
        elif completion.finish_reason == "abort":
            assert arrival.abort_at is not None
        elif completion.finish_reason == "timeout":
            assert arrival.timeout is not None
        else:
            assert completion.finish_reason == finish_reason
            assert completion.stop_reason == stop_reason
            assert completion.token_ids == tokens
        assert completion.token_ids == tokens[: len(completion.token_ids)]
        if not workload.options["enable_prefix_caching"]:
            assert not output.num_cached_tokens


@given(workload=workloads())
def test_no_salt_sees_the_blocks_of_another(workload):
    """Each request has a salt of its own, so none may find anything cached, and all texts stay the same."""
    salted = [
        replace(
            arrival,
            prompt=replace(arrival.prompt, cache_salt=f"salt {index}"),
            abort_at=None,
            timeout=None,
        )
        for index, arrival in enumerate(workload.arrivals)
    ]
    engine, outputs = run(replace(workload, arrivals=salted, failing_passes=frozenset()))
    assert engine.stats.num_cached_tokens == 0
    assert {output.num_cached_tokens for output in outputs.values()} == {0}


@given(workload=workloads())
def test_a_second_run_over_the_same_cache_writes_the_same(workload):
    """The same prompts again in the same engine: more hits, no other token."""
    options = workload.options | {"enable_prefix_caching": True}
    engine, _ = made_up_engine(max_model_len=MAX_MODEL_LEN, **options)
    texts = []
    for turn in range(2):
        for index, arrival in enumerate(workload.arrivals):
            seed = index if arrival.params.seed is None else arrival.params.seed
            params = replace(arrival.params, seed=seed, output_kind=RequestOutputKind.FINAL_ONLY)
            engine.add_request(f"{turn} {index}", arrival.prompt, params, priority=arrival.priority)
        outputs = {}
        while engine.has_unfinished_requests():
            outputs |= {output.request_id: output for output in engine.step()}
        texts.append(
            [outputs[f"{turn} {index}"].outputs[0].token_ids for index in range(len(workload.arrivals))]
        )
    assert texts[0] == texts[1]
    assert_nothing_is_held(engine)


def test_the_oracle_sees_a_single_wrong_entry():
    """The test could fail: one swapped pair of block table entries changes what is written."""
    engine, model = made_up_engine()
    tokens, _, _ = expected_output(range(30), SamplingParams(temperature=0, max_tokens=8), max_model_len=64)

    class Swapped:
        vocab_size, eos_token_ids, max_model_len = model.vocab_size, model.eos_token_ids, 64

        def forward(self, batch):
            if batch.block_tables[0, 0] > 0:
                batch.block_tables[0, [0, 1]] = batch.block_tables[0, [1, 0]]
            return model.forward(batch)

    engine._runner._model = Swapped()
    engine.add_request("a", TokenPrompt(list(range(30))), SamplingParams(temperature=0, max_tokens=8))
    (output,) = engine.step()
    assert output.finished
    assert "AssertionError" in (output.error or "") or output.outputs[0].token_ids != tokens[:1]
    assert EOS_TOKEN_ID not in range(30)
