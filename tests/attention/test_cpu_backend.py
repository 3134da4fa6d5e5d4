"""The CPU backend against a dense softmax in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention.scene import Heads, Row, Scene, relative_error
from looseleaf.attention.cpu import CpuBackend

# bfloat16 results carry 8 bits: rounding them alone is an error of 1.1e-3 to 2e-3.
BOUND = {"float32": 1e-6, "bfloat16": 3e-3}
DTYPES = sorted(BOUND)

heads = st.builds(
    Heads,
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 9),
    head_size=st.sampled_from([8, 16, 24, 64, 80, 96, 112, 128, 200, 256]),
    dtype=st.sampled_from(DTYPES),
)
lengths = st.one_of(
    st.integers(0, 300), st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 256, 1024])
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    num_keys = draw(lengths)
    return Row(num_keys, draw(st.one_of(st.integers(0, num_keys), st.just(min(1, num_keys)))))


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    return Scene(
        draw(heads),
        draw(st.lists(rows(), min_size=1, max_size=5)),
        block_size=draw(st.sampled_from([8, 16, 24, 32, 40, 48, 64, 72, 128, 256])),
        num_shared_blocks=draw(st.integers(0, 4)),
        num_padding=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 2**32)),
    )


def backend_for(scene: Scene, num_threads: int | None = None) -> CpuBackend:
    backend = CpuBackend(scene.spec, num_threads=num_threads)
    scene.fill(backend)
    return backend


@given(
    scene=scenes(),
    sliding_window=st.none() | st.integers(1, 300),
    softcap=st.none() | st.floats(0.5, 50),
    sink=st.none() | st.floats(-5, 10),
)
def test_any_mix_of_rows_equals_dense_attention(
    scene: Scene, sliding_window: int | None, softcap: float | None, sink: float | None
) -> None:
    sinks = None if sink is None else torch.linspace(sink - 1, sink, scene.heads.num_heads)
    terms = {"sliding_window": sliding_window, "softcap": softcap, "sinks": sinks}
    found = scene.attend(backend_for(scene), **terms)
    assert relative_error(found, scene.expected(**terms)) <= BOUND[scene.heads.dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", range(8, 257, 8))
def test_every_head_size_is_right(head_size: int, dtype: str) -> None:
    scene = Scene(Heads(1, 4, head_size, dtype), [Row(90, 1), Row(20, 20)])
    assert relative_error(scene.attend(backend_for(scene)), scene.expected()) <= BOUND[dtype]


@pytest.mark.parametrize("block_size", [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 128, 136, 256])
def test_every_kind_of_block_size_is_right_at_its_edges(block_size: int) -> None:
    edges = [block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1]
    scene = Scene(
        Heads(group=2, head_size=32), [Row(n, t) for n in edges for t in (1, n)], block_size=block_size
    )
    assert relative_error(scene.attend(backend_for(scene)), scene.expected()) <= BOUND["float32"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 2, 100])
def test_three_thousand_keys_lose_no_accuracy(num_tokens: int, dtype: str) -> None:
    scene = Scene(Heads(1, 3, 64, dtype), [Row(3000, num_tokens)])
    assert relative_error(scene.attend(backend_for(scene)), scene.expected()) <= BOUND[dtype]


@pytest.mark.parametrize("num_tokens", [1, 100])
def test_widely_spread_scores_cost_at_most_a_digit(num_tokens: int) -> None:
    scene = Scene(Heads(), [Row(3000, num_tokens)], spread=20)
    assert relative_error(scene.attend(backend_for(scene)), scene.expected()) <= 1e-5


NUM_COUNTED = 16_000


def count_keys(scene: Scene) -> torch.Tensor:
    """How often each dimension of one-hot values was counted, ``[head_size]``: all keys weigh the same."""
    scene.q.zero_()
    scene.values[0].zero_()
    scene.values[0][torch.arange(NUM_COUNTED), :, torch.arange(NUM_COUNTED) % scene.heads.head_size] = 1
    counts = (scene.attend(backend_for(scene)).float() * NUM_COUNTED).round().long()
    assert (counts == counts[:1, :1]).all(), "tokens and heads count differently"
    return counts[0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 24, 256])
def test_each_of_sixteen_thousand_keys_counts_once(block_size: int, dtype: str) -> None:
    scene = Scene(Heads(1, 2, 128, dtype), [Row(NUM_COUNTED, 1)], block_size=block_size)
    assert (count_keys(scene) == NUM_COUNTED // 128).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_counting_sees_a_single_key_that_is_lost(dtype: str) -> None:
    scene = Scene(Heads(1, 2, 128, dtype), [Row(NUM_COUNTED, 1)])
    scene.seq_lens -= 1
    lost = (NUM_COUNTED - 1) % 128
    assert count_keys(scene).argmin() == lost
    assert count_keys(scene)[lost] == NUM_COUNTED // 128 - 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_counting_sees_a_single_block_that_is_doubled(dtype: str) -> None:
    scene = Scene(Heads(1, 2, 128, dtype), [Row(NUM_COUNTED, 1)], block_size=8)
    backend = backend_for(scene)
    assert (count_keys(scene) == NUM_COUNTED // 128).all()
    scene.fill(backend)
    scene.block_tables[0, 1] = scene.block_tables[0, 0]
    counts = (scene.attend(backend).float() * NUM_COUNTED).round()[0, 0]
    assert (counts[:8] > NUM_COUNTED // 128).all()
    assert (counts[8:16] < NUM_COUNTED // 128).all()


def test_a_window_of_one_gives_each_token_its_own_value() -> None:
    scene = Scene(Heads(2, 1, 16), [Row(70, 70)])
    found = scene.attend(backend_for(scene), sliding_window=1)
    assert torch.allclose(found, scene.values[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize(("num_keys", "window"), [(100, 20), (3000, 1500)])
def test_blocks_before_the_window_need_not_exist(num_keys: int, window: int) -> None:
    scene = Scene(Heads(), [Row(num_keys, 3)])
    backend = backend_for(scene)
    expected = scene.attend(backend, sliding_window=window)
    # The first of the three tokens sees the furthest back.
    first_visible = num_keys - 3 + 1 - window
    scene.block_tables[0, : first_visible // scene.block_size] = -1
    assert torch.equal(scene.attend(backend, sliding_window=window), expected)


def test_a_huge_sink_takes_all_weight() -> None:
    scene = Scene(Heads(), [Row(100, 3)])
    found = scene.attend(backend_for(scene), sinks=torch.full((6,), 200.0))
    assert found.abs().max() < 1e-30


def test_rows_without_tokens_and_padding_give_zeros() -> None:
    scene = Scene(Heads(), [Row(0, 0), Row(40, 0), Row(9, 2), Row(0, 0)], num_padding=5)
    out = torch.full_like(scene.q, float("nan"))
    found = scene.attend(backend_for(scene), out=out)
    assert found is out
    assert (found[2:] == 0).all()
    assert relative_error(found, scene.expected()) <= BOUND["float32"]


def test_a_step_without_rows_gives_zeros() -> None:
    scene = Scene(Heads(), [Row(16, 0)], num_padding=2)
    backend = backend_for(scene)
    found = backend.attend(
        1,
        scene.q,
        torch.zeros(0, 4, dtype=torch.int32),
        torch.zeros(0, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32),
        scale=1.0,
    )
    assert (found == 0).all()


def test_tables_may_be_columns_of_wider_ones_and_queries_strided() -> None:
    scene = Scene(Heads(), [Row(100, 3), Row(50, 50)])
    backend = backend_for(scene)
    expected = scene.attend(backend)
    wide = torch.full((2, 20), -7, dtype=torch.int32)
    wide[:, : scene.block_tables.shape[1]] = scene.block_tables
    scene.block_tables = wide[:, : scene.block_tables.shape[1]]
    scene.q = scene.q.transpose(0, 1).contiguous().transpose(0, 1)
    assert not scene.q.is_contiguous()
    assert torch.equal(scene.attend(backend), expected)


def test_a_row_gets_the_same_numbers_in_any_company() -> None:
    rows = [Row(300, 1), Row(2500, 1), Row(90, 90), Row(64, 30)]
    scene = Scene(Heads(), rows, num_shared_blocks=3)
    backend = backend_for(scene)
    together = scene.attend(backend)
    begin = 0
    for row, length in enumerate(rows):
        end = begin + length.num_tokens
        alone = backend.attend(
            1,
            scene.q[begin:end],
            scene.block_tables[row : row + 1],
            scene.seq_lens[row : row + 1],
            torch.tensor([0, length.num_tokens], dtype=torch.int32),
            scale=scene.scale,
        )
        assert torch.equal(alone, together[begin:end]), f"row {row}"
        begin = end
