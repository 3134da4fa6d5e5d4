"""The arena beside the pool: what comes back is what went out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from looseleaf.tiers.host import HostTier


class TierMachine(RuleBasedStateMachine):
    """Against a dictionary."""

    @initialize(num_blocks=st.integers(1, 6))
    def begin(self, num_blocks):
        self.cache = torch.arange(8 * 3 * 5).view(8, 3, 5).clone()
        self.tier = HostTier(self.cache, num_blocks)
        self.stored: dict[bytes, torch.Tensor] = {}

    @rule(blocks=st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True), data=st.data())
    def store(self, blocks, data):
        names = st.lists(st.binary(min_size=1, max_size=1), min_size=4, max_size=4, unique=True)
        keys = [key for key in data.draw(names) if key not in self.stored][: len(blocks)]
        blocks = blocks[: len(keys)]
        job = self.tier.store(keys, blocks)
        if len(self.stored) + len(keys) > self.tier.num_blocks:
            assert job is None
            return
        (end,) = self.tier.poll()
        assert (end.job, end.succeeded) == (job, True)
        assert end.seconds >= 0
        self.stored |= {key: self.cache[block].clone() for key, block in zip(keys, blocks, strict=True)}

    @rule(block=st.integers(0, 7), value=st.integers(1000, 9999))
    def write(self, block, value):
        self.cache[block] = value

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), first=st.integers(0, 4))
    def load(self, data, first):
        keys = data.draw(st.lists(st.sampled_from(sorted(self.stored)), min_size=1, max_size=3, unique=True))
        before = self.cache.clone()
        blocks = range(first, first + len(keys))
        job = self.tier.load(keys, blocks)
        (end,) = self.tier.poll()
        assert (end.job, end.succeeded) == (job, True)
        before[first : first + len(keys)] = torch.stack([self.stored[key] for key in keys])
        assert torch.equal(self.cache, before), "these blocks, and no others"

    @rule(keys=st.lists(st.binary(min_size=1, max_size=1), max_size=3))
    def drop(self, keys):
        self.tier.drop(keys)
        for key in keys:
            self.stored.pop(key, None)

    @rule(keys=st.lists(st.binary(min_size=1, max_size=1), max_size=3))
    def lookup(self, keys):
        leading = next((at for at, key in enumerate(keys) if key not in self.stored), len(keys))
        assert self.tier.lookup(keys) == leading

    @invariant()
    def every_block_counts_once(self):
        if hasattr(self, "tier"):
            assert self.tier.num_free == self.tier.num_blocks - len(self.stored)
            assert self.tier.is_empty == (not self.stored)


test_an_arena_is_a_dictionary_of_blocks = TierMachine.TestCase


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_blocks_of_any_dtype_come_back_bit_for_bit(dtype):
    cache = torch.randn(4, 2, 8).mul(100).to(dtype)
    before = cache.clone()
    tier = HostTier(cache, 2)
    assert tier.bytes_per_block == 16 * dtype.itemsize
    tier.store([b"a", (7, 1)], [3, 0])
    cache.zero_()
    tier.load([(7, 1), b"a"], [0, 3])
    assert torch.equal(cache[[0, 3]], before[[0, 3]])
    assert not cache[[1, 2]].any()


def test_a_key_that_is_not_there_fails_and_writes_nothing():
    cache = torch.ones(4, 2)
    tier = HostTier(cache, 2)
    tier.store([b"a"], [1])
    tier.load([b"a", b"b"], [2, 3])
    assert [end.succeeded for end in tier.poll()] == [True, False]
    assert cache.eq(1).all()


def test_a_probe_leaves_no_trace():
    cache = torch.ones(4, 1000)
    tier = HostTier(cache, 3)
    num_bytes, seconds = tier.probe()
    assert num_bytes == 3 * 4000
    assert seconds > 0
    assert tier.is_empty
    assert tier.poll() == []
    assert tier.num_free == 3
