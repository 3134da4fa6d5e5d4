"""The pool from Python, against a list model of vLLM 0.32's free queue."""

import gc

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from looseleaf import BlockKeys, BlockPool, errors

NUM_BLOCKS = 6


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


class ListModel:
    """Free queue as a list: blocks without a hash go to its front, hashed ones to its back."""

    def __init__(self, append_all: bool) -> None:
        self.append_all = append_all
        self.queue = list(range(1, NUM_BLOCKS))
        self.ref_cnt = dict.fromkeys(self.queue, 0)
        self.hash: dict[int, bytes] = {}

    def allocate(self, n: int) -> list[int]:
        taken, self.queue = self.queue[:n], self.queue[n:]
        for block in taken:
            self.ref_cnt[block] = 1
            self.hash.pop(block, None)
        return taken

    def release(self, blocks: list[int]) -> None:
        front, back = [], []
        for block in blocks:
            self.ref_cnt[block] -= 1
            if self.ref_cnt[block] == 0:
                (back if self.append_all or block in self.hash else front).append(block)
        self.queue = front + self.queue + back

    def match(self, keys: list[bytes]) -> list[int]:
        found = []
        for wanted in keys:
            holder = [block for block, present in self.hash.items() if present == wanted]
            if not holder:
                break
            found.append(holder[0])
        return found

    def take(self, blocks: list[int]) -> None:
        for block in blocks:
            if self.ref_cnt[block] == 0:
                self.queue.remove(block)
            self.ref_cnt[block] += 1


