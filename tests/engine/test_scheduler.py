"""Who computes what in which step. Letters and numbers in brackets name field cases; figures of vLLM 0.32.0
are those that it was seen to produce on the same workload.
"""

from __future__ import annotations

import pytest

from engine.made_up_model import (
    EOS_TOKEN_ID,
    assert_nothing_is_held,
    expected_output,
    made_up_engine,
    run_to_end,
)
from looseleaf import SamplingParams
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import RequestOutputKind
from looseleaf.errors import EngineError, RequestError


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def add(
    engine: LLMEngine, name: str, length: int, max_tokens: int, *, first: int = 0, **options: object
) -> None:
    """A prompt of ``length`` tokens that begins like all others with the same ``first``."""
    tokens = [(first + position) % EOS_TOKEN_ID for position in range(length)]
    engine.add_request(name, TokenPrompt(tokens), greedy(max_tokens, **options))


def steps_to_first_token(engine: LLMEngine, name: str) -> int:
    steps = 0
    while True:
        steps += 1
        if any(output.request_id == name and output.outputs[0].token_ids for output in engine.step()):
            return steps


# --- Budget -------------------------------------------------------------------------------------------------


def test_a_short_newcomer_behind_a_long_prompt_has_its_first_token_within_two_steps():  # [D11]
    engine, model = made_up_engine(num_blocks=100, max_model_len=200, max_num_batched_tokens=16)
    add(engine, "writer", 3, 50, first=1)
    engine.step()
    add(engine, "long", 100, 1, first=2)
    engine.step()
    add(engine, "short", 4, 5, first=3)
    assert steps_to_first_token(engine, "short") <= 2
    writer = engine.manager.row(next(iter(engine._scheduler.running)))
    assert all(rows[writer] == 1 for rows in model.rows[1:]), "whoever writes gets a token in every step"
    assert all(sum(rows) == 16 for rows in model.rows[1:4]), "no part of the budget is wasted meanwhile"
    run_to_end(engine)


def test_a_short_newcomer_is_not_held_up_by_several_long_prompts():
    engine, _ = made_up_engine(num_blocks=200, max_model_len=200, max_num_batched_tokens=16, max_num_seqs=8)
    for number in range(5):
        add(engine, f"long {number}", 100, 1, first=number)
    for _ in range(8):
        engine.step()
    add(engine, "short", 8, 5, first=30)
    assert steps_to_first_token(engine, "short") <= 2
    run_to_end(engine)


def test_a_short_newcomer_is_not_held_up_by_long_prompts_that_come_with_it():
    # The first long one has no more than a chunk to go when the second one starts.
    engine, model = made_up_engine(num_blocks=200, max_model_len=200, max_num_batched_tokens=27)
    add(engine, "long", 40, 1, first=1)
    add(engine, "long too", 40, 1, first=2)
    add(engine, "short", 1, 5, first=30)
    assert steps_to_first_token(engine, "short") <= 2
    assert all(sum(rows) == 27 for rows in model.rows)
    run_to_end(engine)


def test_long_prompts_alone_are_served_one_after_the_other():
    engine, model = made_up_engine(num_blocks=100, max_model_len=200, max_num_batched_tokens=16)
    add(engine, "a", 64, 1, first=1)
    add(engine, "b", 64, 1, first=2)
    run_to_end(engine)
    assert model.rows[:8] == [[16]] * 4 + [[16]] * 4


def test_a_stream_of_short_prompts_does_not_stop_a_long_one():
    engine, _ = made_up_engine(num_blocks=400, max_model_len=400, max_num_batched_tokens=16, max_num_seqs=16)
    add(engine, "long", 160, 1)
    done = False
    for number in range(40):
        add(engine, str(number), 8, 1, first=number)
        add(engine, f"{number} too", 8, 1, first=number + 7)
        done |= any(output.request_id == "long" and output.finished for output in engine.step())
    assert done, "half of each step's budget was its own"
    run_to_end(engine)


