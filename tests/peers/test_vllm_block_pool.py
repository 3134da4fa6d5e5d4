"""Random scripts through vLLM's own pool and manager and through ours: equal ids, queue order and hits.

Runs where vLLM is installed. From the root of the repository, once the extension is built:

    PYTHONPATH=python $(python benches/peers/vllm_environment.py) -m pytest tests/peers

vLLM caches a block when it schedules the tokens that fill it, so ours commits right after it schedules. vLLM
keeps every copy of a hash and ours has room for at least eight: scripts full of copies get no more blocks.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec, errors

pytest.importorskip("vllm")

from peers.vllm_core import VllmSequences, hash_seed
from vllm.v1.core.block_pool import BlockPool as VllmPool
from vllm.v1.core.kv_cache_utils import get_block_hash

MOST_BLOCKS = 9  # the null block and eight others
KEYS = [bytes([number]) * 32 for number in range(4)]


def queue(pool: VllmPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


class PoolsAgree(RuleBasedStateMachine):
    """``BlockPool`` of both sides; ``held`` has a block's id once per reference."""

    @initialize(num_blocks=st.integers(2, MOST_BLOCKS))
    def build(self, num_blocks):
        self.ours = BlockPool(num_blocks, duplicate_policy="keep_all")
        self.theirs = VllmPool(num_blocks, enable_caching=True, hash_block_size=16)
        self.held = []

    def blocks(self, ids):
        return [self.theirs.blocks[block_id] for block_id in ids]

    def plain_and_held(self):
        return sorted({block_id for block_id in self.held if self.ours.key_of(block_id) is None})

    def draw_some_held(self, data):
        held = sorted(set(self.held))
        return data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=len(held), unique=True))

    @rule(n=st.integers(0, MOST_BLOCKS))
    def allocate(self, n):
        if n > self.theirs.get_num_free_blocks():
            assert self.ours.try_allocate(n) is None
            return
        ids = self.ours.allocate(n).into_ids()
        assert ids == [block.block_id for block in self.theirs.get_new_blocks(n)]
        self.held += ids

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        ids = self.draw_some_held(data)
        self.ours.release(ids)
        self.theirs.free_blocks(self.blocks(ids))
        for block_id in ids:
            self.held.remove(block_id)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data):
        ids = self.draw_some_held(data)
        self.ours.share(ids)
        self.theirs.touch(self.blocks(ids))
        self.held += ids

    @precondition(lambda self: self.plain_and_held())
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def publish(self, data, key):
        block_id = data.draw(st.sampled_from(self.plain_and_held()))
        assert self.ours.publish(block_id, key) == "cached"
        request = SimpleNamespace(block_hashes=[key])
        self.theirs.cache_full_blocks(request, self.blocks([block_id]), 0, 1, self.theirs.hash_block_size, 0)

    @rule(data=st.data())
    def retract(self, data):
        block_id = data.draw(st.integers(1, self.ours.num_blocks - 1))
        assert self.ours.retract(block_id) == (self.theirs.blocks[block_id].block_hash is not None)
        self.theirs.evict_blocks({block_id})

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=4, unique=True), n=st.integers(0, MOST_BLOCKS))
    def admit(self, keys, n):
        found = (self.theirs.get_cached_block(key, [0]) for key in keys)
        hits = [blocks[0] for blocks in itertools.takewhile(bool, found)]
        if sum(block.ref_cnt == 0 for block in hits) + n > self.theirs.get_num_free_blocks():
            with pytest.raises(errors.OutOfBlocksError):
                self.ours.admit(keys, n)
            return
        blocks, num_hits = self.ours.admit(keys, n)
        self.theirs.touch(hits)
        taken = hits + self.theirs.get_new_blocks(n)
        assert blocks.ids == [block.block_id for block in taken]
        assert num_hits == len(hits)
        self.held += blocks.into_ids()

    @rule()
    def reset_prefix_cache(self):
        with pytest.raises(errors.BlocksInUseError) if self.held else contextlib.nullcontext():
            self.ours.reset_prefix_cache()
        assert self.theirs.reset_prefix_cache() == (not self.held)

    @invariant()
    def states_are_equal(self):
        assert self.ours.free_order() == queue(self.theirs)
        for block in self.theirs.blocks[1:]:
            assert self.ours.ref_cnt(block.block_id) == block.ref_cnt
            assert self.ours.key_of(block.block_id) == (block.block_hash and get_block_hash(block.block_hash))
        self.ours.check_invariants()


