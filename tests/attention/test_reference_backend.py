"""The reference backend against a dense softmax: an oracle is trusted only as far as it was checked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention.scene import LAYER, Heads, Row, Scene, relative_error
from looseleaf.attention import AttentionBackend, create_backend
from looseleaf.errors import InvalidBufferError, InvalidConfigError

# Results are given in the cache's dtype; what is computed is float64.
ROUNDING = {"float32": 6e-8, "float16": 5e-4, "bfloat16": 4e-3}


def backend_for(scene: Scene) -> AttentionBackend:
    backend = create_backend("reference", scene.spec)
    scene.fill(backend)
    return backend


@given(
    heads=st.builds(
        Heads,
        num_kv_heads=st.integers(1, 3),
        group=st.integers(1, 4),
        head_size=st.integers(1, 40),
        dtype=st.sampled_from(sorted(ROUNDING)),
    ),
    lengths=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=4),
    block_size=st.integers(1, 20),
    num_shared_blocks=st.integers(0, 3),
    sliding_window=st.none() | st.integers(1, 60),
    softcap=st.none() | st.floats(0.5, 50),
    sink=st.none() | st.floats(-5, 10),
)
def test_the_reference_equals_dense_attention(
    heads: Heads,
    lengths: list[tuple[int, int]],
    block_size: int,
    num_shared_blocks: int,
    sliding_window: int | None,
    softcap: float | None,
    sink: float | None,
) -> None:
    rows = [Row(max(a, b), min(a, b)) for a, b in lengths]
    scene = Scene(heads, rows, block_size=block_size, num_shared_blocks=num_shared_blocks, num_padding=1)
    sinks = None if sink is None else torch.linspace(sink - 1, sink, heads.num_heads)
    terms = {"sliding_window": sliding_window, "softcap": softcap, "sinks": sinks}
    found = scene.attend(backend_for(scene), **terms)
    assert relative_error(found, scene.expected(**terms)) <= ROUNDING[heads.dtype]


def test_the_reference_copies_blocks_in_order() -> None:
    scene = Scene(Heads(), [Row(48, 1)])
    backend = backend_for(scene)
    first, second, third = scene.block_tables[0].tolist()
    before = backend.cache.clone()
    backend.copy_blocks(torch.tensor([[first, second], [second, third]], dtype=torch.int32))
    for block in (first, second, third):
        assert torch.allclose(backend.cache[block], before[first], rtol=0, atol=0, equal_nan=True)


def test_the_reference_refuses_what_contradicts_itself() -> None:
    scene = Scene(Heads(), [Row(20, 4)])
    backend = backend_for(scene)
    k = scene.keys[0][:1]
    with pytest.raises(InvalidBufferError, match="slot_mapping: found 64"):
        backend.write(LAYER, k, k, torch.tensor([64]))
    with pytest.raises(InvalidBufferError, match="k: found"):
        backend.write(LAYER, k[:, :1], k, torch.tensor([0]))
    with pytest.raises(InvalidConfigError, match="layer: found 2"):
        backend.write(2, k, k, torch.tensor([0]))
    with pytest.raises(InvalidBufferError, match="q: found 5 heads"):
        backend.attend(LAYER, scene.q[:, :5], scene.block_tables, scene.seq_lens, scene.cu_seqlens_q, scale=1)
    with pytest.raises(InvalidConfigError, match="sliding_window: found 0"):
        scene.attend(backend, sliding_window=0)
    with pytest.raises(InvalidConfigError, match="softcap: found 0"):
        scene.attend(backend, softcap=0)
    with pytest.raises(InvalidBufferError, match="seq_lens: found 3, required 4"):
        backend.attend(LAYER, scene.q, scene.block_tables, torch.tensor([3]), scene.cu_seqlens_q, scale=1)
    with pytest.raises(InvalidBufferError, match="copies: found 99"):
        backend.copy_blocks(torch.tensor([[0, 99]]))
    scene.block_tables[0, 0] = 99
    with pytest.raises(InvalidBufferError, match="block_tables: found 99"):
        scene.attend(backend)
