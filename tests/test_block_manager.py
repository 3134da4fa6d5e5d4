"""The teaching block manager: figures from the PagedAttention walk-through it mirrors."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf import BlockManager
from looseleaf.errors import InvalidConfigError, OutOfBlocksError, SequenceStateError, StaleHandleError


def test_45_tokens_take_three_blocks_and_a_second_request_the_next_three():
    manager = BlockManager(total_blocks=100)
    assert manager.allocate("a", 45) == [0, 1, 2]
    assert manager.allocate("b", 45) == [3, 4, 5]
    assert len(manager.free_blocks) == 94
    manager.free("a")
    manager.free("b")
    assert len(manager.free_blocks) == 100


def test_blocks_show_id_size_and_reference_count_on_both_sides():
    manager = BlockManager(total_blocks=4, block_size=8)
    manager.allocate("a", 9)
    assert [(b.block_id, b.block_size, b.ref_count) for b in manager.block_tables["a"]] == [
        (0, 8, 1),
        (1, 8, 1),
    ]
    assert [(b.block_id, b.block_size, b.ref_count) for b in manager.free_blocks] == [(2, 8, 0), (3, 8, 0)]
    assert manager.free_blocks[-1].block_id == 3
    assert [b.block_id for b in manager.free_blocks[:1]] == [2]


def test_a_token_takes_a_block_only_when_the_last_one_is_full():
    manager = BlockManager(total_blocks=3)
    manager.allocate("a", 16)
    assert manager.append_token("a", 16) == 1
    assert [manager.append_token("a", length) for length in range(17, 32)] == [None] * 15
    assert manager.append_token("a", 32) == 2


def test_running_out_says_so_with_the_numbers_and_takes_nothing():
    manager = BlockManager(total_blocks=2)
    with pytest.raises(MemoryError, match=r"^Out of GPU KV Cache Memory Blocks! .*3.*2") as caught:
        manager.allocate("a", 33)
    assert (caught.value.asked, caught.value.free, caught.value.total) == (3, 2, 2)
    assert "a" not in manager.block_tables
    manager.allocate("a", 32)
    with pytest.raises(OutOfBlocksError, match=r"^KV Cache full during decode step! .*1.*0"):
        manager.append_token("a", 32)
    assert len(manager.block_tables["a"]) == 2


def test_misuse_is_an_error_that_changes_nothing():
    manager = BlockManager(total_blocks=8)
    manager.allocate("a", 16)
    with pytest.raises(SequenceStateError, match="'a' already has blocks"):
        manager.allocate("a", 16)
    with pytest.raises(StaleHandleError, match="'ghost'"):
        manager.free("ghost")
    with pytest.raises(StaleHandleError, match="'ghost'"):
        manager.append_token("ghost", 16)
    with pytest.raises(ValueError, match="-1"):
        manager.allocate("b", -1)
    with pytest.raises(InvalidConfigError, match="block_size"):
        BlockManager(8, block_size=0)
    with pytest.raises(InvalidConfigError, match="num_blocks"):
        BlockManager(0)
    assert len(manager.free_blocks) == 7


@given(
    st.lists(
        st.tuples(st.sampled_from(["allocate", "append", "free"]), st.integers(0, 3), st.integers(0, 20))
    )
)
def test_it_is_a_plain_first_in_first_out_queue(script):
    total, block_size = 6, 4
    manager, queue = BlockManager(total, block_size), deque(range(total))
    tables: dict[int, list[int]] = {}
    lengths: dict[int, int] = {}
    for verb, request, tokens in script:
        need = -(-tokens // block_size)
        if verb == "allocate" and request not in tables:
            if need > len(queue):
                with pytest.raises(OutOfBlocksError):
                    manager.allocate(request, tokens)
                continue
            tables[request] = [queue.popleft() for _ in range(need)]
            lengths[request] = tokens
            assert manager.allocate(request, tokens) == tables[request]
        elif verb == "append" and request in tables:
            if lengths[request] % block_size == 0:
                if not queue:
                    with pytest.raises(OutOfBlocksError):
                        manager.append_token(request, lengths[request])
                    continue
                tables[request].append(queue.popleft())
            manager.append_token(request, lengths[request])
            lengths[request] += 1
        elif verb == "free" and request in tables:
            queue.extend(tables.pop(request))
            manager.free(request)
        assert [b.block_id for b in manager.free_blocks] == list(queue)
        assert {r: [b.block_id for b in t] for r, t in manager.block_tables.items()} == tables
