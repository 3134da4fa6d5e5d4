"""Preempted requests whose blocks are copied out and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from engine.made_up_model import (
    VOCAB_SIZE,
    assert_nothing_is_held,
    expected_output,
    made_up_engine,
    run_to_end,
)
from engine.slow_tier import AlwaysCopy, SlowTier
from looseleaf import LLM, SamplingParams
from looseleaf.engine import block_budget
from looseleaf.engine.config import SCHEDULING_POLICIES
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import RequestOutputKind
from looseleaf.engine.swap_cost import SwapCost
from looseleaf.errors import InvalidConfigError
from looseleaf.tiers.base import Tier
from looseleaf.tiers.host import HostTier
from tiny_models import random_prompts

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
TOGETHER = SamplingParams(ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
PROMPTS = {"a": range(10), "b": range(20, 30), "c": range(40, 47)}


@pytest.fixture(autouse=True)
def _no_growth(monkeypatch):
    """Admit whatever fits at the moment, so that somebody must give way."""
    monkeypatch.setattr(block_budget, "GROWTH_STEPS", 0)


def host(cache: torch.Tensor) -> Tier:
    return HostTier(cache, 100)


def run(engine: LLMEngine) -> LLMEngine:
    """Run the three prompts, which do not fit side by side for long; all texts must be right."""
    for name, prompt in PROMPTS.items():
        engine.add_request(name, TokenPrompt(list(prompt)), GREEDY)
    outputs = run_to_end(engine)
    for name, prompt in PROMPTS.items():
        expected, *_ = expected_output(prompt, GREEDY, max_model_len=64)
        assert outputs[name].outputs[0].token_ids == expected
    assert engine.stats.num_preemptions > 0
    return engine


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("tier", [host, SlowTier])
def test_what_is_copied_back_is_not_computed_again_and_is_no_hit(tier, policy, caching):
    engine, _ = made_up_engine(
        num_blocks=9, tier=tier, scheduling_policy=policy, enable_prefix_caching=caching
    )
    stats = run(engine).stats
    assert stats.num_recomputed_tokens == 0
    assert stats.num_cached_tokens == 0
    assert stats.num_swaps_out > 0
    assert stats.num_swap_fallbacks == 0
    size = engine.group.bytes_per_block
    assert stats.num_bytes_swapped_out % size == stats.num_bytes_swapped_in % size == 0
    assert 0 < stats.num_bytes_swapped_in <= stats.num_bytes_swapped_out
    counted = engine.manager.stats()
    assert counted["prefix_hits"] == 0
    assert counted["external_tokens"] > 0


def test_without_a_tier_tokens_are_computed_again():
    engine, _ = made_up_engine(num_blocks=9, enable_prefix_caching=False)
    stats = run(engine).stats
    assert stats.num_recomputed_tokens > 0
    assert (stats.num_swaps_out, stats.num_swaps_in, stats.num_swap_fallbacks) == (0, 0, 0)


@pytest.mark.parametrize("polls", [0, 6])
def test_a_prompt_that_was_half_computed_goes_on_where_it_was_while_others_compute_theirs(polls):
    engine, model = made_up_engine(
        num_blocks=11,
        max_num_seqs=3,
        max_num_batched_tokens=8,
        long_prefill_token_threshold=5,
        tier=lambda cache: SlowTier(cache, polls=[0, polls]),
        enable_prefix_caching=False,
    )
    prompts = {"writer": range(6), "half": range(10, 40), "newcomer": range(40, 47)}
    engine.add_request("writer", TokenPrompt(list(prompts["writer"])), replace(GREEDY, max_tokens=6))
    engine.add_request("half", TokenPrompt(list(prompts["half"])), replace(GREEDY, max_tokens=3))
    while not engine.stats.num_swaps_out:
        engine.step()
    (request,) = engine._requests["half"]
    assert 0 < request.num_lost_tokens < 29
    assert request.num_lost_tokens % 4, "its last block is part full"
    while not (engine.swapping.num_loading or engine.stats.num_swaps_in):
        engine.step()
    newcomer = TokenPrompt(list(prompts["newcomer"]))
    engine.add_request("newcomer", newcomer, replace(GREEDY, max_tokens=1))
    outputs = run_to_end(engine)
    for name in ("half", "newcomer"):
        params = replace(GREEDY, max_tokens=len(outputs[name].outputs[0].token_ids))
        expected, *_ = expected_output(prompts[name], params, max_model_len=64)
        assert outputs[name].outputs[0].token_ids == expected
    assert engine.stats.num_recomputed_tokens == 0
    assert engine.stats.num_prompt_tokens == sum(map(len, prompts.values()))
    assert sum(map(sum, model.rows)) == 6 + 5 + 30 + 2 + 7, "each token once"


def test_who_is_being_stored_waits_for_that_rather_than_compute_again():
    engine, _ = made_up_engine(
        num_blocks=9, tier=lambda cache: SlowTier(cache, polls=[20, 0]), enable_prefix_caching=False
    )
    short = range(20, 25)
    engine.add_request("long", TokenPrompt(list(range(18))), GREEDY)
    engine.add_request("short", TokenPrompt(list(short)), GREEDY)
    while not engine.swapping.busy:
        engine.step()
    engine.abort_request(["long"])
    assert engine.pool.num_free >= 4, "there is room for it"
    outputs = run_to_end(engine)
    assert outputs["short"].outputs[0].token_ids == expected_output(short, GREEDY, max_model_len=64)[0]
    assert engine.stats.num_swaps_in == 1
    assert engine.stats.num_recomputed_tokens == 0


@pytest.mark.parametrize("failing", [{1}, {2}, {1, 2, 3, 4, 5, 6}])
@pytest.mark.parametrize("polls", [0, 3])
@pytest.mark.parametrize("caching", [True, False])
def test_a_store_or_load_that_fails_means_computing_again(failing, polls, caching):
    engine, _ = made_up_engine(
        num_blocks=9,
        tier=lambda cache: SlowTier(cache, polls=[polls], failing=failing),
        enable_prefix_caching=caching,
    )
    stats = run(engine).stats
    assert stats.num_swap_fallbacks > 0
    if not caching:
        assert stats.num_recomputed_tokens > 0


@pytest.mark.parametrize("call", ["store", "load", "poll"])
def test_a_tier_that_raises_harms_nobody(call, caplog):
    class Broken(HostTier):
        pass

    def broken(*args: object) -> int:
        raise OSError("the disk is gone")

    setattr(Broken, call, broken)
    engine, _ = made_up_engine(num_blocks=9, tier=lambda cache: Broken(cache, 9), enable_prefix_caching=False)
    stats = run(engine).stats
    assert stats.num_swap_fallbacks > 0
    assert stats.num_recomputed_tokens > 0
    assert "the disk is gone" in caplog.text


@pytest.mark.parametrize(("bytes_per_second", "swaps"), [(1e15, True), (1.0, False)])
def test_the_quicker_of_copying_and_computing_is_done_and_the_log_has_both_figures_once(
    bytes_per_second, swaps, caplog
):
    caplog.set_level(logging.INFO, logger="looseleaf")
    engine, _ = made_up_engine(num_blocks=9, tier=host, enable_prefix_caching=False)
    engine.swapping.cost = SwapCost()
    engine.swapping.cost.count_copy(2**30, 2**30 / bytes_per_second)
    # Later copies are measured as well, and must not change the verdict here.
    engine.swapping.cost.count_copy = lambda num_bytes, seconds: None
    stats = run(engine).stats
    assert (stats.num_swaps_out > 0) == swaps
    assert (stats.num_recomputed_tokens == 0) == swaps
    assert stats.num_swap_fallbacks == 0
    (line,) = [message for message in caplog.messages if message.startswith("Swap: ")]
    assert "GiB/s" in line
    assert "tokens/s" in line


def test_what_the_prefix_cache_usually_keeps_is_not_counted_as_lost():
    asked: list[tuple[float, float]] = []

    class Recorded(AlwaysCopy):
        def prefers_copy(self, num_bytes: float, num_tokens: float) -> bool:
            asked.append((num_bytes, num_tokens))
            return False

    engine, _ = made_up_engine(num_blocks=9, tier=host)
    engine.swapping.cost = Recorded()
    size = engine.group.bytes_per_block

    def until_preempted() -> int:
        """The tokens that the victim had computed."""
        before = engine.stats.num_preemptions
        while engine.stats.num_preemptions == before:
            assert engine.has_unfinished_requests()
            engine.step()
        (victim,) = engine._scheduler.waiting
        return victim.num_lost_tokens

    for name in ("a", "b"):
        engine.add_request(name, TokenPrompt(list(PROMPTS[name])), GREEDY)
    computed = until_preempted()
    assert asked == [(2 * -(-computed // 4) * size, computed)], "all of it, out and in"
    engine.abort_request(["a"])
    engine.step()
    found = engine.manager.stats()["preempted_hits"]
    assert found == 12, "all full blocks but the one that somebody grew into"
    engine.add_request("c", TokenPrompt(list(range(30, 39))), GREEDY)
    computed = until_preempted()
    lost = 1 - found / engine.manager.stats()["preempted_queries"]
    assert lost < 0.3
    assert asked[1] == pytest.approx(((1 + lost) * -(-computed // 4) * size, lost * computed))
    run_to_end(engine)


def test_costs_are_those_of_recent_copies_and_of_the_fastest_recent_prompt():
    cost = SwapCost()
    assert not cost.prefers_copy(1, 10**9), "nothing is known yet"
    cost.count_copy(1000, 1.0)
    assert not cost.prefers_copy(1, 10**9), "no prompt was computed yet"
    cost.count_step(1, 0, 1e-9)
    assert cost.tokens_per_second is None, "a step that only writes says nothing"
    cost.count_step(100, 100, 1.0)
    cost.count_step(10, 1, 1.0)
    assert (cost.bytes_per_second, cost.tokens_per_second) == (1000, 100)
    # 1,000 bytes take as long as 100 tokens.
    assert cost.prefers_copy(999, 100)
    assert not cost.prefers_copy(1000, 100)
    for _ in range(32):
        cost.count_copy(10, 1.0)
        cost.count_step(5, 5, 1.0)
    assert (cost.bytes_per_second, cost.tokens_per_second) == (10, 5)


def test_what_is_stored_is_forgotten_with_the_prefix_cache():
    engine, _ = made_up_engine(num_blocks=9, tier=host)
    for name, prompt in PROMPTS.items():
        engine.add_request(name, TokenPrompt(list(prompt)), GREEDY)
    while not engine.stats.num_swaps_out:
        engine.step()
    assert not engine.reset_prefix_cache(), "somebody runs"
    assert not engine.swapping._tier.is_empty
    waits = {request.request_id for request in engine._scheduler.waiting}
    engine.abort_request(set(PROMPTS) - waits)
    assert engine.reset_prefix_cache()
    assert engine.swapping._tier.is_empty
    outputs = run_to_end(engine)
    for name in waits:
        expected, *_ = expected_output(PROMPTS[name], GREEDY, max_model_len=64)
        assert outputs[name].outputs[0].token_ids == expected
    assert engine.stats.num_swaps_in == 0


@st.composite
def tiers(draw: st.DrawFn) -> Callable[[torch.Tensor], Tier]:
    num_blocks = draw(st.sampled_from([2, 6, 100]))
    if draw(st.booleans()):
        return lambda cache: HostTier(cache, num_blocks)
    polls = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    failing = draw(st.frozensets(st.integers(1, 12), max_size=2))
    return lambda cache: SlowTier(cache, num_blocks, polls=polls, failing=failing)


@given(
    tier=tiers(),
    policy=st.sampled_from(["fcfs", "cost"]),
    block_size=st.sampled_from([1, 2, 4, 8]),
    spare=st.integers(0, 12),
    caching=st.booleans(),
    budget=st.sampled_from([6, 9, 40]),
    requests=st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 4), st.integers(0, 40)),
        min_size=2,
        max_size=5,
    ),
)
def test_samples_that_fork_write_what_separate_requests_would(
    tier, policy, block_size, spare, caching, budget, requests
):
    """Forks share blocks, are preempted each for itself, and some are aborted on the way."""
    longest = 24
    engine, _ = made_up_engine(
        num_blocks=1 + -(-longest // block_size) + spare,
        block_size=block_size,
        max_model_len=longest,
        max_num_seqs=6,
        max_num_batched_tokens=budget,
        scheduling_policy=policy,
        enable_prefix_caching=caching,
        tier=tier,
    )
    growth, block_budget.GROWTH_STEPS = block_budget.GROWTH_STEPS, 0
    prompts, aborted = [], {}
    for number, (length, max_tokens, n, abort_at) in enumerate(requests):
        # Odd ones begin alike.
        prompt = [(at * (1 if number % 2 else number + 3)) % VOCAB_SIZE for at in range(length)]
        params = replace(TOGETHER, max_tokens=max_tokens, n=n, seed=number)
        engine.add_request(str(number), TokenPrompt(prompt), params)
        prompts.append((prompt, params))
        if abort_at < 20:
            aborted[str(number)] = abort_at
    outputs, step = {}, 0
    try:
        while engine.has_unfinished_requests():
            for name in [name for name, at in aborted.items() if at == step]:
                outputs |= {output.request_id: output for output in engine.abort_request([name])}
            outputs |= {output.request_id: output for output in engine.step()}
            engine.manager.check_invariants()
            step += 1
            assert step < 2000
        assert_nothing_is_held(engine)
    finally:
        block_budget.GROWTH_STEPS = growth
    event(f"preemptions: {min(3, engine.stats.num_preemptions)}, in: {min(3, engine.stats.num_swaps_in)}")
    for number, (prompt, params) in enumerate(prompts):
        for sample, completion in enumerate(outputs[str(number)].outputs):
            expected = alone(prompt, replace(params, n=1, seed=number + sample), longest)
            if completion.finish_reason != "abort":
                assert completion.finish_reason == "length"
                assert completion.token_ids == expected
            assert completion.token_ids == expected[: len(completion.token_ids)]


def alone(prompt: Sequence[int], params: SamplingParams, max_model_len: int) -> list[int]:
    """What a request writes in an engine with room for everything."""
    engine, _ = made_up_engine(max_model_len=max_model_len)
    engine.add_request("alone", TokenPrompt(list(prompt)), params)
    return run_to_end(engine)["alone"].outputs[0].token_ids


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("slow", [False, True])
def test_a_real_model_writes_the_tokens_of_generate(name, slow, tiny_folder):
    folder, prompts = tiny_folder(name), random_prompts((33, 40, 50, 62, 8))
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    llm = LLM(
        str(folder),
        block_size=8,
        max_model_len=128,
        max_num_batched_tokens=128,
        num_gpu_blocks_override=30,
        enable_prefix_caching=False,
        swap_space=0.25,
    )
    engine = llm.llm_engine
    assert isinstance(engine.swapping._tier, HostTier)
    if slow:
        engine.swapping._tier = SlowTier(engine.swapping._tier._cache, polls=[2, 0, 5])
    engine.swapping.cost = AlwaysCopy()
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = torch.tensor([prompt])
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=60,
            do_sample=False,
            eos_token_id=-1,
        )
        assert output.outputs[0].token_ids == written[0, len(prompt) :].tolist()
    stats = engine.stats
    assert stats.num_swaps_in > 0
    assert stats.num_recomputed_tokens == 0
    assert stats.num_bytes_swapped_in % engine.group.bytes_per_block == 0
    assert_nothing_is_held(engine)


def test_swap_space_is_measured_at_the_start_and_refused_when_it_makes_no_sense(tiny_folder, caplog):
    caplog.set_level(logging.INFO, logger="looseleaf")
    folder = str(tiny_folder("llama"))
    llm = LLM(folder, num_gpu_blocks_override=40, swap_space=0.5)
    tier = llm.llm_engine.swapping._tier
    assert (tier.num_blocks, tier.num_free) == (39, 39), "never more than the pool has"
    assert llm.llm_engine.swapping.cost.bytes_per_second > 0
    assert any(message.startswith("Swap space: ") for message in caplog.messages)
    assert LLM(folder, num_gpu_blocks_override=40).llm_engine.swapping._tier is None
    with pytest.raises(InvalidConfigError, match=r"at most the machine's memory, .* GiB, found 1e"):
        LLM(folder, num_gpu_blocks_override=40, swap_space=1e9)