@pytest.mark.parametrize("threshold", [1, 5, 64])
def test_no_step_computes_more_of_a_prompt_than_the_threshold(threshold):
    engine, model = made_up_engine(
        num_blocks=100, max_model_len=200, max_num_batched_tokens=32, long_prefill_token_threshold=threshold
    )
    add(engine, "a", 50, 3)
    add(engine, "b", 50, 3, first=9)
    run_to_end(engine)
    assert max(max(rows) for rows in model.rows) == min(threshold, 32)


def test_identical_prompts_of_one_step_are_computed_once():
    engine, model = made_up_engine(num_blocks=64, block_size=4)
    for name in "abc":
        add(engine, name, 18, 1)
    outputs = run_to_end(engine)
    # vLLM 0.32.0 schedules the same 18, 2 and 2 tokens.
    assert model.rows == [[18, 2, 2]]
    assert [outputs[name].num_cached_tokens for name in "abc"] == [0, 16, 16]


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
)
def test_a_repeated_prompt_computes_at_least_its_last_token(length, cached):
    # The lengths and hits at block size 4 are those of vLLM 0.32.0.
    engine, _ = made_up_engine()
    hits = []
    for name in "ab":
        add(engine, name, length, 2)
        hits.append(run_to_end(engine)[name].num_cached_tokens)
    assert hits == [0, cached]


@pytest.mark.parametrize(
    ("block_size", "reused", "shared", "in_all"), [(16, 992, 62, 112), (128, 896, 7, 57)]
)
def test_fifty_chats_share_the_blocks_of_their_system_prompt(block_size, reused, shared, in_all):
    engine, _ = made_up_engine(
        num_blocks=300,
        block_size=block_size,
        max_model_len=1100,
        max_num_seqs=50,
        max_num_batched_tokens=8192,
    )
    system = [position * 7 % EOS_TOKEN_ID for position in range(1000)]
    engine.add_request("system", TokenPrompt(system), greedy(1))
    run_to_end(engine)
    for chat in range(50):
        # Five tokens of its own and three that it writes, of which the last needs no place in the cache.
        own = [chat % EOS_TOKEN_ID, chat // EOS_TOKEN_ID, 3, 4, 5]
        engine.add_request(str(chat), TokenPrompt(system + own), greedy(4))
    for _ in range(3):
        engine.step()
    assert engine.manager.num_running == 50
    assert engine.pool.num_usable - engine.pool.num_free == in_all
    tables = [engine.manager.block_ids(handle, 0) for handle in engine._scheduler.running]
    assert len(set.intersection(*map(set, tables))) == shared
    outputs = run_to_end(engine)
    assert {output.num_cached_tokens for output in outputs.values()} == {reused}


# --- Blocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_requests", "steps", "preemptions", "tokens"), [(2, 52, 1, 94), (3, 75, 3, 157), (4, 98, 5, 216)]
)
def test_a_crowded_pool_is_shared_no_worse_than_vllm_does(num_requests, steps, preemptions, tokens):  # [D9]
    engine, model = made_up_engine(num_blocks=12, block_size=4, max_model_len=44, max_num_batched_tokens=64)
    for number in range(num_requests):
        add(engine, str(number), 8, 32, first=7 * number)
    outputs = run_to_end(engine)
    assert len(outputs) == num_requests
    assert engine.stats.num_preemptions <= preemptions
    assert sum(map(sum, model.rows)) <= tokens
    assert len(model.rows) <= steps
    if num_requests == 4:
        assert engine.stats.num_preemptions < preemptions
        assert sum(map(sum, model.rows)) < tokens


def test_a_crowd_over_one_cached_prefix_is_served_no_worse_than_by_vllm():
    engine, model = made_up_engine(
        num_blocks=97, block_size=4, max_model_len=300, max_num_seqs=32, max_num_batched_tokens=512
    )
    prefix = [position * 7 % EOS_TOKEN_ID for position in range(59 * 4)]
    engine.add_request("first", TokenPrompt([*prefix, 0]), greedy(1))
    run_to_end(engine)
    model.rows.clear()
    for number in range(32):
        engine.add_request(str(number), TokenPrompt([*prefix, number]), greedy(16))
    run_to_end(engine)
    assert len(model.rows) <= 37
    assert engine.stats.num_preemptions <= 23
    assert sum(map(sum, model.rows)) <= 648


