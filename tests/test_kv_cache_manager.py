"""Sequences over one pool, from Python: published examples and misuse."""

import contextlib
import threading

import numpy as np
import pytest

from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec, errors

LAYER = LayerSpec(kv_heads=8, head_size_k=128)


def make_manager(
    num_blocks=200, block_size=16, *, null_block=True, rows=64, longest=4096, steps=1, **options
):
    pool = BlockPool(num_blocks, reserve_null_block=null_block)
    return KVCacheManager(
        pool,
        [GroupSpec([LAYER], block_size)],
        max_num_seqs=rows,
        max_model_len=longest,
        max_num_batched_tokens=longest,
        **options,
    )


def bind(manager, rows=64, tokens=4096, **more):
    arrays = more | {
        "token_ids": np.zeros(tokens, np.int64),
        "positions": np.zeros(tokens, np.int64),
        "slot_mapping": [np.zeros(tokens, np.int64)],
        "block_tables": [np.zeros((rows, manager.max_blocks_per_seq), np.int32)],
        "seq_lens": np.zeros(rows, np.int32),
        "cu_seqlens_q": np.zeros(rows + 1, np.int32),
        "logits_indices": np.zeros(rows, np.int64),
        "sample_rows": np.zeros(rows, np.int32),
        "copies": np.zeros((rows, 2), np.int32),
    }
    manager.bind(**arrays)
    return arrays


def in_use(manager):
    return manager.pool.num_usable - manager.pool.num_free


def prefill(manager, tokens, sampled=7, **options):
    handle = manager.open(tokens, **options)
    manager.admit(handle)
    manager.append(handle, manager.num_tokens(handle) - manager.num_computed_tokens(handle))
    manager.commit(handle, [sampled])
    return handle


@pytest.mark.parametrize("together", [False, True], ids=["one after another", "all in one step"])
def test_four_samples_of_a_1000_token_prompt_end_with_114_blocks(together):
    manager = make_manager(null_block=False)
    parent = prefill(manager, list(range(1000)))
    assert manager.block_ids(parent) == list(range(63))
    samples = manager.fork(parent, 4)
    manager.close(parent)
    for round_number in range(200):
        copies = []
        for sample in samples:
            manager.append(sample, 1)
            copies += [] if together else manager.copies()
            if not together:
                manager.commit(sample, [round_number])
        if together:
            copies = manager.copies()
            for sample in samples:
                manager.commit(sample, [round_number])
        assert copies == ([(62, 63), (62, 64), (62, 65)] if round_number == 0 else [])
    assert in_use(manager) == 114
    assert manager.pool.ref_cnt(0) == 4
    assert [manager.block_ids(sample)[62] for sample in samples] == [63, 64, 65, 62]
    for sample in samples:
        manager.close(sample)
    assert in_use(manager) == 0
    manager.check_invariants()


@pytest.mark.parametrize(("block_size", "shared", "total", "reused"), [(16, 62, 112, 992), (128, 7, 57, 896)])
def test_50_chats_share_the_full_blocks_of_a_closed_system_prompt(block_size, shared, total, reused):
    system = list(range(1000))
    manager = make_manager(200, block_size)
    manager.close(prefill(manager, system))
    chats = []
    for number in range(50):
        chat = manager.open(np.array([*system, 5000 + number, 1, 2], np.int32))
        assert manager.admit(chat) == reused
        manager.append(chat, 1003 - reused)
        manager.commit(chat, [number])
        for token in range(4):
            manager.append(chat, 1)
            manager.commit(chat, [token])
        chats.append(chat)
    assert len({block for chat in chats for block in manager.block_ids(chat)[:shared]}) == shared
    assert in_use(manager) == total
    for chat in chats:
        manager.close(chat)
    assert in_use(manager) == 0
    manager.check_invariants()


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
)
def test_a_repeated_prompt_computes_at_least_its_last_token(length, cached):
    manager = make_manager(block_size=4)
    for expected in (0, cached, cached):
        handle = prefill(manager, list(range(length)))
        assert manager.num_cached_tokens(handle) == expected
        manager.close(handle)


def test_another_salt_shares_nothing_and_the_same_salt_everything():
    manager = make_manager(block_size=4)
    prompt = list(range(13))
    hits = []
    for salt in ("a", "b", None, "a"):
        handle = prefill(manager, prompt, cache_salt=salt)
        hits.append(manager.num_cached_tokens(handle))
        manager.close(handle)
    assert hits == [0, 0, 0, 12]


