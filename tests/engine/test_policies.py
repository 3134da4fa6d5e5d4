"""Who is served first, and who gives way, under each policy."""

from __future__ import annotations

import pytest

from engine.made_up_model import made_up_engine
from engine.scheduled_server import ScheduledServer
from looseleaf import LLM, SamplingParams
from looseleaf.engine import block_budget
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.errors import InvalidConfigError, RequestError


def server(num_usable: int, policy: str, **options: object) -> ScheduledServer:
    return ScheduledServer(num_usable, scheduling_policy=policy, **{"max_num_seqs": 8} | options)


def step_until_preempted(server: ScheduledServer) -> list[str]:
    """The victims of the first step that has any."""
    for _ in range(100):
        if preempted := server.step().preempted:
            return [request.request_id for request in preempted]
    raise AssertionError("nobody was preempted")


# --- fcfs ---------------------------------------------------------------------------------------------------


def test_first_come_first_served_takes_from_the_newest_whatever_its_priority():
    crowd = server(6, "fcfs")
    for name, priority in (("a", 9), ("b", 5), ("c", 0)):
        crowd.add(name, 5, 11, priority=priority)
    assert step_until_preempted(crowd) == ["c"]
    crowd.add("d", 1, 1, priority=-5)
    assert crowd.waiting == ["c", "d"]
    crowd.run()


# --- priority -----------------------------------------------------------------------------------------------


def test_the_smaller_number_is_admitted_first_and_equals_by_arrival():
    one_row = server(20, "priority", max_num_seqs=1)
    for name, priority in (("b", 1), ("c", 1), ("low", 7), ("a", -2)):
        one_row.add(name, 3, 2, priority=priority)
    assert one_row.waiting == ["a", "b", "c", "low"]
    one_row.run()
    assert list(one_row.ended) == ["a", "b", "c", "low"]


def test_the_largest_number_gives_way_though_it_was_there_first():
    crowd = server(6, "priority")
    for name, priority in (("low", 3), ("mid", 2), ("high", 1)):
        crowd.add(name, 5, 11, priority=priority)
    crowd.step()
    assert crowd.running == ["high", "mid", "low"]
    assert step_until_preempted(crowd) == ["low"]
    crowd.run()
    assert crowd.preemptions["high"] == 0


def test_a_low_request_admitted_first_gives_way_to_a_high_one_admitted_later():
    crowd = server(7, "priority")
    crowd.add("low", 5, 11, priority=3)
    crowd.step()
    crowd.add("high", 5, 11, priority=1)
    crowd.add("mid", 5, 11, priority=2)
    crowd.step()
    assert crowd.running == ["low", "high", "mid"]
    while crowd.manager.num_tokens(crowd.requests["high"].handle) < 9:
        assert not crowd.step().preempted
    before = crowd.num_tokens
    # "low" comes first in the step and has its token already, which is taken back.
    assert step_until_preempted(crowd) == ["low"]
    assert crowd.num_tokens == before + 2
    crowd.run()
    assert crowd.ended == {"low": 11, "high": 11, "mid": 11}


def test_among_equal_priorities_the_latest_arrival_gives_way():
    crowd = server(6, "priority")
    for name, priority in (("old", 1), ("new", 1), ("high", 0)):
        crowd.add(name, 5, 11, priority=priority)
    assert step_until_preempted(crowd) == ["new"]
    crowd.run()


def test_a_preempted_request_waits_behind_better_priorities_and_before_its_own():
    crowd = server(6, "priority")
    for name in ("a", "b", "victim"):
        crowd.add(name, 5, 11, priority=1)
    crowd.step()
    crowd.add("equal", 9, 1, priority=1)
    crowd.add("worse", 9, 1, priority=2)
    assert step_until_preempted(crowd) == ["victim"]
    crowd.add("better", 9, 1, priority=0)
    assert crowd.waiting == ["better", "victim", "equal", "worse"]
    crowd.run()


