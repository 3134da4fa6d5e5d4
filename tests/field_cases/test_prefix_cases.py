"""Faults that other systems had with prefixes: wrong reuse, leaks between tenants, blocks read too early.

A docstring names the case by letter and number and says where the fault was seen; the scenarios are ours.
"""

from __future__ import annotations

import hashlib
import random

import pytest

from field_cases.made_up_server import MadeUpServer, text_after
from looseleaf import BlockHasher, BlockPool, errors


def keys_of_four_bits(tokens: list[int], block_size: int) -> list[bytes]:
    """Chained hashes of which 4 bits are left."""
    keys, parent = [], bytes(32)
    for end in range(block_size, len(tokens) + 1, block_size):
        digest = hashlib.sha256(parent + repr(tokens[end - block_size : end]).encode()).digest()
        parent = bytes(31) + bytes([digest[0] & 15])
        keys.append(parent)
    return keys


@pytest.mark.parametrize("verify", [True, False])
def test_prompts_whose_hashes_collide_take_no_block_of_another_prompt_if_tokens_are_verified(verify: bool):
    """B5, vllm#12621, openvino.genai#3722, xinfer#405: a prompt got the keys and values of another one.

    By the pool's own calls, with 4 of the 256 bits of each hash. Without verification the same prompts do.
    """
    pool, rng = BlockPool(301, verify_tokens=4 if verify else 0), random.Random(5)
    contents: dict[int, list[int]] = {}
    hits = wrong = 0
    prompts = [[rng.randrange(100) for _ in range(rng.randrange(4, 13))] for _ in range(100)]
    for prompt in [*prompts, *prompts]:
        keys = keys_of_four_bits(prompt, 4)
        table, found = pool.admit_table(keys, len(keys), token_ids=prompt)
        hits += found
        wrong += sum(contents[block] != prompt[: 4 * (i + 1)] for i, block in enumerate(table.ids[:found]))
        contents |= {block: prompt[: 4 * (i + 1)] for i, block in enumerate(table) if i >= found}
        pool.publish_prefix(table, keys, found, token_ids=prompt)
        table.release()
    pool.check_invariants()
    assert hits > 0
    assert (wrong == 0) == verify
    assert (pool.stats()["collisions"] > 100) == verify


def test_a_server_that_verifies_tokens_writes_what_others_write_and_hits_what_they_hit():
    """B5, as above: verification costs no hit as long as no hash collides."""
    for groups in (1, 2):
        servers = [
            MadeUpServer(
                32, groups=groups, pool_options={"verify_tokens": verify}, verify_tokens=bool(verify)
            )
            for verify in (0, 4)
        ]
        hits = []
        for server in servers:
            for prompt in ([1] * 9, [1] * 13, [1, 1, 1, 1, 2, 2, 2, 2, 2], [1] * 9):
                for salt in (None, "a"):
                    assert server.answer(prompt, 6, salt=salt) == text_after(prompt, 6)
            server.assert_empty()
            hits.append(server.manager.stats()["prefix_hits"])
            assert server.pool.stats()["collisions"] == server.pool.stats()["orphans"] == 0
        assert hits[0] == hits[1] > 0


def test_tenants_share_nothing_across_salts_and_everything_within_one():
    """B6, vllm#16016 and sgl-project/sglang#1504: the cache told one tenant what another had asked."""
    pool, hasher, prompt = BlockPool(16), BlockHasher(4), list(range(12))
    keys = {salt: hasher.hash_blocks(prompt, cache_salt=salt) for salt in ("a", "b")}
    with pool.allocate(3) as blocks:
        for i, block in enumerate(blocks):
            pool.publish(block, keys["a"][i])
    assert len(pool.match_prefix(keys["b"])) == 0
    assert len(pool.match_prefix(keys["a"])) == 3


def test_a_block_that_a_step_is_about_to_fill_is_not_offered_to_another_tenant():
    """B6, as above, by way of the blocks announced within a step."""
    server, prompt = MadeUpServer(16), list(range(13))
    handles = []
    for salt, cached in [("a", 0), ("b", 0), (None, 0), ("a", 12), ("b", 12)]:
        handle = server.manager.open(prompt, max_tokens=3, cache_salt=salt)
        assert server.manager.match_prefix(handle).num_cached_tokens == cached
        assert server.manager.admit(handle) == cached
        server.manager.append(handle, 13 - cached)
        handles.append(handle)
    assert [server.finish(handle) for handle in handles] == [text_after(prompt, 3)] * 5
    server.assert_empty()


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_prompt_of_whole_blocks_computes_its_end_and_leaves_one_copy_however_often_it_comes(num_blocks):
    """B7, vllm#11186 and #17999: nothing left to compute. 0.32.0 also keeps a duplicate of each repeat."""
    server, prompt = MadeUpServer(8), list(range(4 * num_blocks))
    for repeat in range(4):
        handle = server.start(prompt, 2)
        assert server.manager.num_cached_tokens(handle) == (4 * (num_blocks - 1) if repeat else 0)
        assert server.finish(handle) == text_after(prompt, 2), "as computed by a cold run"
        assert server.pool.stats()["hashed"] == num_blocks
    server.assert_empty()


def three_alike(server: MadeUpServer) -> tuple[list[int], list[int]]:
    """One prompt three times in one step, the later two on blocks that the first is to fill."""
    prompt, handles = list(range(10)), []
    for cached in (0, 8, 8):
        handle = server.manager.open(prompt, max_tokens=6)
        assert server.manager.admit(handle) == cached
        server.manager.append(handle, 10 - cached)
        handles.append(handle)
    return prompt, handles


