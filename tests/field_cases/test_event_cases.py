"""Faults that other systems had with KV events, each in a small scenario that shows it.

A docstring names the case by letter and number and says where the fault was seen; the scenarios are ours.
"""

from __future__ import annotations

import random

import pytest

from event_consumer import EventConsumer, resident_hashes
from field_cases.made_up_server import MadeUpServer
from looseleaf import AllBlocksCleared, BlockPool, BlockRemoved, BlockStored

BLOCK_SIZE = 4
EVENTS = {"event_capacity": 512, "event_tokens": BLOCK_SIZE}


def test_a_removed_event_comes_with_the_last_copy_only():
    """vllm#48933, ai-dynamo/dynamo#8012: of two copies the first that was evicted took the hash with it."""
    pool = BlockPool(4, duplicate_policy="keep_all", **EVENTS)
    blocks, key = pool.allocate(3).into_ids(), bytes(range(32))
    for block in blocks:
        assert pool.publish(block, key) == "cached"
    assert [type(event) for event in pool.drain_events()] == [BlockStored]
    for block in blocks:
        assert pool.peek_prefix([key]) == (1, 0)
        assert pool.drain_events() == []
        pool.retract(block)
    assert [type(event) for event in pool.drain_events()] == [BlockRemoved]


@pytest.mark.parametrize("policy", ["first_wins", "keep_all"])
@pytest.mark.parametrize("seed", range(8))
def test_a_consumer_that_drops_orphans_loses_nothing(policy, seed):
    """G4, vllm#58119, dynamo#693, vllm-ascend#12252: a stored event named a parent never announced."""
    choose, consumer = random.Random(seed), EventConsumer()
    server = MadeUpServer(14, rows=6, pool_options=EVENTS | {"duplicate_policy": policy})
    manager, handles = server.manager, []
    for _ in range(150):
        if len(handles) < 6 and choose.random() < 0.7:
            # Prompts that share whole blocks, parts of blocks, and nothing.
            prompt = [choose.randrange(2)] * choose.randrange(1, 10) + [5] * choose.randrange(8)
            handle = manager.open(prompt, max_tokens=choose.randrange(1, 9))
            if manager.match_prefix(handle).new_blocks + 2 <= server.pool.num_free:
                manager.admit(handle)
                handles.append(handle)
            else:
                manager.close(handle)
        if handles and choose.random() < 0.2:
            cut = choose.choice(handles)
            manager.truncate(cut, choose.randint(1, manager.num_tokens(cut)))
        blocked = manager.schedule_running(64, choose.choice([3, 64])).blocked
        if blocked is not None:
            handles.remove(blocked[0])
            manager.close(blocked[0])
        if any(manager.slots_of(handle) for handle in handles):
            step = manager.prepare()
            if choose.random() < 0.2:
                manager.close(handles.pop(choose.randrange(len(handles))))
            manager.commit_step(step.step, server.compute(step.num_samples))
        for handle in [handle for handle in handles if manager.finish_reason(handle)]:
            handles.remove(handle)
            manager.close(handle)
        manager.check_invariants()
        if choose.random() < 0.7:
            consumer.listen_to(server.pool)
            assert {key for key, _ in consumer.resident} == resident_hashes(server.pool)
    assert (consumer.orphans, consumer.num_resyncs) == (set(), 0)
    assert server.pool.stats()["evictions"] > 10
    assert len(consumer.announced) > 20


def test_a_block_that_a_later_row_of_the_same_step_fills_is_told_before_the_one_behind_it():
    """G4: a sequence admitted onto a block that the step fills may have the lower row and publish first."""
    server = MadeUpServer(16, pool_options=EVENTS)
    manager = server.manager
    leaving, owner = server.start([9]), server.start([1, 1, 1, 1, 1])
    manager.append(owner, 5)
    manager.close(leaving)
    taker = server.start([1, 1, 1, 1, 2, 2, 2, 2, 2])
    assert manager.num_cached_tokens(taker) == 4
    assert (manager.row(taker), manager.row(owner)) == (0, 1)
    server.step()
    parent, child = server.pool.drain_events()
    assert (parent.token_ids, child.token_ids) == ([1] * 4, [2] * 4)
    assert child.parent_block_hash == parent.block_hash


def test_a_reset_is_told_although_nothing_runs():
    """G5, vllm#45174: an idle engine kept the event until its next request."""
    server = MadeUpServer(16, pool_options=EVENTS)
    server.answer([1] * 9)
    consumer = EventConsumer()
    consumer.listen_to(server.pool)
    assert len(consumer.resident) == 2
    server.pool.reset_prefix_cache()
    (event,) = consumer.listen_to(server.pool)
    assert isinstance(event, AllBlocksCleared)
    assert not event.resync
    assert consumer.resident == set()


def test_a_loss_is_told_and_made_up_for_in_the_next_drain():
    """G5, llm-d/llm-d-router#1737: a consumer could not tell that events were missing."""
    server = MadeUpServer(32, pool_options=EVENTS | {"event_capacity": 4})
    consumer = EventConsumer()
    for number in range(6):
        server.answer([number] * 13)
        if number % 2:
            consumer.listen_to(server.pool)
            assert {key for key, _ in consumer.resident} == resident_hashes(server.pool)
    assert consumer.num_resyncs == 3
    assert server.pool.stats()["lost_events"] == 6
    assert consumer.orphans == set()