def test_a_step_fills_the_bound_arrays_in_vllms_form():
    manager = make_manager(block_size=4)
    arrays = bind(manager)
    first, second = manager.open([10, 11, 12, 13, 14]), manager.open([20, 21])
    for handle in (first, second):
        manager.admit(handle)
    outcome = manager.schedule_running(64, 64)
    assert (outcome.num_tokens_scheduled, outcome.blocked) == (7, None)
    step = manager.prepare()
    assert (step.num_rows, step.num_tokens, step.num_samples, step.num_copies) == (2, 7, 2, 0)
    assert (step.max_query_len, step.max_seq_len) == (5, 5)
    assert arrays["token_ids"][:7].tolist() == [10, 11, 12, 13, 14, 20, 21]
    assert arrays["positions"][:7].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert arrays["block_tables"][0][:2, :3].tolist() == [[1, 2, 0], [3, 0, 0]]
    assert arrays["slot_mapping"][0][:8].tolist() == [4, 5, 6, 7, 8, 12, 13, -1]
    assert arrays["seq_lens"][:3].tolist() == [5, 2, 0]
    assert arrays["cu_seqlens_q"][:4].tolist() == [0, 5, 7, 7]
    assert arrays["logits_indices"][:2].tolist() == [4, 6]
    assert manager.commit_step(step.step, np.array([15, 22], np.int32)) == []
    assert manager.tokens(first) == [10, 11, 12, 13, 14, 15]
    manager.close(second)
    manager.schedule_running(64, 64)
    step = manager.prepare()
    assert arrays["block_tables"][0][:2, :3].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert arrays["slot_mapping"][0][:2].tolist() == [9, -1]
    assert arrays["seq_lens"][:2].tolist() == [6, 0]


def test_a_step_is_also_written_in_flashinfers_form():
    manager = make_manager(block_size=4, rows=4)
    width = manager.max_blocks_per_seq
    pages = {
        "indptr": np.full(5, -9, np.int32),
        "indices": [np.full(4 * width, -9, np.int32)],
        "last_page_len": np.full(4, -9, np.int32),
    }
    with pytest.raises(errors.InvalidBufferError, match="bind all three or none"):
        bind(manager, rows=4, indptr=pages["indptr"])
    bind(manager, rows=4, **pages | {"indices": [np.zeros(4 * width - 1, np.int32)]})
    manager.admit(manager.open([1]))
    manager.schedule_running(64, 64)
    with pytest.raises(errors.InvalidBufferError, match=f"indices.*{4 * width - 1}.*{4 * width}"):
        manager.prepare()
    manager = make_manager(block_size=4, rows=4)
    bind(manager, rows=4, **pages)
    first, second, third = (manager.open([token] * length) for token, length in ((1, 9), (2, 3), (3, 4)))
    for handle in (first, second, third):
        manager.admit(handle)
    manager.schedule_running(64, 64)
    step = manager.prepare()
    # ceil(9 / 4), ceil(3 / 4) and ceil(4 / 4) blocks of four tokens
    assert pages["indptr"].tolist() == [0, 3, 4, 5, 5]
    assert pages["indices"][0][:5].tolist() == [1, 2, 3, 4, 5]
    assert pages["last_page_len"].tolist() == [1, 3, 4, 0]
    manager.commit_step(step.step, [7, 7, 7])
    manager.close(second)
    manager.schedule_running(64, 64)
    manager.prepare()
    assert pages["indptr"].tolist() == [0, 3, 3, 5, 5]
    assert pages["indices"][0][:5].tolist() == [*manager.block_ids(first), *manager.block_ids(third)]
    assert pages["last_page_len"].tolist() == [2, 0, 1, 0]


def test_a_finished_row_says_why():
    manager = make_manager(block_size=4)
    bind(manager)
    reasons = {}
    handles = {
        manager.open([1], eos_token_ids=[9], max_tokens=5): "eos",
        manager.open([2], stop_token_ids=[8], max_tokens=5): "stop_token",
        manager.open([3], max_tokens=1): "length",
        manager.open([4], eos_token_ids=[7], max_tokens=5, min_tokens=2): None,
    }
    for handle in handles:
        manager.admit(handle)
    manager.schedule_running(64, 64)
    step = manager.prepare()
    for row in manager.commit_step(step.step, [9, 8, 7, 7]):
        reasons[row.handle] = row.reason
    assert {handle: reasons.get(handle) for handle in handles} == handles
    assert [manager.finish_reason(handle) for handle in handles] == list(handles.values())


