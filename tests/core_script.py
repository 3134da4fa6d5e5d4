"""What ``test_every_python.py`` runs under each interpreter: pool and manager, and no other package."""

import sys
from array import array

from looseleaf import BlockHasher, BlockPool, GroupSpec, KVCacheManager, LayerSpec
from looseleaf.errors import DoubleReleaseError, OutOfBlocksError

BLOCK_SIZE, ROWS, TOKENS = 4, 2, 16


def int64(length: int) -> array:
    return array("q", bytes(8 * length))


def int32(length: int) -> memoryview:
    return memoryview(bytearray(4 * length)).cast("i")


def refused(error, call):
    try:
        call()
    except error as raised:
        return raised
    raise AssertionError(f"no {error.__name__}")


def use_a_pool() -> None:
    pool, keys = BlockPool(8), BlockHasher(BLOCK_SIZE).hash_blocks(array("i", range(1, 9)))
    # The hash that vLLM 0.32.0 gives to the tokens 1, 2, 3, 4.
    assert keys[0].hex() == "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111"
    with pool.allocate(2) as blocks:
        assert blocks.ids == [1, 2]
        assert [pool.publish(blocks[i], keys[i]) for i in range(2)] == ["cached", "cached"]
    found = pool.match_prefix(keys)
    assert (found.ids, pool.num_free) == ([1, 2], 5)
    row = array("i", [0] * 5)
    pool.allocate_into(row)
    refusal = refused(OutOfBlocksError, lambda: pool.allocate(1))
    assert (refusal.asked, refusal.free, refusal.pinned) == (1, 0, 7)
    pool.release(row)
    refused(DoubleReleaseError, lambda: pool.release(row))
    del found
    assert pool.num_free == 7
    pool.check_invariants()


def use_a_manager() -> None:
    pool = BlockPool(8)
    manager = KVCacheManager(
        pool,
        [GroupSpec([LayerSpec(kv_heads=1, head_size_k=8)], BLOCK_SIZE)],
        max_num_seqs=ROWS,
        max_model_len=TOKENS,
        max_num_batched_tokens=TOKENS,
    )
    token_ids, slot_mapping = int64(TOKENS), int64(TOKENS)
    block_tables, seq_lens = int32(ROWS * manager.max_blocks_per_seq), int32(ROWS)
    manager.bind(
        token_ids=token_ids,
        positions=int64(TOKENS),
        slot_mapping=[slot_mapping],
        block_tables=[block_tables],
        seq_lens=seq_lens,
        cu_seqlens_q=int32(ROWS + 1),
        logits_indices=int64(ROWS),
        sample_rows=int32(ROWS),
        copies=int32(2 * ROWS),
    )
    for cached in (0, 4):
        handle = manager.open([5, 6, 7, 8, 9], max_tokens=1)
        assert manager.admit(handle) == cached
        manager.schedule_running(TOKENS, TOKENS)
        step = manager.prepare()
        assert list(token_ids[: step.num_tokens]) == [5, 6, 7, 8, 9][cached:]
        assert list(block_tables[:2]) == manager.block_ids(handle)
        assert slot_mapping[step.num_tokens - 1] == block_tables[1] * BLOCK_SIZE
        assert list(seq_lens) == [5, 0]
        (finished,) = manager.commit_step(step.step, array("i", [3]))
        assert (finished.handle, finished.reason) == (handle, "length")
        assert manager.tokens(handle) == [5, 6, 7, 8, 9, 3]
        manager.close(handle)
    manager.check_invariants()
    assert pool.num_free == pool.num_usable


use_a_pool()
use_a_manager()
assert "numpy" not in sys.modules
