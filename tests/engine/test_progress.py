"""Whatever the state, a step does something or says why; whoever writes goes on, and newcomers start."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from engine.scheduled_server import ScheduledServer
from looseleaf.engine import block_budget
from looseleaf.engine.config import SCHEDULING_POLICIES
from looseleaf.engine.preemption_notice import FREQUENT, WINDOW_STEPS, PreemptionNotice
from looseleaf.errors import EngineError

POLICIES = st.sampled_from(SCHEDULING_POLICIES)


@dataclass(frozen=True)
class Arrival:
    step: int
    shared: int
    own: int
    max_tokens: int
    priority: int
    abort_after: int | None


ARRIVALS = st.builds(
    Arrival,
    step=st.integers(0, 8),
    shared=st.integers(0, 24),
    own=st.integers(1, 12),
    max_tokens=st.integers(1, 30),
    priority=st.integers(-2, 2),
    abort_after=st.one_of(st.none(), st.none(), st.integers(0, 12)),
)


@st.composite
def servers(draw: st.DrawFn) -> ScheduledServer:
    """Small pools and budgets; the longest request does not always fit."""
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_num_seqs = draw(st.integers(1, 8))
    return ScheduledServer(
        draw(st.integers(-(-36 // block_size), 5 * 64 // block_size)),
        block_size,
        longest=66,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + draw(st.sampled_from([0, 1, 7, 40])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 5])),
        enable_prefix_caching=draw(st.sampled_from([True, True, False])),
        scheduling_policy=draw(POLICIES),
        priority_aging_steps=draw(st.sampled_from([0, 1, 10])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1, 0.9])),
    )


def checked_step(server: ScheduledServer) -> None:
    """A step that must do something: every row that needs one token and keeps its blocks gets it."""
    manager = server.manager
    rows = {
        handle: manager.output_len(handle)
        for handle in server.scheduler.running
        if manager.num_tokens(handle) - manager.num_computed_tokens(handle) == 1
    }
    names = {request.handle: name for name, request in server.requests.items()}
    schedule = server.step()
    assert schedule.num_tokens or schedule.failed
    assert schedule.num_tokens <= server.limits.max_num_batched_tokens
    assert not (schedule.preempted and schedule.admitted)
    given_up = {request.handle for request in schedule.preempted} | {
        request.handle for request, _ in schedule.failed
    }
    for handle, written in rows.items():
        if handle not in given_up and names[handle] in server.requests:
            assert manager.output_len(handle) == written + 1
    manager.check_invariants()


def step_or_reason(server: ScheduledServer) -> str | None:
    """A checked step, or why there is none."""
    try:
        checked_step(server)
    except EngineError as error:
        return str(error)
    return None


@given(server=servers(), arrivals=st.lists(ARRIVALS, min_size=1, max_size=12), outside=st.integers(0, 3))
def test_every_step_schedules_or_refuses_something_while_work_waits(server, arrivals, outside):
    """Also while somebody else holds blocks of the pool: then a step may say that nothing can be done."""
    held = server.pool.try_allocate(min(outside, server.pool.num_usable - 1))
    step = 0
    while step < 9 or server.requests:
        for number, arrival in enumerate(arrivals):
            if arrival.step == step:
                prompt = [*range(arrival.shared), *([1000 + number] * arrival.own)]
                server.add(str(number), prompt, arrival.max_tokens, priority=arrival.priority)
            aborted = arrival.abort_after is not None and arrival.step + arrival.abort_after == step
            if aborted and str(number) in server.requests:
                server.abort(str(number))
        if server.requests:
            reason = step_or_reason(server)
            if reason is not None:
                assert held, reason
                assert not server.running
                assert "nothing could be scheduled: 0 requests run" in reason
                event("said why")
                held.release()
                held = None
        step += 1
        assert step < 3000, "the requests do not come to an end"
    if held:
        held.release()
    for reason in server.failed.values():
        assert "need" in reason or "no block is free" in reason
    event(f"preemptions: {min(sum(server.preemptions.values()), 3)}")
    server.assert_empty()


@given(
    policy=POLICIES,
    budget=st.integers(8, 64),
    threshold=st.sampled_from([0, 0, 8]),
    num_writers=st.integers(0, 4),
    prefills=st.lists(st.integers(40, 1000), max_size=6),
    steps_before=st.integers(0, 6),
    priorities=st.lists(st.integers(-3, 3), min_size=11, max_size=11),
    data=st.data(),
)
def test_a_newcomer_no_longer_than_a_chunk_has_its_first_token_within_two_steps(
    policy, budget, threshold, num_writers, prefills, steps_before, priorities, data
):
    """D11, under every policy and whatever its priority, however long the prompts before it are."""
    server = ScheduledServer(
        2000,
        longest=1100,
        max_num_seqs=8 + num_writers,
        max_num_batched_tokens=max(budget, 8 + num_writers),
        long_prefill_token_threshold=threshold,
        scheduling_policy=policy,
    )
    for number in range(num_writers):
        server.add(f"writer {number}", 1, 500, priority=priorities[number])
    if num_writers:
        server.step()
    for number, length in enumerate(prefills):
        server.add(f"long {number}", length, 1, priority=priorities[4 + number])
    for _ in range(steps_before if server.requests else 0):
        if server.requests:
            checked_step(server)
    left = server.limits.max_num_batched_tokens - num_writers - len(prefills)
    chunk = threshold or server.limits.max_num_batched_tokens // 2
    length = data.draw(st.integers(1, max(1, min(chunk, left // 2 * 2))))
    arrived = server.num_steps
    server.add("newcomer", length, 1, priority=priorities[10])
    checked_step(server)
    if "newcomer" in server.requests:
        checked_step(server)
    assert server.first_token["newcomer"] - arrived <= 2
    for name in list(server.requests):
        server.abort(name)
    server.assert_empty()


@given(
    length=st.integers(1, 40),
    aging=st.integers(1, 5),
    priority=st.integers(0, 5),
    rows=st.integers(1, 4),
    num_usable=st.integers(24, 40),
)
def test_under_priority_with_aging_nobody_starves(length, aging, priority, rows, num_usable):
    """Two better requests arrive in each step, more than can be served; the worst one ends nevertheless."""
    server = ScheduledServer(
        num_usable,
        max_num_seqs=rows,
        max_num_batched_tokens=16,
        scheduling_policy="priority",
        priority_aging_steps=aging,
    )
    server.add("before", 5, 4)
    server.step()
    server.add("low", length, 8, priority=priority)
    for number in range(400):
        for twin in "ab":
            server.add(f"{number} {twin}", 5, 4, priority=0)
        server.step()
        if "low" in server.ended:
            break
    assert "low" in server.ended
    # Only those that came before it had caught up are served first, four tokens and a prompt each.
    assert server.num_steps <= 20 + (2 * aging * priority + 2) * 5 + (length + 8) * 2


def drain_through_a_full_pool(num_requests: int, policy: str, seed: int) -> ScheduledServer:
    """Random requests, most of which share a prefix, always enough of them to fill the pool."""
    draw = random.Random(seed)
    server = ScheduledServer(
        600,
        4,
        longest=512,
        max_num_seqs=128,
        max_num_batched_tokens=512,
        scheduling_policy=policy,
    )
    prefixes = [[family * 1000 + i for i in range(64)] for family in range(8)]
    for number in range(num_requests):
        prefix = draw.choice(prefixes)[: draw.randint(0, 64)]
        own = [draw.randint(0, 50_000) for _ in range(draw.randint(1, 12))]
        server.add(str(number), prefix + own, draw.randint(1, 40), priority=draw.randint(0, 3))
        while len(server.waiting) > 40:
            server.step()
    print(
        sum(server.usages) / len(server.usages),
        max(server.usages),
        len(server.usages),
        sum(server.preemptions.values()),
    )
    server.run()
    return server


@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_ten_thousand_random_requests_go_through_a_full_pool_and_all_end(policy, monkeypatch):
    # Admitting whatever fits at the moment keeps the pool full, and makes for as many preemptions as can be.
    monkeypatch.setattr(block_budget, "GROWTH_STEPS", 0)
    server = drain_through_a_full_pool(10_000, policy, seed=1)
    assert len(server.ended) == 10_000
    assert sum(server.usages) / len(server.usages) > 0.985
    assert max(server.usages) == 1.0
    assert sum(server.preemptions.values()) > 1000


# --- Admission ----------------------------------------------------------------------------------------------


def test_the_watermark_stays_free_when_others_run_and_never_blocks_the_only_request():
    server = ScheduledServer(20, max_num_seqs=8, watermark=0.5)
    server.add("large", 60, 3)
    server.step()
    assert server.running == ["large"], "alone it may take more than the watermark leaves"
    server.add("small", 1, 1)
    server.step()
    assert server.waiting == ["small"]
    server.run()
    assert list(server.ended) == ["large", "small"]
    server.add("a", 21, 5)
    server.add("b", 13, 5)
    server.add("c", 13, 5)
    server.step()
    # 6 and 4 blocks leave 10, which is the watermark.
    assert server.running == ["a", "b"]
    server.run()


def test_nobody_is_admitted_whom_growth_would_drive_out_at_once():
    server = ScheduledServer(11, max_num_seqs=8)
    for name in "abcd":
        server.add(name, 8, 32)
    server.step()
    # All would fit, but each begins a block with its next token.
    assert server.running == ["a", "b", "c"]
    assert not server.step().preempted
    server.run()


# --- The log ------------------------------------------------------------------------------------------------


def test_frequent_preemptions_are_said_once_with_what_to_change(caplog):
    notice = PreemptionNotice()
    with caplog.at_level(logging.WARNING, "looseleaf"):
        for _ in range(3):
            for _ in range(FREQUENT):
                notice.count_step(1)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith(f"{FREQUENT} preemptions in {FREQUENT} steps")
    for option in (
        "gpu_memory_utilization",
        "num_gpu_blocks_override",
        "max_num_seqs",
        "max_num_batched_tokens",
        "more cards",
    ):
        assert option in text


def test_a_preemption_now_and_then_is_not_worth_a_word(caplog):
    notice = PreemptionNotice()
    with caplog.at_level(logging.WARNING, "looseleaf"):
        for step in range(10 * WINDOW_STEPS):
            notice.count_step(int(step % (WINDOW_STEPS // FREQUENT + 1) == 0))
    assert not caplog.records


def test_the_scheduler_reports_to_the_notice(caplog):
    with caplog.at_level(logging.WARNING, "looseleaf"):
        server = ScheduledServer(24, 1, max_num_seqs=8)
        for number in range(60):
            server.add(str(number), 2, 10)
        server.run()
    assert sum(server.preemptions.values()) > FREQUENT
    assert len(caplog.records) == 1
