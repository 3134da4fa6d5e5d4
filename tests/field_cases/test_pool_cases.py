"""Faults that other systems had with references, leaks and eviction, each in a small scenario that shows it.

A docstring names the case by letter and number and says where the fault was seen; the scenarios are ours.
"""

from __future__ import annotations

import pytest

from field_cases.made_up_server import MadeUpServer, text_after
from looseleaf import BlockHasher, BlockPool, errors


def state_of(pool: BlockPool) -> object:
    """All that a caller can see of a pool, counters included."""
    blocks = range(pool.num_blocks)
    return pool.free_order(), [(pool.ref_cnt(block), pool.key_of(block)) for block in blocks], pool.stats()


def cached_chain(pool: BlockPool, num_blocks: int) -> tuple[list[bytes], list[int]]:
    """The keys of a chain, and its published blocks, one reference each."""
    keys = BlockHasher(4).hash_blocks(list(range(4 * num_blocks)))
    ids = pool.allocate(num_blocks).into_ids()
    for i, block in enumerate(ids):
        assert pool.publish(block, keys[i]) == "cached"
    return [keys[i] for i in range(num_blocks)], ids


# --- A. Leaks, double release, reference counts -------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([2, 1, 1], errors.DuplicateBlockError),
        ([2, 3], errors.DoubleReleaseError),
        ([2, 0], errors.NullBlockError),
    ],
    ids=["one twice", "a free one", "the null block"],
)
def test_a_release_of_ids_that_make_no_sense_is_refused_as_a_whole(ids, error):
    """A2, unified-cache-management#1053: such ids corrupted the queue."""
    pool = BlockPool(6)
    pool.allocate(2).into_ids()
    before = state_of(pool)
    with pytest.raises(error):
        pool.release(ids)
    assert state_of(pool) == before
    assert len(pool.free_order()) == pool.num_free
    pool.check_invariants()


def test_usage_returns_to_zero_after_each_request_and_never_passes_one():
    """A3, xLLM-AI/xllm#828: registering blocks before their release kept the gauge up, to 135 %."""
    server = MadeUpServer(4)
    for number in range(3):
        handle = server.start([number] * 9, max_tokens=4)
        while server.manager.finish_reason(handle) is None:
            server.step()
            assert 0 < server.usage <= 1
        server.manager.close(handle)
        assert server.usage == 0
    server.assert_empty()


def test_a_block_with_two_holders_is_counted_once_while_held_and_once_when_free():
    """A4, sgl-project/sglang#35270: the evictable size counted a shared page twice."""
    server = MadeUpServer(8)
    prefix = list(range(8))
    server.answer([*prefix, 1])
    pair = [server.start([*prefix, last, last, last, last, 0]) for last in (50, 60)]
    held = {block for handle in pair for block in server.manager.block_ids(handle)}
    assert len(held) == 2 + 2 * 2
    for remaining in (pair, pair[1:]):
        stats = server.pool.stats()
        distinct = {block for handle in remaining for block in server.manager.block_ids(handle)}
        assert (stats["in_use"], stats["in_use"] + stats["free"]) == (len(distinct), 8)
        server.finish(remaining[0])
    stats = server.pool.stats()
    assert (stats["in_use"], stats["free"], stats["cached_free"]) == (0, 8, 4)
    server.assert_empty()


@pytest.mark.parametrize("lacking", ["row", "blocks"])
def test_a_thousand_admissions_that_fail_leave_no_trace(lacking):
    """A5, sgl-project/sglang#16067 and #15840: the resource taken first was not returned."""
    server = MadeUpServer(8, rows=1 if lacking == "row" else 4)
    server.answer(list(range(9)))
    if lacking == "row":
        server.start([1])
        error = errors.NoFreeRowError
    else:
        server.start([1] * 21)  # six of the eight blocks
        error = errors.OutOfBlocksError
    # Two of its five blocks are cached; where blocks are lacking, those two are all that is free.
    handle = server.manager.open([*range(9), *[3] * 8])
    before = state_of(server.pool)
    for _ in range(1000):
        with pytest.raises(error):
            server.manager.admit(handle)
    assert state_of(server.pool) == before
    server.manager.check_invariants()


def test_prompts_that_are_too_long_never_touch_the_pool():
    """A6, vllm#27073: usage climbed after over-length requests and stayed for hours."""
    server = MadeUpServer(8, longest=16)
    for number in range(50):
        before = state_of(server.pool)
        with pytest.raises(errors.NeverFitsError, match="max_model_len"):
            server.manager.open([number] * 17)
        assert state_of(server.pool) == before
        prompt = [number, 1, 2, 3, 4]
        assert server.answer(prompt, 2) == text_after(prompt, 2)
    server.assert_empty()