class PoolMachine(RuleBasedStateMachine):
    @initialize(order=st.sampled_from(["unhashed_first", "append_all"]))
    def build(self, order):
        self.pool = BlockPool(NUM_BLOCKS, free_order=order)
        self.model = ListModel(order == "append_all")
        self.lists = []

    @rule(n=st.integers(0, NUM_BLOCKS))
    def allocate(self, n):
        free = len(self.model.queue)
        if n > free:
            assert self.pool.try_allocate(n) is None
            with pytest.raises(errors.OutOfBlocksError) as caught:
                self.pool.allocate(n)
            assert (caught.value.asked, caught.value.free) == (n, free)
            return
        blocks = self.pool.allocate(n)
        assert blocks.ids == self.model.allocate(n)
        self.lists.append(blocks)

    @precondition(lambda self: self.lists)
    @rule(data=st.data(), how=st.sampled_from(["release", "drop", "with", "ids"]))
    def give_back(self, data, how):
        blocks = self.lists.pop(data.draw(st.integers(0, len(self.lists) - 1)))
        ids = blocks.ids
        if how == "release":
            blocks.release()
            blocks.release()
        elif how == "with":
            with blocks:
                pass
        elif how == "ids":
            ids = blocks.into_ids()
            self.pool.release(ids)
            self.model.release(ids)
            return
        del blocks
        gc.collect(0)
        self.model.release(ids[::-1])

    @precondition(lambda self: self.lists)
    @rule(data=st.data())
    def share(self, data):
        blocks = data.draw(st.sampled_from(self.lists))
        if len(set(blocks.ids)) == len(blocks):
            self.lists.append(blocks.share())
            self.model.take(blocks.ids)

    @precondition(lambda self: any(len(blocks) for blocks in self.lists))
    @rule(data=st.data(), number=st.integers(0, 3))
    def publish(self, data, number):
        block = data.draw(st.sampled_from([b for blocks in self.lists for b in blocks.ids]))
        if block in self.model.hash:
            with pytest.raises(errors.AlreadyPublishedError):
                self.pool.publish(block, key(number))
        elif key(number) in self.model.hash.values():
            assert self.pool.publish(block, key(number)) == "duplicate"
        else:
            assert self.pool.publish(block, key(number)) == "cached"
            self.model.hash[block] = key(number)

    @rule(block=st.integers(1, NUM_BLOCKS - 1))
    def retract(self, block):
        assert self.pool.retract(block) == (self.model.hash.pop(block, None) is not None)

    @rule(numbers=st.lists(st.integers(0, 3), max_size=4, unique=True))
    def match_prefix(self, numbers):
        keys = [key(number) for number in numbers]
        cached = self.model.match(keys)
        free = sum(self.model.ref_cnt[block] == 0 for block in cached)
        assert self.pool.peek_prefix(keys) == (len(cached), free)
        blocks = self.pool.match_prefix(keys)
        assert blocks.ids == cached
        self.model.take(blocks.ids)
        self.lists.append(blocks)

    @rule(numbers=st.lists(st.integers(0, 3), max_size=4, unique=True), n=st.integers(0, NUM_BLOCKS))
    def admit(self, numbers, n):
        keys = [key(number) for number in numbers]
        hits = self.model.match(keys)
        if sum(self.model.ref_cnt[b] == 0 for b in hits) + n > len(self.model.queue):
            with pytest.raises(errors.OutOfBlocksError):
                self.pool.admit(keys, n)
            return
        blocks, num_hits = self.pool.admit(keys, n)
        self.model.take(hits)
        assert num_hits == len(hits)
        assert blocks.ids == hits + self.model.allocate(n)
        self.lists.append(blocks)

    @rule(
        numbers=st.lists(st.integers(0, 3), max_size=4, unique=True),
        num_blocks=st.integers(0, NUM_BLOCKS),
        packed=st.booleans(),
    )
    def admit_table(self, numbers, num_blocks, packed):
        keys = [key(number) for number in numbers]
        hits = self.model.match(keys[:num_blocks])
        new = num_blocks - len(hits)
        wanted = BlockKeys(keys) if packed else keys
        if sum(self.model.ref_cnt[b] == 0 for b in hits) + new > len(self.model.queue):
            with pytest.raises(errors.OutOfBlocksError):
                self.pool.admit_table(wanted, num_blocks)
            return
        blocks, num_hits = self.pool.admit_table(wanted, num_blocks)
        self.model.take(hits)
        assert num_hits == len(hits)
        assert blocks.ids == hits + self.model.allocate(new)
        self.lists.append(blocks)

    @precondition(lambda self: self.lists)
    @rule(data=st.data(), numbers=st.lists(st.integers(0, 3), max_size=4), start=st.integers(0, 4))
    def publish_prefix(self, data, numbers, start):
        # By index: a list that an exception's frames hold on to would outlive its last name here.
        index = data.draw(st.integers(0, len(self.lists) - 1))
        ids = self.lists[index].ids
        keys = [key(number) for number in numbers]
        published = dict(zip(ids[start:], keys[start:], strict=False))
        if start > len(keys) or len(ids) < len(keys):
            expected: type[Exception] | None = errors.InvalidConfigError
        elif published.keys() & self.model.hash.keys():
            expected = errors.AlreadyPublishedError
        elif len(published) < len(keys) - start:
            expected = errors.DuplicateBlockError
        else:
            expected = None
        if expected:
            with pytest.raises(expected):
                self.pool.publish_prefix(ids, keys, start)
            return
        before = len(self.model.hash)
        for block, wanted in published.items():
            if wanted not in self.model.hash.values():
                self.model.hash[block] = wanted
        cached = self.pool.publish_prefix(self.lists[index], BlockKeys(keys), start)
        assert cached == len(self.model.hash) - before

    @rule()
    def reset(self):
        if any(self.model.ref_cnt.values()):
            with pytest.raises(errors.BlocksInUseError):
                self.pool.reset_prefix_cache()
        else:
            self.pool.reset_prefix_cache()
            self.model.hash.clear()

    @rule(data=st.data(), block=st.integers(0, NUM_BLOCKS + 1))
    def misuse(self, data, block):
        held = [b for b, count in self.model.ref_cnt.items() if count]
        if block == 0:
            expected: type[Exception] = errors.NullBlockError
        elif block >= NUM_BLOCKS:
            expected = errors.UnknownBlockError
        elif block not in held:
            expected = errors.DoubleReleaseError
        else:
            with pytest.raises(errors.DuplicateBlockError):
                self.pool.release([block, block])
            with pytest.raises(errors.DuplicateBlockError):
                self.pool.share([block, block])
            return
        before = self.state()
        with pytest.raises(expected):
            self.pool.release([*held, block])
        with pytest.raises(errors.PoolError):
            self.pool.share([*held, block])
        with pytest.raises(errors.PoolError):
            self.pool.publish(block, key(0))
        assert self.state() == before

    def state(self):
        snapshot = self.pool.snapshot()
        return bytes(snapshot.ref_cnt), bytes(snapshot.uses), self.pool.free_order(), self.pool.stats()

    @invariant()
    def pool_equals_model(self):
        if not hasattr(self, "pool"):
            return
        self.pool.check_invariants()
        assert self.pool.free_order() == self.model.queue
        assert self.pool.num_free == len(self.model.queue)
        for block, count in self.model.ref_cnt.items():
            assert self.pool.ref_cnt(block) == count
            assert self.pool.key_of(block) == self.model.hash.get(block)
            assert self.pool.is_writable(block) == (count == 1 and block not in self.model.hash)
        snapshot = self.pool.snapshot()
        assert list(snapshot.ref_cnt) == [0, *self.model.ref_cnt.values()]
        assert [snapshot.USES[use] for use in snapshot.uses] == ["null", *map(self.use, self.model.ref_cnt)]

    def use(self, block):
        if self.model.ref_cnt[block]:
            return "published" if block in self.model.hash else "in_use"
        return "cached" if block in self.model.hash else "free"