def test_three_identical_prompts_in_one_step_write_what_each_writes_alone():
    """B10, vllm#37152 and sgl-project/sglang#38319: blocks registered within a step were read too early."""
    server = MadeUpServer(16)
    prompt, handles = three_alike(server)
    assert [server.finish(handle) for handle in handles] == [text_after(prompt, 6)] * 3
    server.assert_empty()


def test_those_who_count_on_a_prompt_that_is_aborted_before_its_step_start_again():
    """B10, as above, with the first aborted between schedule and execution."""
    server = MadeUpServer(16)
    prompt, (first, *others) = three_alike(server)
    lost = server.manager.close(first)
    assert sorted(lost) == sorted(others)
    assert server.usage == 0
    for handle in others:
        server.manager.admit(handle)
    assert [server.finish(handle) for handle in others] == [text_after(prompt, 6)] * 2
    server.assert_empty()


def test_those_who_count_on_a_prompt_that_is_aborted_while_its_step_runs_go_on():
    """B10, as above, with the abort during execution: the step fills the blocks all the same."""
    server = MadeUpServer(16)
    prompt, (first, *others) = three_alike(server)
    step, num_samples = server.prepare()
    assert server.manager.close(first) == []
    server.manager.commit_step(step, server.compute(num_samples))
    assert [server.finish(handle) for handle in others] == [text_after(prompt, 6)] * 2
    server.assert_empty()


def test_those_who_count_on_a_step_that_fails_start_again():
    """B10, as above, with a step that does not run to its end."""
    server = MadeUpServer(16)
    prompt, handles = three_alike(server)
    step, _ = server.prepare()
    assert sorted(server.manager.fail_step(step)) == sorted(handles)
    assert len(server.pool.match_prefix(BlockHasher(4).hash_blocks(prompt))) == 0
    rows = [server.manager.row(handle) for handle in handles]
    assert rows == [0, None, None], "the first kept its blocks, the others had counted on it"
    for handle in handles[1:]:
        server.manager.admit(handle)
    assert [server.finish(handle) for handle in handles] == [text_after(prompt, 6)] * 3
    server.assert_empty()


def test_the_cache_is_not_half_reset_while_a_request_runs_and_wholly_once_none_does():
    """B11, vllm#9744 and InternLM/lmdeploy#4917: keys and values of old weights were used after an update."""
    server, prompt = MadeUpServer(16), list(range(9))
    server.answer(prompt)
    running = server.start([*prompt, 1, 2, 3], 4)
    server.step()
    hashed = server.pool.stats()["hashed"]
    with pytest.raises(errors.BlocksInUseError, match="3"):
        server.pool.reset_prefix_cache()
    assert server.pool.stats()["hashed"] == hashed == 3
    assert len(server.pool.match_prefix(BlockHasher(4).hash_blocks(prompt))) == 2

    server.manager.preempt(running)
    server.pool.reset_prefix_cache()
    assert server.pool.stats()["hashed"] == 0
    assert server.manager.admit(running) == 0
    server.manager.append(running, server.manager.num_tokens(running))
    assert server.finish(running) == text_after([*prompt, 1, 2, 3], 4)
    server.assert_empty()


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_each_draft_has_the_slot_of_its_own_block_when_blocks_are_scattered(num_right):
    """B12, huggingface/text-generation-inference#2711: slots of drafts were taken to be contiguous."""
    server = MadeUpServer(12)
    manager, prompt = server.manager, [3, 1, 4, 1, 5]
    other = server.start([9] * 5, 12)
    handle = server.start(prompt, 12)
    for _ in range(5):
        server.step()
    text = prompt + text_after(prompt, 12)
    assert manager.tokens(handle) == text[:10]
    scatter = server.pool.allocate(1)  # the block that would have followed

    # Token 9 is known; drafts for 10, 11 and 12 cross the edge of a block.
    drafts = [*text[10 : 10 + num_right], *[996] * (3 - num_right)]
    manager.append(handle, 4, drafts)
    manager.close(other)
    table = manager.block_ids(handle)
    assert table[3] != table[2] + 1
    slots = [table[position // 4] * 4 + position % 4 for position in range(9, 13)]
    assert manager.slots_of(handle) == slots
    step, num_samples = server.prepare()
    assert server.slot_mapping[0][:5].tolist() == [*slots, -1]
    server.compute(num_samples)
    manager.commit(handle, text[10 : 10 + num_right + 1])
    manager.commit_step(step, [0])
    assert manager.tokens(handle) == text[: 10 + num_right + 1]
    scatter.release()
    assert server.finish(handle) == text[5:17]
    server.assert_empty()


def test_a_request_that_wants_output_at_every_token_reads_no_cache_and_fills_it():
    """B8, vllm#8268: prompt log-probabilities came up short by what was cached."""
    server = MadeUpServer(16)
    prompt = list(range(9))
    server.answer(prompt)
    handle = server.manager.open(prompt, max_tokens=1, skip_reading_prefix_cache=True)
    assert server.manager.match_prefix(handle).num_cached_tokens == 0
    assert server.manager.admit(handle) == 0
    assert server.finish(handle) == text_after(prompt, 1)
    other = list(range(20, 29))
    handle = server.manager.open(other, max_tokens=1, skip_reading_prefix_cache=True)
    server.manager.admit(handle)
    server.finish(handle)
    handle = server.start(other)
    assert server.manager.num_cached_tokens(handle) == 8
    server.finish(handle)
    server.assert_empty()
