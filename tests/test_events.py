"""What a pool says about the hashes that come and go, from Python."""

from __future__ import annotations

import threading

import pytest

from event_consumer import EventConsumer, resident_hashes
from field_cases.made_up_server import MadeUpServer
from looseleaf import AllBlocksCleared, BlockHasher, BlockPool, BlockRemoved, BlockStored, errors

BLOCK_SIZE = 4
EVENTS = {"event_capacity": 256, "event_tokens": BLOCK_SIZE}


def stored(events):
    assert all(isinstance(event, BlockStored) for event in events), events
    return events


def assert_chain(events, tokens, *, hash_algo="sha256_cbor", width=32, salt=None):
    """The events tell of all full blocks of the tokens, in order, each with the one before it."""
    keys = BlockHasher(BLOCK_SIZE, hash_algo=hash_algo).hash_blocks(tokens, cache_salt=salt)
    hashes = [event.block_hash for event in stored(events)]
    assert hashes == [keys[i].ljust(width, b"\0") for i in range(len(keys))]
    assert [event.parent_block_hash for event in events] == [None, *hashes[:-1]]
    told = [token for event in events for token in event.token_ids]
    assert told == list(tokens[: len(keys) * BLOCK_SIZE])


@pytest.mark.parametrize(
    ("hash_algo", "key_bits"), [("sha256_cbor", 256), ("xxh3", 128), ("xxh3", 256)], ids=str
)
def test_the_events_of_a_sequence_are_a_chain_with_its_tokens(hash_algo, key_bits):
    server = MadeUpServer(16, pool_options={**EVENTS, "key_bits": key_bits}, hash_algo=hash_algo)
    prompt = list(range(100, 113))
    text = prompt + server.answer(prompt, 12, salt="tenant")
    events = server.pool.drain_events()
    # The last token was sampled and not computed, so its block is not full.
    assert_chain(events, text[:-1], hash_algo=hash_algo, width=key_bits // 8, salt="tenant")
    assert len(events) == 6
    assert server.pool.drain_events() == []


def test_a_prefix_hit_tells_nothing_and_what_follows_it_names_it_as_its_parent():
    server = MadeUpServer(16, pool_options=EVENTS)
    prefix = list(range(8))
    server.answer([*prefix, 1])
    first = server.pool.drain_events()
    server.answer([*prefix, 2, 3, 4, 5, 6])
    (event,) = server.pool.drain_events()
    assert event.parent_block_hash == first[-1].block_hash
    assert event.token_ids == [2, 3, 4, 5]


def test_every_group_tells_of_the_same_hashes_under_its_own_number():
    server = MadeUpServer(16, groups=3, pool_options=EVENTS)
    server.answer(list(range(9)))
    events = server.pool.drain_events()
    for group in range(3):
        assert_chain([event for event in events if event.group_idx == group], list(range(9)))
    hits = server.start(list(range(9)))
    assert server.manager.num_cached_tokens(hits) == 8
    server.finish(hits)
    assert server.pool.drain_events() == []


def test_an_evicted_hash_is_removed_before_what_it_made_room_for_is_stored():
    server = MadeUpServer(2, pool_options=EVENTS)
    server.answer([1, 1, 1, 1, 1])
    server.answer([2, 2, 2, 2, 2])
    first, gone, second = server.pool.drain_events()
    assert isinstance(gone, BlockRemoved)
    assert (gone.block_hash, gone.group_idx) == (first.block_hash, 0)
    assert second.token_ids == [2, 2, 2, 2]


def test_a_reader_that_was_too_slow_is_told_everything_again_with_parents_and_tokens():
    server = MadeUpServer(16, groups=2, pool_options=EVENTS | {"event_capacity": 2})
    prompt = list(range(30))
    server.answer(prompt)
    assert server.pool.stats()["lost_events"] == 12
    cleared, *events = server.pool.drain_events()
    assert isinstance(cleared, AllBlocksCleared)
    assert cleared.resync
    for group in range(2):
        assert_chain([event for event in events if event.group_idx == group], prompt)


def test_a_sequence_that_leaves_while_its_step_runs_still_tells_what_it_wrote():
    server = MadeUpServer(16, groups=2, pool_options=EVENTS)
    prompts = [list(range(9)), list(range(50, 59))]
    leaving, _staying = (server.start(prompt) for prompt in prompts)
    step, num_samples = server.prepare()
    server.manager.close(leaving)
    server.manager.commit_step(step, server.compute(num_samples))
    events = server.pool.drain_events()
    for group in range(2):
        of_group = [event for event in events if event.group_idx == group]
        assert_chain([event for event in of_group if event.token_ids[0] < 50], prompts[0])
        assert_chain([event for event in of_group if event.token_ids[0] >= 50], prompts[1])


def test_a_sequence_that_leaves_an_unprepared_step_that_ran_still_tells_what_it_wrote():
    manager = MadeUpServer(16, pool_options=EVENTS).manager
    prompts = [list(range(9)), list(range(50, 59))]
    leaving, staying = (manager.open(prompt, max_tokens=2) for prompt in prompts)
    for handle in (leaving, staying):
        manager.admit(handle)
        manager.append(handle, 9)
    manager.commit(staying, [7])
    assert_chain(manager.pool.drain_events(), prompts[1])
    manager.close(leaving)
    assert_chain(manager.pool.drain_events(), prompts[0])


def test_tokens_are_left_out_where_the_pool_is_not_to_carry_them():
    server = MadeUpServer(16, pool_options={"event_capacity": 16})
    server.answer(list(range(9)))
    assert [event.token_ids for event in stored(server.pool.drain_events())] == [[], []]


def test_a_block_published_by_hand_tells_what_its_publisher_said():
    pool, keys = BlockPool(8, **EVENTS), BlockHasher(BLOCK_SIZE).hash_blocks(range(8))
    first, second = pool.allocate(2).into_ids()
    assert pool.publish(first, keys[0]) == "cached"
    assert pool.publish(second, keys[1], parent=keys[0], token_ids=[4, 5, 6, 7]) == "cached"
    events = stored(pool.drain_events())
    assert [event.block_hash for event in events] == [keys[0], keys[1]]
    assert [event.parent_block_hash for event in events] == [None, keys[0]]
    assert [event.token_ids for event in events] == [[], [4, 5, 6, 7]]
    assert keys[1].hex()[:16] in repr(events[1])


def test_what_events_could_not_carry_is_refused_with_the_numbers():
    pool, keys = BlockPool(8, **EVENTS), BlockHasher(BLOCK_SIZE).hash_blocks(range(8))
    (block,) = pool.allocate(1).into_ids()
    with pytest.raises(errors.InvalidConfigError, match="5 tokens, but events carry 4"):
        pool.publish(block, keys[0], token_ids=range(5))
    with pytest.raises(errors.InvalidConfigError, match="32 bytes, found 3"):
        pool.publish(block, keys[0], parent=b"abc")
    with pytest.raises(errors.InvalidConfigError, match="event_tokens of the pool is 3"):
        MadeUpServer(8, pool_options={"event_capacity": 8, "event_tokens": 3})
    assert pool.key_of(block) is None
    assert pool.drain_events() == []


def test_a_pool_keeps_no_events_unless_it_is_asked_to():
    pool = BlockPool(8)
    with pytest.raises(errors.InvalidConfigError, match="event_capacity is 0"):
        pool.drain_events()
    with pytest.raises(errors.InvalidConfigError, match=r"event_capacity is 16777217, allowed is 0 to"):
        BlockPool(8, event_capacity=2**24 + 1)


def test_of_two_threads_that_drain_at_once_one_is_refused_and_none_waits():
    # Every drain starts over, and looks at all of these blocks while other threads may run.
    pool = BlockPool(100_000, key_bits=128, event_capacity=1)
    (block,) = pool.allocate(1).into_ids()
    refused, gone_on = threading.Event(), threading.Event()

    def drain_until_refused():
        while not (refused.is_set() or gone_on.is_set()):
            try:
                pool.drain_events()
            except errors.ConcurrentUseError:
                refused.set()

    threads = [threading.Thread(target=drain_until_refused) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100_000):
        pool.publish(block, bytes(16))
        pool.retract(block)
        if refused.is_set():
            break
    gone_on.set()
    for thread in threads:
        thread.join()
    assert refused.is_set()


def test_servers_on_two_threads_and_a_reader_on_a_third_end_with_what_is_resident():
    pool_options = EVENTS | {"event_capacity": 8}
    first = MadeUpServer(12, pool_options=pool_options)
    servers = [first, MadeUpServer(12, beside=first)]
    consumer, done = EventConsumer(), threading.Event()

    def serve(server):
        for number in range(60):
            prompt = [number % 7] * 4 + [number % 3] * 9
            try:
                handle = server.start(prompt, 4)
            except errors.OutOfBlocksError:
                continue
            while server.manager.finish_reason(handle) is None:
                if server.manager.schedule_running(64, 64).blocked is not None:
                    break
                step = server.manager.prepare()
                server.manager.commit_step(step.step, [1] * step.num_samples)
            server.manager.close(handle)

    def listen():
        while not done.is_set():
            consumer.listen_to(first.pool)

    listener = threading.Thread(target=listen)
    workers = [threading.Thread(target=serve, args=(server,)) for server in servers]
    for thread in (listener, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    listener.join()
    consumer.listen_to(first.pool)
    assert {key for key, _ in consumer.resident} == resident_hashes(first.pool)
    assert len(consumer.announced) > 8
