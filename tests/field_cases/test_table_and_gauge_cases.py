"""Faults that other systems had with padding, scattered tables, failed batches and gauges.

A docstring names the case by letter and number and says where the fault was seen; the scenarios are ours.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from field_cases.made_up_server import MadeUpServer, text_after


def test_rows_and_tokens_that_pad_a_step_name_no_slot_and_no_block():
    """F3, vllm#43810 and NVIDIA/TensorRT-LLM#18673: padding was used as an index and overwrote a slot."""
    server = MadeUpServer(16, rows=8, longest=8)
    handles = [server.start([number], 4) for number in range(8)]
    server.step()
    for handle in handles[:5]:
        server.manager.close(handle)
    before = server.cache.copy()
    step, num_samples = server.prepare()
    written = [server.manager.slots_of(handle)[0] for handle in handles[5:]]
    assert server.slot_mapping[0].tolist() == [*written, *[-1] * 5]
    assert server.seq_lens.tolist() == [0] * 5 + [2] * 3
    assert np.flatnonzero(server.block_tables[0].any(axis=1)).tolist() == [5, 6, 7]
    assert server.sample_rows.tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    samples = server.compute(num_samples)
    assert np.flatnonzero(server.cache[0] != before[0]).tolist() == sorted(written)
    assert server.manager.commit_step(step, samples) == []
    assert [server.finish(handle) for handle in handles[5:]] == [text_after([n], 4) for n in (5, 6, 7)]
    server.assert_empty()


def test_a_text_in_scattered_blocks_is_the_text_of_a_fresh_pool():
    """F10, llama.cpp#14059 and #12253: garbage once the cache had been fragmented. Here nothing is moved."""
    server, prompt = MadeUpServer(12), list(range(20))
    holes = [server.start([number] * 5, 1) for number in range(6)]
    server.step()
    for handle in holes[::2]:
        server.manager.close(handle)
    handle = server.start(prompt, 4)
    table = server.manager.block_ids(handle)
    assert any(after != block + 1 for block, after in pairwise(table))
    assert server.finish(handle) == text_after(prompt, 4)
    for handle in holes[1::2]:
        server.manager.close(handle)
    server.assert_empty()


def test_a_batch_that_runs_out_of_blocks_halfway_keeps_what_it_has_and_changes_nothing_else():
    """F10, llama.cpp#12695: the state before a failed batch was not restored."""
    server = MadeUpServer(4)
    prompts = [[number] * 3 for number in (1, 2, 3)]
    handles = [server.start(prompt, 4) for prompt in prompts]
    first, second, third = handles
    for _ in range(2):
        server.step()
    # Each has filled its block now, and one block is left.
    assert server.pool.num_free == 1
    outcome = server.manager.schedule_running(64, 64)
    assert (outcome.num_tokens_scheduled, outcome.blocked) == (1, (second, 1))
    assert [len(server.manager.block_ids(handle)) for handle in handles] == [2, 1, 1]
    assert [server.manager.slots_of(handle) for handle in handles[1:]] == [[], []]
    for _ in range(3):
        again = server.manager.schedule_running(64, 64)
        assert (again.num_tokens_scheduled, again.blocked) == (0, (second, 1))
    server.manager.check_invariants()

    server.manager.preempt(third)
    assert server.finish(first) == text_after(prompts[0], 4)
    assert server.finish(second) == text_after(prompts[1], 4)
    server.manager.admit(third)
    assert server.finish(third) == text_after(prompts[2], 4)
    server.assert_empty()


def test_one_gauge_reads_zero_when_nobody_runs_and_another_shows_what_is_cached():
    """G2, vllm#20302 and #42827: the usage gauge told nothing about reusable blocks."""
    server = MadeUpServer(8)
    for number in range(2):
        server.answer([number] * 9)
    stats = server.pool.stats()
    assert (stats["in_use"], stats["cached_free"], stats["free"]) == (0, 4, 8)


def test_a_preemption_is_counted_at_once_even_if_its_victim_never_comes_back():
    """G2, vllm#58037: 0.32.0 counts it with the victim's next output, and never for one that is aborted."""
    server = MadeUpServer(8)
    handle = server.start([1, 2, 3], 4)
    server.step()
    assert server.manager.stats()["preemptions"] == 0
    server.manager.preempt(handle)
    assert server.manager.stats()["preemptions"] == 1
    server.manager.close(handle)
    assert server.manager.stats()["preemptions"] == 1
    server.assert_empty()


def test_a_shared_beginning_of_less_than_a_block_is_counted_as_too_short():
    """G6, vllm#53749 and #47430: caching was on, nothing ever hit, and nothing told why."""
    server = MadeUpServer(64, 64, longest=256)
    shared = list(range(40))
    for number in range(3):
        server.answer([*shared, *[100 + number] * 60])
    stats = server.manager.stats()
    assert (stats["prefix_hits"], stats["min_cacheable_tokens"], stats["short_prefixes"]) == (0, 65, 2)
    server.answer(shared)
    assert server.manager.stats()["short_prompts"] == 1
    # What hits, begins otherwise or belongs to another tenant is not too short.
    server.answer([*shared, *[100] * 60])
    server.answer([7] * 100)
    server.answer([*shared, *[100] * 60], salt="another")
    assert server.manager.stats()["short_prefixes"] == 2