def test_two_requests_that_fit_alone_do_not_evict_each_other_for_ever():  # [D15]
    engine, _ = made_up_engine(num_blocks=5, block_size=4, max_model_len=16)
    add(engine, "a", 8, 8, first=1)
    add(engine, "b", 8, 8, first=2)
    outputs = run_to_end(engine)
    assert engine.stats.num_preemptions <= 1
    for name, first in (("a", 1), ("b", 2)):
        alone, _, _ = expected_output(list(range(first, first + 8)), greedy(8), max_model_len=16)
        assert outputs[name].outputs[0].token_ids == alone


def test_the_newest_gives_way_and_is_the_first_to_come_back():
    engine, _ = made_up_engine(num_blocks=7, block_size=4, max_model_len=24, enable_prefix_caching=False)
    for name, first in (("a", 1), ("b", 2), ("c", 3), ("d", 4)):
        add(engine, name, 5, 11, first=first)
    for _ in range(4):
        engine.step()
    names = {handle: request.request_id for handle, request in engine._by_handle.items()}
    assert [names[handle] for handle in engine._scheduler.running] == ["a", "b", "c"]
    engine.step()
    # Both older rows need a third block, which takes all that the newest had.
    assert [names[handle] for handle in engine._scheduler.running] == ["a", "b"]
    assert [request.request_id for request in engine._scheduler.waiting] == ["c", "d"]
    outputs = run_to_end(engine)
    assert all(output.num_cached_tokens == 0 for output in outputs.values())
    assert engine.stats.num_recomputed_tokens > 0


def test_tokens_found_again_after_a_preemption_are_no_hits():
    engine, _ = made_up_engine(num_blocks=7, block_size=4, max_model_len=24)
    for name, first in (("a", 1), ("b", 2), ("c", 3)):
        add(engine, name, 8, 10, first=first)
    outputs = run_to_end(engine)
    assert engine.stats.num_preemptions > 0
    assert [outputs[name].num_cached_tokens for name in "abc"] == [0, 0, 0]
    assert engine.stats.num_cached_tokens == 0
    assert engine.stats.num_prompt_tokens == 24


def test_a_prompt_larger_than_the_pool_is_refused_and_the_next_one_runs():  # [D1]
    engine, _ = made_up_engine(num_blocks=5, block_size=4, max_model_len=200)
    with pytest.raises(RequestError, match="100 tokens need 25 blocks of 4 tokens, and the whole pool has 4"):
        add(engine, "large", 100, 1)
    add(engine, "small", 3, 2)
    assert run_to_end(engine)["small"].outputs[0].finish_reason == "length"


def test_a_request_that_outgrows_the_pool_ends_alone_and_says_why():  # [D4]
    engine, _ = made_up_engine(num_blocks=6, block_size=4, max_model_len=200)
    add(engine, "large", 12, 40)
    add(engine, "small", 4, 2, first=9)
    outputs = run_to_end(engine)
    large = outputs["large"]
    assert large.outputs[0].finish_reason == "error"
    assert "21 tokens need 6 blocks of 4 tokens, and the whole pool has 5" in (large.error or "")
    alone, _, _ = expected_output(list(range(12)), greedy(40), max_model_len=200)
    assert large.outputs[0].token_ids == alone[:9]
    assert outputs["small"].outputs[0].finish_reason == "length"


def test_large_max_tokens_reserve_nothing():  # [D10]
    engine, _ = made_up_engine(num_blocks=9, block_size=4, max_model_len=32)
    prompt = [5, 6, 7]
    third = expected_output(prompt, greedy(3), max_model_len=32)[0][2]
    engine.add_request("greedy", TokenPrompt(prompt), greedy(29, stop_token_ids=[third]))
    for number in range(3):
        add(engine, str(number), 4, 3, first=20 + number)
    engine.step()
    assert engine.manager.num_running == 4
    run_to_end(engine)


