"""Faults that other systems had with blocks on their way to or from another place.

A docstring names the case by letter and number and says where the fault was seen; the scenarios are ours. The
model reads what is in its blocks, so that a block filled late, twice or by somebody else changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine.made_up_model import (
    POSITIONS,
    IntegerMemory,
    expected_output,
    made_up_engine,
    run_to_end,
)
from engine.slow_tier import SlowTier
from looseleaf import SamplingParams
from looseleaf.engine import block_budget
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.tiers.base import BlockKey, CopyEnd, Tier
from looseleaf.tiers.host import HostTier

MAX_MODEL_LEN = 64
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(autouse=True)
def _no_growth(monkeypatch):
    """Admit whatever fits at the moment, so that somebody must give way."""
    monkeypatch.setattr(block_budget, "GROWTH_STEPS", 0)


def add(engine: LLMEngine, name: str, prompt: Sequence[int], params: SamplingParams = GREEDY) -> None:
    engine.add_request(name, TokenPrompt(list(prompt)), params)


def text_of(prompt: Sequence[int], params: SamplingParams = GREEDY) -> list[int]:
    return expected_output(prompt, params, max_model_len=MAX_MODEL_LEN)[0]


def blocks_of(engine: LLMEngine, name: str) -> list[int]:
    return engine.manager.block_ids(engine._requests[name][0].handle)


def step_until(engine: LLMEngine, condition) -> None:
    for _ in range(100):
        if condition():
            return
        engine.step()
    raise AssertionError("it never happened")


class Slow:
    """Makes a slow tier and keeps it."""

    def __init__(self, **options) -> None:
        self.options = options

    def __call__(self, cache: torch.Tensor) -> Tier:
        self.tier = SlowTier(cache, **self.options)
        return self.tier


def crowded(slow: Slow, **options) -> LLMEngine:
    """Two requests on five blocks, one of which has been preempted and stored; nothing is cached."""
    engine, _ = made_up_engine(
        num_blocks=9, tier=slow, enable_prefix_caching=False, max_model_len=MAX_MODEL_LEN, **options
    )
    add(engine, "stays", range(10))
    add(engine, "leaves", range(20, 30))
    step_until(engine, lambda: engine.stats.num_swaps_out)
    return engine


def is_loading(engine: LLMEngine, name: str):
    return lambda: engine.swapping.is_loading(engine._requests[name][0])


def test_blocks_of_an_aborted_load_are_held_until_its_deadline_and_a_late_word_is_ignored():
    """A7, vllm#46283 and #35943: the completion never came, and the blocks were held for ever."""
    slow = Slow(endless=[2])
    engine = crowded(slow)
    now = 0.0
    engine.swapping._clock = lambda: now
    step_until(engine, is_loading(engine, "leaves"))
    engine.abort_request(["leaves", "stays"])
    held = slow.tier.loaded_blocks
    assert held
    engine.step()
    assert engine.pool.num_usable - engine.pool.num_free == len(held)
    now = slow.tier.deadline_seconds + 1
    engine.step()
    assert engine.pool.num_free == engine.pool.num_usable
    assert engine.stats.num_swap_fallbacks == 1
    slow.tier.poll = lambda wait_seconds=0.0: [CopyEnd(2, True, 0.0)]
    add(engine, "next", range(5))
    assert run_to_end(engine)["next"].outputs[0].token_ids == text_of(range(5))


def test_a_load_that_never_ends_is_computed_after_its_deadline():
    """A7, as above, without an abort."""
    slow = Slow(endless=[2])
    engine = crowded(slow)
    now = 0.0
    engine.swapping._clock = lambda: now
    step_until(engine, is_loading(engine, "leaves"))
    while len(engine._requests) > 1:
        engine.step()
    assert engine.step() == [], "it waits, and that is no error"
    now = slow.tier.deadline_seconds + 1
    assert run_to_end(engine)["leaves"].outputs[0].token_ids == text_of(range(20, 30))
    assert engine.stats.num_recomputed_tokens > 0


@pytest.mark.parametrize("kind", [HostTier, SlowTier])
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_a_tier_smaller_than_the_victim_means_computing_again(kind, num_blocks):
    """D13, vllm#546, #5578 and #787: the engine stalled or aborted for want of swap space."""
    engine, _ = made_up_engine(
        num_blocks=9, tier=lambda cache: kind(cache, num_blocks), enable_prefix_caching=False
    )
    prompts = {"a": range(10), "b": range(20, 30)}
    for name, prompt in prompts.items():
        add(engine, name, prompt)
    outputs = run_to_end(engine)
    assert {name: output.outputs[0].token_ids for name, output in outputs.items()} == {
        name: text_of(prompt) for name, prompt in prompts.items()
    }
    assert engine.stats.num_preemptions > 0
    assert (engine.stats.num_swaps_out, engine.stats.num_bytes_swapped_out) == (0, 0)
    assert engine.stats.num_swap_fallbacks == engine.stats.num_preemptions
    assert engine.stats.num_recomputed_tokens > 0