def test_a_waiting_request_never_displaces_one_that_runs():
    crowd = server(4, "priority")
    crowd.add("low", 13, 2, priority=9)
    crowd.step()
    crowd.add("high", 13, 2, priority=0)
    crowd.run()
    assert list(crowd.ended) == ["low", "high"]
    assert not crowd.preemptions


@pytest.mark.parametrize(("aging", "served"), [(0, False), (10, True)])
def test_a_low_priority_comes_to_its_turn_through_aging_alone(aging, served):
    one_row = server(20, "priority", max_num_seqs=1, priority_aging_steps=aging)
    one_row.add("first", 3, 2, priority=0)
    one_row.add("low", 3, 2, priority=2)
    for number in range(40):
        one_row.add(str(number), 3, 2, priority=0)
        one_row.step()
        one_row.step()
    assert ("low" in one_row.ended) is served
    one_row.run()


def test_with_aging_a_request_is_passed_only_by_those_that_come_before_it_has_caught_up():
    one_row = server(20, "priority", max_num_seqs=1, priority_aging_steps=10)
    one_row.add("runs", 3, 100)
    one_row.step()
    one_row.add("low", 3, 1, priority=2)
    for number in range(30):
        one_row.add(str(number), 3, 1, priority=0)
        one_row.step()
    # Number n came n steps later, and two priorities are worth twenty steps.
    assert one_row.waiting.index("low") == 20
    one_row.run()


def test_what_came_to_its_turn_by_age_keeps_its_blocks():
    for aging, victim in ((0, "aged"), (2, "young")):
        crowd = server(5, "priority", priority_aging_steps=aging)
        crowd.add("aged", 1, 18, priority=3)
        for _ in range(6):
            crowd.step()
        crowd.add("young", 5, 11, priority=1)
        crowd.step()
        assert crowd.running == ["aged", "young"]
        assert step_until_preempted(crowd) == [victim]
        crowd.run()


@pytest.mark.parametrize(("policy", "order"), [("fcfs", ["low", "high"]), ("priority", ["high", "low"])])
def test_of_two_prompts_in_progress_the_better_one_gets_its_tokens_first(policy, order):
    crowd = server(100, policy, max_num_batched_tokens=16, long_prefill_token_threshold=10)
    crowd.add("low", 100, 1, priority=2)
    crowd.step()
    crowd.add("high", 60, 1, priority=1)
    crowd.run()
    assert list(crowd.ended) == order


# --- cost ---------------------------------------------------------------------------------------------------


def test_the_cheapest_per_block_gives_way_not_the_newest():
    # When "a" needs its third block, "fresh" has 5 tokens in 2 blocks and "b" has 7 in 2.
    crowd = server(6, "cost")
    crowd.add("a", 5, 11)
    crowd.step()
    crowd.step()
    crowd.add("fresh", 5, 12)
    crowd.add("b", 7, 4)
    assert step_until_preempted(crowd) == ["fresh"]
    crowd.run()


@pytest.fixture
def no_growth(monkeypatch):
    """Admit whatever fits at the moment, so that few tokens are enough to fill a pool."""
    monkeypatch.setattr(block_budget, "GROWTH_STEPS", 0)


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "small"), ("cost", "shares too")])
def test_blocks_that_others_hold_are_neither_lost_nor_gained(no_growth, policy, victim):
    crowd = server(9, policy)
    crowd.add("a", 5, 20)
    crowd.step()
    crowd.step()
    for name, prompt in (("shares", list(range(13))), ("shares too", list(range(13))), ("small", 5)):
        crowd.add(name, prompt, 30)
    # In the fifth step "a" has 8 tokens and needs a block. The sharers have 14 tokens, but 12 of them will be
    # found again: a price of 2 in 1 block against 6 in 2 blocks of "small".
    assert step_until_preempted(crowd) == [victim]
    assert crowd.num_steps == 5
    crowd.run()


