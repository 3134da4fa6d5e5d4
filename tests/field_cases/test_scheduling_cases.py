"""Faults that other systems had with scheduling: hangs, thrash, starvation, victims taken for nothing.

A docstring names the case by letter and number and says where the fault was seen; the scenarios are ours.
Figures of vLLM 0.32.0 are those that it was seen to produce on the same workload.
"""

from __future__ import annotations

import pytest

from engine.scheduled_server import ScheduledServer
from looseleaf.engine import block_budget
from looseleaf.engine.config import SCHEDULING_POLICIES
from looseleaf.errors import EngineError, NeverFitsError

ALL_POLICIES = pytest.mark.parametrize("policy", SCHEDULING_POLICIES)


@pytest.fixture
def no_growth(monkeypatch):
    """Admit whatever fits at the moment, as the systems did that had the fault."""
    monkeypatch.setattr(block_budget, "GROWTH_STEPS", 0)


def until_preempted(server: ScheduledServer) -> list[str]:
    """The victims of the first step that has any."""
    for _ in range(100):
        if preempted := server.step().preempted:
            return [request.request_id for request in preempted]
    raise AssertionError("nobody was preempted")


@ALL_POLICIES
def test_a_request_larger_than_the_pool_is_refused_at_once_with_numbers(policy):
    """D1, vllm#35541 and #39734: it waited for ever, and all behind it."""
    server = ScheduledServer(4, scheduling_policy=policy)
    assert "100 tokens need 25 blocks of 4 tokens, and the whole pool has 4" in (
        server.scheduler.never_fits(100) or ""
    )
    with pytest.raises(NeverFitsError):
        server.add("large", 100, 1)
    server.add("small", 3, 2)
    server.run(2)
    assert server.ended == {"small": 2}


@ALL_POLICIES
def test_a_request_that_outgrows_the_pool_ends_alone(policy):
    """D4, sglang#14948, #19881 and #26266: the scheduler's process died with the last request."""
    server = ScheduledServer(5, scheduling_policy=policy)
    server.add("large", 12, 40, priority=1)
    server.add("small", 4, 3)
    server.run()
    assert server.ended == {"small": 3}
    assert "21 tokens need 6 blocks of 4 tokens, and the whole pool has 5" in server.failed["large"]


@ALL_POLICIES
def test_blocks_of_somebody_outside_are_named_when_nothing_can_go_on(policy):
    """D5, vllm#45387 and #45388: nothing ran, everything waited, and nothing was said."""
    server = ScheduledServer(10, scheduling_policy=policy)
    parked = server.pool.allocate(6)
    server.add("head", 32, 1)
    with pytest.raises(EngineError, match="the first needs 8 blocks, and 4 of 10 are free"):
        server.step()
    parked.release()
    server.run(1)


@ALL_POLICIES
def test_one_missing_block_costs_one_victim(no_growth, policy):
    """D6, vllm-ascend#16315 and vllm#49675: the retry loop preempted everyone."""
    server = ScheduledServer(8, scheduling_policy=policy)
    for name, length in (("a", 8), ("b", 6), ("c", 6), ("d", 6)):
        server.add(name, length, 12)
    server.step()
    assert len(server.running) == 4
    assert server.pool.num_free == 0
    assert len(server.step().preempted) == 1
    server.run()


def test_blocks_that_become_free_with_the_step_are_waited_for(no_growth):
    """D6, as above, where a copy of the same step still reads the victim's block."""
    server = ScheduledServer(4, max_num_seqs=8)
    for name, length in (("writes", 2), ("grows", 4), ("has room", 2)):
        server.add(name, length, 3)
    server.step()
    # "writes" copies the block that it shares with its twin into the last free one; then "grows" needs one.
    server.fork("writes", "twin")
    schedule = server.step()
    assert [request.request_id for request in schedule.preempted] == ["twin"]
    assert schedule.num_tokens == 2, "a row that finds room is not held up"
    assert server.running == ["writes", "grows", "has room"]
    server.manager.check_invariants()
    assert server.step().num_tokens == 2 + 1
    server.run()
    assert server.ended == {"writes": 3, "grows": 3, "has room": 3, "twin": 3}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_preempted_request_keeps_its_turn_and_its_blocks_before_an_older_one_that_never_ran(
    no_growth, policy
):
    """D8, vllm#41951: it lost both to an older request of its priority."""
    server = ScheduledServer(17, scheduling_policy=policy, max_num_seqs=8, max_num_batched_tokens=8)
    server.add("runs", list(range(61)), 1)
    server.step()
    server.add("older", list(range(61)), 1)
    server.add("preempted", 4, 2)
    assert until_preempted(server) == ["preempted"]
    assert server.waiting == ["preempted", "older"]
    server.run()
    assert list(server.ended) == ["runs", "preempted", "older"]
    assert server.computed["preempted"] == 4 + 1, "its first block was found again"