TestPoolMachine = PoolMachine.TestCase


def test_the_first_block_handed_out_is_1_because_0_is_the_null_block():
    pool = BlockPool(8)
    assert (pool.num_blocks, pool.num_usable) == (8, 7)
    assert list(pool.allocate(7)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_list_behaves_as_a_sequence_of_ids():
    blocks = BlockPool(8).allocate(3)
    assert (len(blocks), blocks[0], blocks[-1], list(blocks)) == (3, 1, 3, [1, 2, 3])
    assert repr(blocks) == "BlockList([1, 2, 3])"
    for outside in (3, -4):
        with pytest.raises(IndexError, match=str(outside)):
            blocks[outside]


def test_a_snapshot_is_read_in_place_by_numpy():
    pool = BlockPool(5)
    blocks = pool.allocate(2)
    more = blocks.share()
    pool.publish(blocks[0], key(1))
    snapshot = pool.snapshot()
    ref_cnt, uses = np.asarray(snapshot.ref_cnt), np.asarray(snapshot.uses)
    assert (ref_cnt.dtype, uses.dtype, len(snapshot)) == (np.int32, np.uint8, 5)
    assert ref_cnt.tolist() == [0, 2, 2, 0, 0]
    assert [snapshot.USES[use] for use in uses] == ["null", "published", "in_use", "free", "free"]
    with pytest.raises(ValueError, match="read-only"):
        ref_cnt[0] = 1
    more.release()
    assert snapshot.ref_cnt[1] == 2, "what was taken stays as it was"


def test_a_list_is_refused_by_another_pool_and_where_raw_ids_are_released():
    ours, theirs = BlockPool(8), BlockPool(8)
    theirs.allocate(3).into_ids()
    blocks = ours.allocate(2)
    for misuse in (lambda: theirs.share(blocks), lambda: theirs.publish_prefix(blocks, [key(1)])):
        with pytest.raises(errors.ForeignBlocksError, match="blocks of another pool"):
            misuse()
    for pool in (ours, theirs):
        with pytest.raises(errors.ForeignBlocksError, match="call its release"):
            pool.release(blocks)
    assert [ours.ref_cnt(block) for block in blocks] == [1, 1]
    ours.share(blocks)
    ours.release(list(blocks))
    blocks.release()
    assert (ours.num_free, theirs.num_free) == (7, 4)


def test_a_list_outlives_the_last_name_of_its_pool():
    blocks = BlockPool(8).allocate(3)
    gc.collect()
    blocks.release()
    assert len(blocks) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"num_blocks": 1}, "num_blocks is 1"),
        ({"free_order": "lifo"}, "free_order must be one of .*unhashed_first.*'?lifo"),
        ({"duplicate_policy": "none"}, "duplicate_policy must be one of .*first_wins"),
        ({"verify_tokens": 1 << 17}, "verify_tokens is 131072"),
        ({"key_bits": 64}, "key_bits must be 128 or 256, found 64"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused_by_field(options, said):
    with pytest.raises(errors.InvalidConfigError, match=said):
        BlockPool(**{"num_blocks": 8, **options})


def test_impossible_sizes_and_ids_are_refused_before_anything_happens():
    pool = BlockPool(8)
    with pytest.raises(errors.OutOfBlocksError, match="18446744073709551615"):
        pool.allocate(2**64 - 1)
    for size in (-1, 2**64):
        with pytest.raises(OverflowError):
            pool.allocate(size)
    with pytest.raises(errors.InvalidConfigError, match="32 bytes, found 3"):
        pool.publish(1, b"abc")
    assert pool.num_free == 7


def test_a_pool_that_verifies_tokens_refuses_calls_by_keys_alone():
    pool, keys = BlockPool(8, verify_tokens=2), [key(1), key(2)]
    blocks = pool.allocate(2)
    calls = {
        "match_prefix": lambda **tokens: pool.match_prefix(keys, **tokens),
        "peek_prefix": lambda **tokens: pool.peek_prefix(keys, **tokens),
        "admit": lambda **tokens: pool.admit(keys, 1, **tokens),
        "admit_table": lambda **tokens: pool.admit_table(keys, 2, **tokens),
        "publish_prefix": lambda **tokens: pool.publish_prefix(blocks, keys, **tokens),
    }
    for name, call in calls.items():
        said = (
            f"{name} takes token_ids, the tokens of the blocks of all keys, 2 for each; needed are 4, found"
        )
        with pytest.raises(errors.InvalidConfigError, match=f"{said} 0"):
            call()
        with pytest.raises(errors.InvalidConfigError, match=f"{said} 3"):
            call(token_ids=[1, 2, 3])
    with pytest.raises(errors.InvalidConfigError, match=r"publish_prefix\(blocks, keys, start, token_ids"):
        pool.publish(blocks[0], keys[0], token_ids=[1, 2])
    assert (pool.num_free, pool.stats()["hashed"]) == (5, 0)


def test_a_pool_that_verifies_tokens_finds_a_prefix_by_keys_and_tokens():
    pool, keys, tokens = BlockPool(8, verify_tokens=2), [key(1), key(2)], np.array([1, 2, 3, 4, 5])
    with pool.allocate(2) as blocks:
        cached = blocks.ids
        assert pool.publish_prefix(blocks.ids[:1], keys[:1], token_ids=tokens) == 1
        assert pool.publish_prefix(blocks, keys, 1, token_ids=tokens) == 1
    assert pool.peek_prefix(keys, token_ids=tokens) == (2, 2)
    assert pool.peek_prefix(keys, token_ids=[1, 2, 3, 5]) == (1, 1)
    for table, hits in [pool.admit(keys, 1, token_ids=tokens), pool.admit_table(keys, 3, token_ids=tokens)]:
        assert (table.ids[:2], len(table), hits) == (cached, 3, 2)
    assert pool.stats()["collisions"] == 1


def test_a_pool_that_trusts_hashes_ignores_tokens():
    pool, keys = BlockPool(8), [key(1)]
    with pool.allocate(1) as blocks:
        pool.publish_prefix(blocks, keys, token_ids=[1])
    assert pool.peek_prefix(keys) == pool.peek_prefix(keys, token_ids=[2]) == (1, 1)
