"""A prompt that begins like one being computed waits for it, and is not computed twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduled_server import ScheduledServer

LONG = list(range(100))


def two_alike(second: list[int], *, after_steps: int, **options: object) -> ScheduledServer:
    """A long prompt, and another one that comes so many steps later."""
    server = ScheduledServer(100, max_num_seqs=8, **{"max_num_batched_tokens": 16} | options)
    server.add("first", LONG, 1)
    for _ in range(after_steps):
        server.step()
    server.add("second", second, 1)
    return server


@pytest.mark.parametrize("after_steps", range(7))
def test_a_prompt_computed_in_chunks_is_computed_once_for_two(after_steps):
    server = two_alike(LONG, after_steps=after_steps)
    server.run()
    # All but the last block, which ends with the token whose logits are needed.
    assert server.computed == {"first": 100, "second": 4}
    assert server.num_steps == 7


def test_pieces_below_the_budget_do_not_make_two_prompts_run_in_step():
    server = two_alike(LONG, after_steps=0, max_num_batched_tokens=64, long_prefill_token_threshold=10)
    server.run()
    assert server.computed == {"first": 100, "second": 4}


def test_what_differs_is_computed_once_the_common_part_is_there():
    server = two_alike([*LONG[:70], *range(500, 560)], after_steps=1)
    server.run()
    assert server.computed == {"first": 100, "second": 130 - 68}


def test_others_pass_a_prompt_that_waits_for_its_prefix():
    server = two_alike(LONG, after_steps=1)
    server.add("other", 6, 1)
    server.step()
    assert server.running == ["first"]
    assert "other" in server.ended
    assert server.waiting == ["second"]
    server.run()
    assert server.computed["second"] == 4


@pytest.mark.parametrize("change", ["salt", "uncached", "other text"])
def test_who_would_find_nothing_does_not_wait(change):
    server = ScheduledServer(
        100,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=10,
        enable_prefix_caching=change != "uncached",
    )
    server.add("first", LONG, 1, salt="a")
    server.step()
    tail = range(500, 600) if change == "other text" else LONG[8:]
    server.add("second", [*LONG[:8], *tail], 1, salt="b" if change == "salt" else "a")
    server.step()
    assert server.running == ["first", "second"]
    server.run()


def test_what_another_tenant_computes_is_not_waited_for_though_both_have_come_as_far():
    server = ScheduledServer(100, max_num_seqs=8, max_num_batched_tokens=64, long_prefill_token_threshold=10)
    server.add("warms the cache", LONG[:9], 1, salt="b")
    server.run()
    server.add("first", LONG, 1, salt="a")
    server.add("second", LONG, 1, salt="b")
    # In this step "first" gets to the end of the second block, which "second" finds among its own.
    server.step()
    assert server.running == ["first", "second"]
    server.run()


def test_the_block_of_the_last_token_is_not_waited_for():
    server = ScheduledServer(100, max_num_seqs=8, max_num_batched_tokens=64, long_prefill_token_threshold=2)
    server.add("first", LONG, 1)
    server.step()
    server.step()
    server.add("second", LONG[:52], 1)
    server.run()
    # Twelve blocks are there with the 24th step, and four tokens take that step and the next.
    assert server.computed["second"] == 4
    assert server.first_token["second"] == 25


def test_a_short_remainder_does_not_wait():
    # Twelve tokens to go are no more than a chunk: the newcomer's first token must not be delayed.
    server = ScheduledServer(100, max_num_seqs=8, max_num_batched_tokens=64, long_prefill_token_threshold=12)
    server.add("first", LONG, 1)
    server.step()
    server.add("second", LONG[:36], 1)
    server.step()
    assert server.computed["second"] == 12
    assert server.first_token["second"] == 2
    server.run()


def test_a_better_priority_does_not_wait_for_a_worse_one():
    server = ScheduledServer(
        100,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=10,
        scheduling_policy="priority",
    )
    server.add("low", LONG, 1, priority=5)
    server.step()
    server.add("high", LONG, 1, priority=0)
    server.add("too low", LONG, 1, priority=6)
    server.step()
    assert server.running == ["low", "high"]
    server.run()
    assert server.computed["too low"] == 4


def test_when_the_first_is_aborted_the_second_goes_on_from_what_is_there():
    server = two_alike(LONG, after_steps=2)
    server.step()
    assert server.waiting == ["second"]
    server.abort("first")
    server.run()
    assert server.computed["second"] == 100 - 48


@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 80), st.integers(1, 40), st.integers(0, 9)), min_size=1, max_size=6
    ),
    budget=st.sampled_from([8, 16, 50]),
    threshold=st.sampled_from([0, 5, 12]),
)
def test_a_family_of_prompts_is_computed_with_little_waste(lengths, budget, threshold):
    """However they arrive, no shared block is computed twice but by prompts with at most a chunk to go."""
    server = ScheduledServer(
        400, max_num_seqs=8, max_num_batched_tokens=budget, long_prefill_token_threshold=threshold
    )
    arrivals = sorted((step, number) for number, (_, _, step) in enumerate(lengths))
    for step in range(10):
        for _, number in (arrival for arrival in arrivals if arrival[0] == step):
            shared, own, _ = lengths[number]
            server.add(str(number), LONG[:shared] + [1000 + number] * own, 1)
        if server.requests:
            server.step()
    server.run()
    ideal = sum(own + shared % 4 for shared, own, _ in lengths) + max(shared for shared, _, _ in lengths)
    chunk = threshold or budget // 2
    assert server.num_tokens <= ideal + len(lengths) * (chunk + 4)