class BothManagers:
    """``KVCacheManager`` of both sides, led through one script; a sequence is a handle and a request."""

    MAX_MODEL_LEN = 256
    # vLLM does not say whether waiting can help.
    REFUSALS = (errors.OutOfBlocksError, errors.NeverFitsError)

    def __init__(self, num_blocks, block_size):
        self.block_size = block_size
        self.ours = KVCacheManager(
            BlockPool(num_blocks, duplicate_policy="keep_all"),
            [GroupSpec([LayerSpec(kv_heads=1, head_size_k=64)], block_size)],
            max_num_seqs=16,
            max_model_len=self.MAX_MODEL_LEN,
            max_num_batched_tokens=self.MAX_MODEL_LEN,
            hash_seed=hash_seed(),
        )
        self.theirs = VllmSequences(num_blocks, block_size, self.MAX_MODEL_LEN)
        self.waiting = []
        self.running = []

    def open(self, token_ids, salt):
        # Ours refuses here what can never fit, which vLLM lets wait for ever.
        token_ids = token_ids[: self.block_size * self.ours.pool.num_usable]
        handle = self.ours.open(token_ids, cache_salt=salt)
        self.waiting.append((handle, self.theirs.open(token_ids, salt)))

    def admit(self, index, sampled):
        handle, request = self.waiting[index]
        found = self.ours.match_prefix(handle).num_cached_tokens
        num_cached = self.theirs.admit(request)
        if num_cached is None:
            with pytest.raises(self.REFUSALS):
                self.ours.admit(handle)
            return
        assert self.ours.admit(handle) == found == num_cached
        self.running.append(self.waiting.pop(index))
        self.ours.append(handle, request.num_tokens - num_cached)
        self.commit(-1, sampled)

    def decode(self, index, sampled):
        handle, request = self.running[index]
        if not self.theirs.decode(request):
            with pytest.raises(self.REFUSALS):
                self.ours.append(handle, 1)
            return
        self.ours.append(handle, 1)
        self.commit(index, sampled)

    def commit(self, index, sampled):
        handle, request = self.running[index]
        finished = self.ours.commit(handle, [sampled])
        request.append_output_token_ids(sampled)
        assert (finished == "length") == (request.num_tokens == self.MAX_MODEL_LEN)
        if finished:
            self.finish(index)

    def preempt(self, index):
        handle, request = self.running[index]
        self.ours.preempt(handle)
        self.theirs.preempt(request)
        self.waiting.append(self.running.pop(index))

    def finish(self, index):
        handle, request = self.running.pop(index)
        self.ours.close(handle)
        self.theirs.manager.free(request)

    def reset_prefix_cache(self):
        self.ours.pool.reset_prefix_cache()
        assert self.theirs.manager.reset_prefix_cache()

    def check(self):
        assert self.ours.pool.free_order() == queue(self.theirs.manager.block_pool)
        for handle, request in self.running:
            assert self.ours.block_ids(handle) == self.theirs.manager.get_block_ids(request.request_id)[0]
        self.ours.check_invariants()


class ManagersAgree(RuleBasedStateMachine):
    """Short scripts over few blocks and two tokens, so that prompts share prefixes and blocks run out."""

    @initialize(num_blocks=st.integers(3, MOST_BLOCKS), block_size=st.sampled_from([1, 2, 4]))
    def build(self, num_blocks, block_size):
        self.both = BothManagers(num_blocks, block_size)

    @precondition(lambda self: len(self.both.waiting) + len(self.both.running) < 8)
    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=24), salt=st.none() | st.just("a"))
    def open(self, token_ids, salt):
        self.both.open(token_ids, salt)

    @precondition(lambda self: self.both.waiting)
    @rule(data=st.data(), sampled=st.integers(0, 1))
    def admit(self, data, sampled):
        self.both.admit(data.draw(st.integers(0, len(self.both.waiting) - 1)), sampled)

    @precondition(lambda self: self.both.running)
    @rule(data=st.data(), sampled=st.integers(0, 1))
    def decode(self, data, sampled):
        self.both.decode(data.draw(st.integers(0, len(self.both.running) - 1)), sampled)

    @precondition(lambda self: self.both.running)
    @rule(data=st.data(), how=st.sampled_from(["preempt", "finish"]))
    def leave(self, data, how):
        getattr(self.both, how)(data.draw(st.integers(0, len(self.both.running) - 1)))

    @precondition(lambda self: not self.both.running)
    @rule()
    def reset_prefix_cache(self):
        self.both.reset_prefix_cache()

    @invariant()
    def states_are_equal(self):
        self.both.check()


TestPoolsAgree = PoolsAgree.TestCase
TestManagersAgree = ManagersAgree.TestCase


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.nightly if n else ()) for n in range(20)])
def test_managers_agree_over_thousands_of_steps_of_a_full_cache(seed):
    rng = random.Random(seed)
    both = BothManagers(num_blocks=200, block_size=4)
    documents = [rng.choices(range(1000), k=200) for _ in range(4)]
    for step in range(4000):
        action = rng.choices(["open", "admit", "decode", "preempt", "finish"], [6, 6, 60, 1, 2])[0]
        sampled = rng.randrange(1000)
        if action == "open" and len(both.waiting) < 8:
            # The end is the prompt's own, or copies of one hash would pile up.
            prompt = rng.choice(documents)[: rng.randrange(200)]
            both.open([*prompt, 1000 + step], rng.choice([None, "a"]))
        elif action == "admit" and both.waiting and len(both.running) < 16:
            both.admit(0, sampled)
        elif action in ("decode", "preempt", "finish") and both.running:
            index = rng.randrange(len(both.running))
            both.decode(index, sampled) if action == "decode" else getattr(both, action)(index)
        both.check()
    stats = both.ours.stats()
    assert min(stats["prefix_hits"], stats["preemptions"], both.ours.pool.stats()["evictions"]) > 0