def test_no_one_is_admitted_in_a_step_that_took_blocks_away():
    engine, model = made_up_engine(num_blocks=6, block_size=4, max_model_len=20, enable_prefix_caching=False)
    add(engine, "a", 5, 11, first=1)
    add(engine, "b", 5, 11, first=2)
    for _ in range(4):
        engine.step()
    add(engine, "c", 4, 1, first=3)
    engine.step()  # the fifth block goes to a, and b has to give way
    assert engine.stats.num_preemptions == 1
    assert model.rows[-1] == [1], "c would fit, but into blocks that a needs soon"
    run_to_end(engine)


def test_a_step_that_can_do_nothing_says_why_and_the_engine_goes_on_when_it_can():
    engine, _ = made_up_engine(num_blocks=9, block_size=4)
    add(engine, "a", 12, 2)
    outside = engine.pool.allocate(6)
    with pytest.raises(
        EngineError, match=r"0 requests run and 1 wait; the first needs 3 blocks, and 2 of 8 are free"
    ):
        engine.step()
    outside.release()
    assert run_to_end(engine)["a"].outputs[0].finish_reason == "length"


# --- Leaving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(8))
def test_an_abort_in_any_state_gives_the_blocks_back_and_harms_nobody(steps):  # [D14, A10]
    # After 0 steps b waits; after 1 and 2 it is amid its prompt; later it writes, and is preempted.
    engine, _ = made_up_engine(
        num_blocks=8, block_size=4, max_model_len=28, max_num_batched_tokens=6, max_num_seqs=3
    )
    add(engine, "a", 9, 12, first=1)
    add(engine, "b", 11, 12, first=2)
    outputs = {}
    for _ in range(steps):
        outputs.update((output.request_id, output) for output in engine.step())
    (aborted,) = engine.abort_request(["b", "b", "nobody"])
    assert aborted.outputs[0].finish_reason == "abort"
    assert aborted.finished
    full, _, _ = expected_output(list(range(2, 13)), greedy(12), max_model_len=28)
    assert full[: len(aborted.outputs[0].token_ids)] == aborted.outputs[0].token_ids
    assert engine.abort_request(["b"]) == []
    engine.manager.check_invariants()
    outputs = run_to_end(engine)
    assert (
        outputs["a"].outputs[0].token_ids
        == expected_output(list(range(1, 10)), greedy(12), max_model_len=28)[0]
    )


def test_a_name_can_be_used_again_after_an_abort_but_not_before():
    engine, _ = made_up_engine()
    add(engine, "a", 5, 2)
    with pytest.raises(RequestError, match="'a' belongs to a request that has not ended"):
        add(engine, "a", 5, 2)
    engine.abort_request("a")
    add(engine, "a", 5, 2)
    run_to_end(engine)


def test_refused_requests_never_touch_the_pool():  # [A6]
    engine, _ = made_up_engine(max_model_len=32)
    order = engine.pool.free_order()
    for number in range(50):
        with pytest.raises(RequestError, match="leaves no room for an output"):
            add(engine, str(number), 32 + number, 1)
    assert engine.pool.free_order() == order
    assert_nothing_is_held(engine)


def test_outputs_of_a_stream_are_what_was_written_so_far_or_what_is_new():
    engine, _ = made_up_engine()
    add(engine, "all", 5, 4, output_kind=RequestOutputKind.CUMULATIVE)
    add(engine, "new", 5, 4, output_kind=RequestOutputKind.DELTA)
    add(engine, "last", 5, 4, output_kind=RequestOutputKind.FINAL_ONLY)
    seen: dict[str, list[list[int]]] = {"all": [], "new": [], "last": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id].append(output.outputs[0].token_ids)
    tokens, _, _ = expected_output(list(range(5)), greedy(4), max_model_len=64)
    assert seen == {
        "all": [tokens[: n + 1] for n in range(4)],
        "new": [[t] for t in tokens],
        "last": [tokens],
    }