def test_whoever_finishes_next_is_spared_where_another_would_do():
    # Both have computed as many tokens in as many blocks, and the newest would give way.
    crowd = server(4, "cost")
    crowd.add("old", 5, 11)
    crowd.add("new", 5, 10)
    assert step_until_preempted(crowd) == ["old"]
    crowd.run()
    crowd = server(4, "cost")
    crowd.add("old", 5, 10)
    crowd.add("new", 5, 11)
    assert step_until_preempted(crowd) == ["new"]
    crowd.run()


def test_of_equal_prices_the_newest_gives_way():
    crowd = server(6, "cost")
    for name, max_tokens in (("ends first", 9), ("old", 11), ("new", 11)):
        crowd.add(name, 5, max_tokens)
    assert step_until_preempted(crowd) == ["new"]
    crowd.run()


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "new"), ("cost", "long")])
def test_a_prompt_that_is_half_computed_is_cheaper_than_a_short_one_that_is_whole(no_growth, policy, victim):
    crowd = server(22, policy, max_num_batched_tokens=16)
    crowd.add("a", 5, 20)
    crowd.add("b", 5, 20)
    crowd.step()
    crowd.add("long", 61, 1000)
    crowd.step()
    crowd.add("new", 5, 1000)
    # In the fifth step "long" has computed 36 tokens in 16 blocks, and "new" has 6 in 2.
    assert step_until_preempted(crowd) == [victim]
    assert crowd.num_steps == 5
    for name in list(crowd.requests):
        crowd.abort(name)
    crowd.assert_empty()


# --- For all policies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "priority", "cost"])
def test_a_victim_gives_all_its_blocks_and_finds_again_what_nobody_took(policy):
    engine, _ = made_up_engine(num_blocks=12, block_size=4, max_model_len=60, scheduling_policy=policy)
    for number in range(3):
        prompt = TokenPrompt([number, *range(1, 9)])
        engine.add_request(str(number), prompt, SamplingParams(max_tokens=30, ignore_eos=True))
    lost = 0
    while engine.has_unfinished_requests():
        engine.step()
        for request in engine._scheduler.waiting:
            assert engine.manager.block_ids(request.handle) == []
            lost += request.num_lost_tokens
    assert engine.stats.num_preemptions
    assert 0 < engine.stats.num_recomputed_tokens < lost
    assert engine.stats.num_cached_tokens == 0, "nothing of this is a hit"


def test_an_unknown_policy_is_refused_with_those_there_are():
    with pytest.raises(
        InvalidConfigError, match="scheduling_policy must be one of fcfs, priority, cost, found 'lifo'"
    ):
        EngineConfig(model="m", scheduling_policy="lifo")  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", [1.0, "1", None, True])
def test_a_priority_that_is_no_integer_is_refused_and_nothing_is_queued(priority):
    engine, _ = made_up_engine(scheduling_policy="priority")
    with pytest.raises(
        RequestError, match="priority must be an integer, and smaller numbers come first, found"
    ):
        engine.add_request("a", TokenPrompt([1]), SamplingParams(), priority=priority)
    with pytest.raises(
        RequestError, match="priority must be an integer, and smaller numbers come first, found"
    ):
        LLM.from_engine(engine).generate([[1], [2]], priority=[0, priority])
    assert not engine.has_unfinished_requests()
    assert engine.manager.num_open == 0


@pytest.mark.parametrize("priority", [[1], [1, 2, 3], 1, "12"])
def test_a_call_needs_a_priority_for_each_prompt(priority):
    llm = LLM.from_engine(made_up_engine(scheduling_policy="priority")[0])
    with pytest.raises(RequestError, match="priorit"):
        llm.generate([[1], [2]], priority=priority)
    assert llm.llm_engine.manager.num_open == 0


def test_the_prompts_of_a_call_are_served_by_their_priorities():
    engine, _ = made_up_engine(scheduling_policy="priority", max_num_seqs=1)
    order = []
    end = engine._end
    engine._end = lambda request, ending: (order.append(request.priority), end(request, ending))[1]
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    outputs = LLM.from_engine(engine).generate([[1], [2], [3]], params, priority=[5, -1, 2])
    assert order == [-1, 2, 5]
    assert [output.prompt_token_ids for output in outputs] == [[1], [2], [3]]