@pytest.mark.parametrize(("policy", "hashed"), [("first_wins", 2), ("keep_all", 4)])
def test_two_copies_computed_at_once_are_both_given_back(policy, hashed):
    """A9, NVIDIA/TensorRT-LLM#12933: storing blocks that the cache had already orphaned the new ones."""
    server = MadeUpServer(8, pool_options={"duplicate_policy": policy})
    prompt = list(range(8))
    # Both are admitted before either is scheduled, so neither can build on the other.
    pair = [server.start(prompt, 2) for _ in range(2)]
    server.step()
    stats = server.pool.stats()
    assert (stats["in_use"], stats["hashed"]) == (4, hashed)
    assert [server.finish(handle) for handle in pair] == [text_after(prompt, 2)] * 2
    assert server.pool.stats()["cached_free"] == hashed
    server.assert_empty()


@pytest.mark.parametrize("in_flight", [False, True], ids=["between steps", "while its second chunk runs"])
def test_an_abort_in_the_middle_of_a_block_frees_that_block_once(in_flight):
    """A10, sgl-project/sglang#38981: freed ranges overlapped a page and the server exited."""
    server = MadeUpServer(4)
    prompt = list(range(14))
    handle = server.start(prompt)
    server.step(budget=6)
    assert server.manager.num_computed_tokens(handle) == 6
    if in_flight:
        step, num_samples = server.prepare(budget=6)
        server.manager.close(handle)
        assert server.usage == 1, "the step may still write to all four"
        server.manager.commit_step(step, server.compute(num_samples))
    else:
        server.manager.close(handle)
    server.assert_empty()
    again = server.start(prompt, 2)
    assert server.manager.num_cached_tokens(again) == (12 if in_flight else 4)
    assert server.finish(again) == text_after(prompt, 2)
    server.assert_empty()


def test_a_block_forgets_its_hash_before_it_is_handed_out_again():
    """A11, vllm#4764 and ovg-project/kvcached#362: the old hash still led to the reused block."""
    pool = BlockPool(3)
    keys, ids = cached_chain(pool, 2)
    pool.release(ids[::-1])
    assert len(pool.match_prefix(keys)) == 2
    with pool.allocate(2) as reused:
        assert sorted(reused) == sorted(ids)
        assert [pool.key_of(block) for block in reused] == [None, None]
        assert len(pool.match_prefix(keys)) == 0
    assert len(pool.match_prefix(keys)) == 0
    pool.check_invariants()


# --- C. Eviction order --------------------------------------------------------------------------------------


def test_a_block_whose_child_is_held_can_be_evicted():
    """C2, NVIDIA/TensorRT-LLM#699 and #2708: evicting a block with children failed an assertion."""
    pool = BlockPool(6)
    keys, ids = cached_chain(pool, 3)
    pool.release(ids[1::-1])
    rest = pool.allocate(4)
    assert rest.ids[-2:] == [ids[1], ids[0]], "of the two free ones the leaf goes first"
    assert (pool.key_of(ids[2]), len(pool.match_prefix(keys))) == (keys[2], 0)
    pool.release(ids[2:])
    rest.release()
    assert sorted(pool.allocate(5)) == [1, 2, 3, 4, 5]
    pool.check_invariants()


def test_the_end_of_a_prefix_goes_first_and_no_hit_is_counted_past_a_hole():
    """C3, llm-d/llm-d-inference-sim#704 and #701: blocks released together went in any order."""
    pool = BlockPool(4)
    keys, ids = cached_chain(pool, 3)
    pool.release(ids[::-1])
    with pool.allocate(1) as taken:
        assert taken.ids == ids[2:]
    assert pool.match_prefix(keys).ids == ids[:2]
    assert pool.retract(ids[0])
    assert pool.match_prefix(keys).ids == []
    pool.check_invariants()


def test_blocks_released_while_a_step_runs_are_evicted_in_the_order_of_those_released_at_rest():
    """C4, vllm#48489: deferred frees of several groups lost the order within each."""
    orders = []
    for deferred in (True, False):
        server = MadeUpServer(16, groups=2)
        handle = server.start(list(range(12)), 2)
        tables = [server.manager.block_ids(handle, group) for group in range(2)]
        step, num_samples = server.prepare()
        if deferred:
            server.manager.close(handle)
            assert server.pool.num_free == 10
        server.manager.commit_step(step, server.compute(num_samples))
        if not deferred:
            server.manager.close(handle)
        server.assert_empty()
        assert server.pool.stats()["cached_free"] == 6
        order = server.pool.free_order()
        for table in tables:
            assert [block for block in order if block in table] == table[::-1], "each group's end goes first"
        orders.append(order)
    assert orders[0] == orders[1]


def test_cached_prefixes_are_given_up_before_a_prompt_is_refused():
    """C6, EricLBuehler/mistral.rs#167: out of memory while unreferenced prefixes filled it."""
    server = MadeUpServer(6)
    for number in range(3):
        server.answer([number] * 8)
    assert server.pool.stats()["cached_free"] == 6
    prompt = list(range(100, 123))
    assert server.answer(prompt) == text_after(prompt, 1)
    assert server.pool.stats()["evictions"] == 6
    server.assert_empty()