def test_blocks_that_are_still_read_are_not_given_to_the_next():
    """E1, vllm#52360 and LMCache#4955: a preemption freed them, and wrong bytes were saved under the key.

    The tier reads at the end of its copy, and notices if anybody has written.
    """
    slow = Slow(polls=[7, 0])
    engine, _ = made_up_engine(num_blocks=9, tier=slow, enable_prefix_caching=False)
    add(engine, "stays", range(10))
    add(engine, "leaves", range(20, 30))
    step_until(engine, lambda: slow.tier.num_stores)
    assert engine.swapping.blocks_to_come() > 0
    # Somebody needs a block at once, and is not given one of those.
    add(engine, "newcomer", range(40, 44), SamplingParams(temperature=0, max_tokens=4))
    outputs = run_to_end(engine)
    assert outputs["leaves"].outputs[0].token_ids == text_of(range(20, 30))
    assert engine.stats.num_swaps_in == 1
    assert engine.stats.num_preemptions == 1, "who waits for blocks on their way takes no other victim"
    assert engine.stats.num_recomputed_tokens == 0


class Watched(SlowTier):
    """Notices a load into a block that somebody else has as well."""

    pool = None

    def load(self, keys: Sequence[BlockKey], block_ids: Sequence[int]) -> int:
        ref_cnt = self.pool.snapshot().ref_cnt
        assert [ref_cnt[block] for block in block_ids] == [1] * len(block_ids)
        return super().load(keys, block_ids)


@pytest.mark.parametrize("polls", [0, 1, 4])
def test_nothing_is_loaded_into_a_block_that_is_shared(polls):
    """E3, LMCache#2706: reads and writes of a shared prefix raced. The two share three and a half blocks."""
    tiers: list[Watched] = []

    def make(cache: torch.Tensor) -> Tier:
        tiers.append(Watched(cache, polls=[polls]))
        return tiers[0]

    engine, _ = made_up_engine(num_blocks=11, tier=make, max_num_seqs=3)
    tiers[0].pool = engine.pool
    prompts = {"a": [*range(14), 30], "b": [*range(14), 40, 41], "c": range(50, 57)}
    for name, prompt in prompts.items():
        add(engine, name, prompt)
    outputs = run_to_end(engine)
    assert tiers[0].num_loads > 0
    for name, prompt in prompts.items():
        assert outputs[name].outputs[0].token_ids == text_of(prompt)
    assert tiers[0].is_empty


def test_blocks_on_their_way_are_not_given_to_a_newcomer_when_their_request_is_aborted():
    """E4, sglang#35049 and vllm#32255: the late write landed in the new owner's blocks."""
    slow = Slow(polls=[0, 6])
    engine = crowded(slow)
    step_until(engine, is_loading(engine, "leaves"))
    engine.abort_request(["leaves"])
    add(engine, "newcomer", range(40, 50))
    while slow.tier.loaded_blocks:
        assert not slow.tier.loaded_blocks & set(blocks_of(engine, "newcomer"))
        assert not slow.tier.loaded_blocks & set(engine.pool.free_order()[: engine.pool.num_free])
        engine.step()
    outputs = run_to_end(engine)
    assert outputs["newcomer"].outputs[0].token_ids == text_of(range(40, 50))


def test_requests_that_share_a_prefix_start_together_after_one_load():
    """E5, vllm#44294: each waited for the load of the one before, 12 times as long for the last."""
    slow = Slow(polls=[5])
    engine, model = made_up_engine(num_blocks=100, tier=slow, max_num_seqs=8)
    prefix = list(range(40))
    put_into(slow.tier, engine, prefix)
    for number in range(8):
        add(engine, str(number), [*prefix, number])
    step_until(engine, lambda: model.rows)
    assert slow.tier.num_loads == 1
    assert model.rows == [[1] * 8], "all have their first token, for one token computed each"
    outputs = run_to_end(engine)
    for number in range(8):
        output = outputs[str(number)]
        assert output.outputs[0].token_ids == text_of([*prefix, number])
        assert output.num_cached_tokens == 40
    assert engine.manager.stats()["prefix_hits"] == 7 * 40, "what came from outside is no hit"


def put_into(tier: SlowTier, engine: LLMEngine, prefix: list[int]) -> None:
    """Have the tier hold the blocks of a prefix, as another server would have left them there."""
    memory = IntegerMemory(1 + len(prefix) // 4, 4)
    memory.slots[1:].flat[:] = [token * POSITIONS + at for at, token in enumerate(prefix)]
    handle = engine.manager.open(prefix)
    for key, content in zip(engine.manager.block_hashes(handle), memory.slots[1:], strict=True):
        tier.contents[key] = torch.from_numpy(content)
    engine.manager.close(handle)
