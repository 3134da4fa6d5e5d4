"""What writes and copies leave in the cache, byte for byte."""

from __future__ import annotations

import pytest
import torch

from attention.scene import LAYER, Heads, Row, Scene, relative_error
from looseleaf.attention import CacheSpec, create_backend
from looseleaf.attention.cpu import CpuBackend
from looseleaf.errors import InvalidBufferError

SPEC = CacheSpec(num_blocks=6, num_layers=3, block_size=8, num_kv_heads=2, head_size=16, dtype="float32")


def snapshot(backend: CpuBackend) -> torch.Tensor:
    return backend.cache.view(torch.int32).clone()


def numbered(spec: CacheSpec) -> CpuBackend:
    """A backend whose cache holds a different number everywhere."""
    backend = CpuBackend(spec)
    backend.cache.copy_(torch.arange(backend.cache.numel()).view_as(backend.cache))
    return backend


def test_padding_slots_change_nothing_and_real_ones_only_themselves() -> None:
    backend = numbered(SPEC)
    before = snapshot(backend)
    slots = torch.tensor([3, -1, 8, -1, -1, 47, -1, -1])
    k, v = -torch.rand(2, 8, 2, 16) - 1
    backend.write(LAYER, k, v, slots)
    changed = (snapshot(backend) != before).view(6, 3, 2, 2, -1)
    # Three tokens of two heads, each with 16 numbers of keys and 16 of values.
    assert changed.sum() == 3 * 2 * 2 * 16
    assert not changed[:, [0, 2]].any()
    assert not changed[2:5].any()
    keys = backend.cache.view(6, 3, 2, 2, -1)[:, LAYER, :, 0].view(6, 2, 16, 8)
    values = backend.cache.view(6, 3, 2, 2, -1)[:, LAYER, :, 1].view(6, 2, 8, 16)
    for token, slot in [(0, 3), (2, 8), (5, 47)]:
        assert torch.equal(keys[slot // 8, :, :, slot % 8], k[token])
        assert torch.equal(values[slot // 8, :, slot % 8], v[token])


def test_only_padding_changes_nothing() -> None:
    backend = numbered(SPEC)
    before = snapshot(backend)
    backend.write(LAYER, torch.rand(4, 2, 16), torch.rand(4, 2, 16), torch.full((4,), -1))
    backend.write(LAYER, torch.rand(0, 2, 16), torch.rand(0, 2, 16), torch.zeros(0, dtype=torch.int64))
    assert torch.equal(snapshot(backend), before)


@pytest.mark.parametrize("slot", [-2, 48, 2**40, -(2**63)])
def test_a_slot_outside_the_cache_is_refused_before_anything_is_written(slot: int) -> None:
    backend = numbered(SPEC)
    before = snapshot(backend)
    with pytest.raises(InvalidBufferError, match=f"slot_mapping: found {slot}, required -1 to 47"):
        backend.write(LAYER, torch.rand(2, 2, 16), torch.rand(2, 2, 16), torch.tensor([0, slot]))
    assert torch.equal(snapshot(backend), before)


def test_of_two_tokens_for_one_slot_the_later_stays() -> None:
    twice, once = numbered(SPEC), numbered(SPEC)
    k, v = torch.rand(2, 2, 2, 16)
    twice.write(LAYER, k, v, torch.tensor([9, 9]))
    once.write(LAYER, k[1:], v[1:], torch.tensor([9]))
    assert torch.equal(twice.cache, once.cache)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_copied_blocks_are_equal_in_all_layers_and_nothing_else_changes(dtype: str) -> None:
    spec = CacheSpec(6, 3, 8, 2, 16, dtype)
    backend = CpuBackend(spec)
    backend.cache.copy_(torch.randn(backend.cache.shape))
    before = backend.cache.clone()
    backend.copy_blocks(torch.tensor([[1, 4], [4, 0], [2, 2]], dtype=torch.int32))
    for block, source in enumerate([1, 1, 2, 3, 1, 5]):
        assert torch.equal(backend.cache[block], before[source]), f"block {block}"
    backend.copy_blocks(torch.zeros(0, 2, dtype=torch.int32))


@pytest.mark.parametrize("copy", [[0, 6], [6, 0], [-1, 0]])
def test_copies_outside_the_cache_are_refused(copy: list[int]) -> None:
    backend = numbered(SPEC)
    before = snapshot(backend)
    with pytest.raises(InvalidBufferError, match="copies: found"):
        backend.copy_blocks(torch.tensor([[1, 2], copy], dtype=torch.int32))
    assert torch.equal(snapshot(backend), before)


def test_a_copy_attends_like_its_source() -> None:
    scene = Scene(Heads(), [Row(60, 5)])
    backend = CpuBackend(scene.spec)
    scene.fill(backend)
    expected = scene.attend(backend)
    unused = (set(range(scene.num_blocks)) - set(scene.block_tables[0].tolist())).pop()
    backend.copy_blocks(torch.tensor([[int(scene.block_tables[0, 1]), unused]], dtype=torch.int32))
    scene.block_tables[0, 1] = unused
    assert torch.equal(scene.attend(backend), expected)


def test_a_block_of_all_layers_is_one_run_of_bytes() -> None:
    backend = CpuBackend(SPEC)
    assert backend.cache.shape == (6, 3, 2 * 2 * 16 * 8)
    assert backend.cache.is_contiguous()
    assert backend.nbytes == 6 * SPEC.bytes_per_block == backend.cache.nbytes


def test_a_fresh_cache_is_all_zeros() -> None:
    assert not CpuBackend(SPEC).cache.any()


def test_layers_do_not_touch_one_another() -> None:
    scene = Scene(Heads(), [Row(40, 1)])
    backend = create_backend("cpu", scene.spec)
    scene.fill(backend)
    k = torch.rand(40, 2, 64)
    backend.write(0, k, k, torch.arange(40))
    assert relative_error(scene.attend(backend), scene.expected()) <= 1e-6