def test_a_second_thread_is_refused_and_never_waits():
    manager = make_manager(70_000, longest=1_000_000)
    prompt = np.arange(999_999, dtype=np.int32)
    stop = threading.Event()

    def open_and_close():
        while not stop.is_set():
            with contextlib.suppress(errors.ConcurrentUseError):
                manager.close(manager.open(prompt))

    thread = threading.Thread(target=open_and_close)
    thread.start()
    try:
        with pytest.raises(errors.ConcurrentUseError, match="another thread"):
            any(manager.num_running for _ in range(10_000_000))
    finally:
        stop.set()
        thread.join()
    manager.check_invariants()


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda m, h: m.open([]), errors.RequestError, "at least 1"),
        (lambda m, h: m.open([1, -2]), errors.RequestError, "found -2"),
        (lambda m, h: m.open(np.array([1, -2])), errors.RequestError, "found -2"),
        (lambda m, h: m.open([1] * 4096), errors.NeverFitsError, "4096"),
        (lambda m, h: m.open([1], max_tokens=0), errors.RequestError, "max_tokens"),
        (lambda m, h: m.close(12345), errors.StaleHandleError, "0x3039"),
        (lambda m, h: m.append(h, 1), errors.SequenceStateError, "not admitted"),
        (lambda m, h: m.commit(h, [1]), errors.SequenceStateError, "not admitted"),
        (lambda m, h: m.block_ids(h, 1), errors.InvalidConfigError, "group"),
        (lambda m, h: m.prepare(), errors.SequenceStateError, r"bind\(\)"),
        (lambda m, h: m.commit_step(3, [1]), errors.SequenceStateError, "step 3"),
    ],
)
def test_misuse_is_refused_with_the_value_and_changes_nothing(call, error, said):
    manager = make_manager()
    handle = manager.open([1, 2, 3])
    with pytest.raises(error, match=said):
        call(manager, handle)
    assert (in_use(manager), manager.num_open, manager.num_running) == (0, 1, 0)
    manager.check_invariants()


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("token_ids", np.zeros(4096, np.int32), "token_ids must be a writable int64 array"),
        ("seq_lens", np.zeros(64, np.float32), "seq_lens must be a writable int32 array"),
        ("positions", np.zeros(8192, np.int64)[::2], "positions"),
        ("copies", np.broadcast_to(np.int32(0), (64, 2)), "copies"),
    ],
)
def test_an_array_of_the_wrong_kind_is_refused_by_name(name, wrong, said):
    manager = make_manager()
    arrays = bind(manager)
    with pytest.raises(errors.InvalidBufferError, match=said):
        manager.bind(**{**arrays, name: wrong})


def test_two_arrays_over_the_same_memory_are_refused():
    manager = make_manager()
    arrays = bind(manager)
    with pytest.raises(errors.InvalidBufferError, match="token_ids and positions share memory"):
        manager.bind(**{**arrays, "positions": arrays["token_ids"]})


def test_an_array_that_is_too_short_is_refused_with_both_lengths():
    manager = make_manager()
    arrays = bind(manager)
    manager.bind(**{**arrays, "seq_lens": np.zeros(63, np.int32)})
    manager.admit(manager.open([1]))
    manager.schedule_running(1, 1)
    with pytest.raises(errors.InvalidBufferError, match="seq_lens has 63 elements, 64"):
        manager.prepare()


def test_a_row_that_cannot_grow_says_whether_preempting_others_could_help():
    manager = make_manager(4, block_size=4)
    first, second = prefill(manager, [1] * 8), prefill(manager, [2, 3])
    outcome = manager.schedule_running(64, 64)
    assert (outcome.blocked, outcome.can_never_fit) == ((first, 1), False)
    manager.preempt(second)
    assert manager.schedule_running(64, 64).blocked is None
    for token in range(4):
        manager.commit(first, [token])
        outcome = manager.schedule_running(64, 64)
    assert (outcome.blocked, outcome.can_never_fit) == ((first, 1), True)


def test_group_specs_count_bytes():
    group = GroupSpec([LAYER] * 32)
    assert (group.bytes_per_token, group.bytes_per_block) == (131072, 16 * 131072)
    assert (group.layers[0], group.kind, group.sliding_window) == (LAYER, "full", None)
    assert LAYER.bytes_per_token == 2 * 8 * 128 * 2
    with pytest.raises(
        errors.InvalidConfigError, match="'float32', 'float16', 'bfloat16', 'fp8_e4m3', found 'int4'"
    ):
        LayerSpec(1, 64, dtype="int4")
