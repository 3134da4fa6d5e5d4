"""The nano-vllm drop-in, against a list model of that project's block manager (release 0.2.0)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from nano_block_manager import BlockManager

from looseleaf import errors

BLOCK_SIZE = 2


@dataclass(eq=False)
class Request:
    tokens: list[int]
    block_table: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_scheduled_tokens: int = 0

    @property
    def num_blocks(self) -> int:
        return -(-len(self.tokens) // BLOCK_SIZE)

    def block(self, i: int) -> list[int]:
        return self.tokens[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]

    def __len__(self) -> int:
        return len(self.tokens)


class ListModel:
    """Blocks in lists and their contents as text: a prefix is looked up by its tokens, not by a hash."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.ref_count = [0] * num_blocks
        self.text: list[tuple[int, ...] | None] = [None] * num_blocks
        self.block_of: dict[tuple[int, ...], int] = {}

    def can_allocate(self, request: Request) -> int:
        cached = self._cached(request)
        held = sum(self.ref_count[block] > 0 for block in cached)
        return len(cached) if request.num_blocks - held <= len(self.free) else -1

    def allocate(self, request: Request) -> list[int]:
        cached = self._cached(request)
        for block in cached:
            if self.ref_count[block] == 0:
                self.free.remove(block)
            self.ref_count[block] += 1
        return cached + [self.take() for _ in range(request.num_blocks - len(cached))]

    def take(self) -> int:
        block = self.free.pop(0)
        assert self.ref_count[block] == 0
        self.ref_count[block] = 1
        text, self.text[block] = self.text[block], None
        if text is not None and self.block_of.get(text) == block:
            del self.block_of[text]
        return block

    def deallocate(self, table: list[int]) -> None:
        for block in reversed(table):
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free.append(block)

    def hash_blocks(self, request: Request, table: list[int], first: int, end: int) -> None:
        for i in range(first // BLOCK_SIZE, end // BLOCK_SIZE):
            text = tuple(request.tokens[: (i + 1) * BLOCK_SIZE])
            self.text[table[i]] = text
            self.block_of[text] = table[i]

    def _cached(self, request: Request) -> list[int]:
        found: list[int] = []
        while len(found) < request.num_blocks - 1:
            text = tuple(request.tokens[: (len(found) + 1) * BLOCK_SIZE])
            if text not in self.block_of:
                break
            found.append(self.block_of[text])
        return found


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class DropInMachine(RuleBasedStateMachine):
    """Requests arrive, are computed in pieces, write, are preempted and end, as in nano-vllm's scheduler."""

    @initialize(num_blocks=st.integers(1, 9))
    def build(self, num_blocks: int) -> None:
        self.manager = BlockManager(num_blocks, BLOCK_SIZE)
        self.model = ListModel(num_blocks)
        self.tables: dict[Request, list[int]] = {}
        self.waiting: list[Request] = []

    def some(self, data: st.DataObject, *, to_compute: bool) -> Request | None:
        fitting = [r for r in self.tables if (len(r) > r.num_cached_tokens) == to_compute]
        return data.draw(st.sampled_from(fitting)) if fitting else None

    @rule(tokens=PROMPTS)
    def arrive(self, tokens: list[int]) -> None:
        self.waiting.append(Request(tokens))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        num_cached_blocks = self.manager.can_allocate(request)
        assert num_cached_blocks == self.model.can_allocate(request)
        if num_cached_blocks >= 0:
            self.waiting.remove(request)
            self.manager.allocate(request, num_cached_blocks)
            assert request.num_cached_tokens == num_cached_blocks * BLOCK_SIZE
            self.tables[request] = self.model.allocate(request)

    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        if (request := self.some(data, to_compute=True)) is None:
            return
        first = request.num_cached_tokens
        request.num_scheduled_tokens = data.draw(st.integers(1, len(request) - first))
        self.manager.hash_blocks(request)
        request.num_cached_tokens += request.num_scheduled_tokens
        self.model.hash_blocks(request, self.tables[request], first, request.num_cached_tokens)

    @rule(data=st.data(), token=st.integers(0, 1))
    def write(self, data: st.DataObject, token: int) -> None:
        if (request := self.some(data, to_compute=False)) is None:
            return
        request.tokens.append(token)
        full = len(request) % BLOCK_SIZE == 1
        assert self.manager.can_append(request) == (len(self.model.free) >= full)
        if not self.manager.can_append(request):
            with pytest.raises(errors.OutOfBlocksError):
                self.manager.may_append(request)
            request.tokens.pop()
            return
        self.manager.may_append(request)
        if full:
            self.tables[request].append(self.model.take())

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), preempted=st.booleans())
    def leave(self, data: st.DataObject, preempted: bool) -> None:
        request = data.draw(st.sampled_from(list(self.tables)))
        self.manager.deallocate(request)
        self.model.deallocate(self.tables.pop(request))
        assert (request.block_table, request.num_cached_tokens) == ([], 0)
        if preempted:
            self.waiting.append(request)

    @invariant()
    def blocks_counts_and_order_are_those_of_the_model(self) -> None:
        if not hasattr(self, "manager"):
            return
        pool = self.manager.pool
        assert {id(r): r.block_table for r in self.tables} == {id(r): t for r, t in self.tables.items()}
        assert [pool.ref_cnt(block) for block in range(pool.num_blocks)] == self.model.ref_count
        assert pool.free_order() == self.model.free
        pool.check_invariants()


TestDropInMachine = DropInMachine.TestCase


def computed(manager: BlockManager, tokens: list[int]) -> Request:
    request = Request(tokens)
    manager.allocate(request, manager.can_allocate(request))
    request.num_scheduled_tokens = len(request) - request.num_cached_tokens
    manager.hash_blocks(request)
    return request


def test_three_blocks_of_a_shared_prompt_are_found_and_its_last_one_never():
    manager = BlockManager(16, BLOCK_SIZE)
    first = computed(manager, list(range(8)))
    second = computed(manager, list(range(8)))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 6)
    assert second.block_table == [*first.block_table[:3], 4]


def test_a_question_that_is_not_followed_up_leaves_no_trace():
    manager = BlockManager(4, BLOCK_SIZE)
    manager.deallocate(computed(manager, [1, 2, 3, 4]))
    before = manager.pool.free_order()
    assert manager.can_allocate(Request([1, 2, 3])) == 1
    assert manager.can_allocate(Request(list(range(10)))) == -1
    assert manager.pool.free_order() == before


def test_hashes_chain_from_minus_one_and_name_the_blocks_in_the_pool():
    manager = BlockManager(4, BLOCK_SIZE)
    request = computed(manager, [1, 2, 3, 4])
    first = BlockManager.compute_hash([1, 2])
    second = BlockManager.compute_hash([3, 4], first)
    keys = [manager.pool.key_of(block) for block in request.block_table]
    assert [int.from_bytes(key, "big") for key in keys] == [first, second]


def test_what_is_remembered_of_contents_does_not_grow_with_the_traffic():
    manager = BlockManager(4, BLOCK_SIZE)
    for number in range(100):
        manager.deallocate(computed(manager, [number, number, 0]))
    assert len(manager._newest) <= 8