@pytest.mark.parametrize(
    ("num_requests", "tokens", "preemptions"), [(2, 94, 1), (3, 157, 3), (4, 216 - 1, 5 - 1)]
)
def test_a_crowded_pool_wastes_less_than_vllm_does(num_requests, tokens, preemptions):
    """D9, vllm#54644, #53723 and #56897: up to 79 % of the tokens were computed again.

    vLLM schedules 94, 157 and 216 tokens with 1, 3 and 5 preemptions.
    """
    server = ScheduledServer(11)
    for number in range(num_requests):
        server.add(str(number), 8, 32)
    server.run()
    assert server.num_tokens <= tokens
    assert sum(server.preemptions.values()) <= preemptions


@ALL_POLICIES
def test_a_large_limit_that_is_not_used_holds_nobody_up(policy):
    """D10, NVIDIA/TensorRT-LLM#2866 and #16827: room for max_tokens was reserved, or nothing at all was."""
    server = ScheduledServer(8, longest=40, scheduling_policy=policy)
    server.add("ends early", 3, 29)
    for number in range(3):
        server.add(str(number), 4, 3)
    server.step()
    assert len(server.running) == 4
    server.step()
    server.step()
    server.abort("ends early")
    server.run()
    assert sum(server.preemptions.values()) <= 1


@ALL_POLICIES
def test_a_long_prompt_holds_up_neither_those_who_write_nor_a_newcomer(policy):
    """D11, vllm#21495, sglang#32549 and local-inference-lab/vllm#541. 0.32.0's newcomer waits five steps."""
    server = ScheduledServer(100, max_num_seqs=8, max_num_batched_tokens=16, scheduling_policy=policy)
    writer = server.add("writer", 3, 50)
    server.step()
    server.add("long", 100, 1)
    server.step()
    server.add("newcomer", 4, 5, priority=9)
    arrived = server.num_steps
    for written in range(3, 9):
        schedule = server.step()
        assert server.manager.output_len(writer.handle) == written
        if "long" in server.requests:
            assert schedule.num_tokens == 16, "no part of the budget is wasted"
    assert server.first_token["newcomer"] - arrived <= 2
    server.run()


@ALL_POLICIES
@pytest.mark.parametrize("steps", range(16))
def test_an_abort_in_any_state_harms_nobody(policy, steps):
    """D14, vllm#6586, #42157 and #25991: an abort between schedule and result killed the engine.

    The one that leaves waits, is amid its prompt, waits for that of another, writes, or is preempted.
    """
    for leaver in ("first", "alike", "other"):
        server = ScheduledServer(11, max_num_seqs=3, max_num_batched_tokens=6, scheduling_policy=policy)
        server.add("first", list(range(17)), 8)
        server.add("alike", list(range(17)), 8)
        server.add("other", 9, 8, priority=1)
        for _ in range(steps):
            server.step()
        if leaver in server.requests:
            server.abort(leaver)
        server.manager.check_invariants()
        server.run(100)
        assert server.ended.keys() | {leaver} == {"first", "alike", "other"}
        assert set(server.ended.values()) == {8}


@ALL_POLICIES
def test_two_requests_that_fit_alone_evict_each_other_at_most_once(policy):
    """D15, huggingface/transformers#43150 and #42094: an error, or an endless swap of the two."""
    server = ScheduledServer(4, longest=16, scheduling_policy=policy)
    server.add("a", 8, 8)
    server.add("b", 8, 8)
    server.run(30)
    assert server.ended == {"a": 8, "b": 8}
    assert sum(server.preemptions.values()) <= 1


@ALL_POLICIES
@pytest.mark.parametrize("num_usable", [4, 5, 9])
def test_a_cache_with_hardly_any_room_still_answers_everybody(policy, num_usable):
    """D16, EricLBuehler/mistral.rs#1470: requests were accepted, and never answered."""
    server = ScheduledServer(num_usable, max_num_seqs=2, scheduling_policy=policy)
    for number in range(20):
        server.add(str(number), 9, 6, priority=number % 3)
    server.run(20 * 12)
    assert len(server.ended) == 20
