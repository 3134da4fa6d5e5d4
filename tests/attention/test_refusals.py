"""What is refused, when, and in what words."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from attention.scene import LAYER, Heads, Row, Scene
from looseleaf._core import CpuAttention
from looseleaf.attention import CacheSpec, backend_class, create_backend
from looseleaf.attention.cpu import CpuBackend
from looseleaf.errors import InvalidBufferError, InvalidConfigError, UnsupportedError


def spec(**changes: Any) -> CacheSpec:
    fields = {
        "num_blocks": 4,
        "num_layers": 2,
        "block_size": 16,
        "num_kv_heads": 2,
        "head_size": 64,
        "dtype": "float32",
    }
    return CacheSpec(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_size": 60}, "head_size 60 is not supported .* multiples of 8 from 8 to 256"),
        ({"head_size": 264}, "head_size 264 is not supported .* multiples of 8 from 8 to 256"),
        ({"block_size": 1}, "block_size 1 is not supported .* multiples of 8 from 8 to"),
        ({"block_size": 20}, "block_size 20 is not supported .* multiples of 8 from 8 to"),
        ({"dtype": "float16"}, "dtype float16 is not supported .* float32, bfloat16"),
    ],
)
def test_a_cache_the_kernels_cannot_do_is_refused_at_the_start(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        backend_class("cpu").check(spec(**changes))
    with pytest.raises(UnsupportedError, match=words):
        create_backend("cpu", spec(**changes))


@pytest.mark.parametrize("field", ["num_blocks", "num_layers", "block_size", "num_kv_heads", "head_size"])
def test_a_spec_without_substance_is_refused(field: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"{field} must be at least 1, not 0"):
        spec(**{field: 0})


def test_a_spec_with_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(
        InvalidConfigError, match="dtype must be one of float32, bfloat16, float16, not 'int8'"
    ):
        spec(dtype="int8")


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match="'tpu'; there are: cpu, reference"):
        create_backend("tpu", spec())


def test_a_cache_larger_than_the_address_space_is_refused() -> None:
    with pytest.raises(MemoryError, match="no room for a cache of"):
        create_backend("cpu", spec(num_blocks=2**31 - 1, num_layers=2**20))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_the_backends_say_what_they_do(name: str) -> None:
    backend = backend_class(name)
    assert backend.name == name
    assert backend.kv_layout
    assert {64, 80, 96, 112, 128, 256} <= set(backend.supported_head_sizes())
    assert backend.preferred_block_size in backend.supported_block_sizes()
    assert {"float32", "bfloat16"} <= set(backend.supported_dtypes())


def test_importing_the_package_loads_neither_torch_nor_numpy() -> None:
    code = "import sys, looseleaf.attention; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene(Heads(), [Row(40, 4), Row(3, 3)])


@pytest.fixture(scope="module")
def backend(scene: Scene) -> CpuBackend:
    backend = CpuBackend(scene.spec)
    scene.fill(backend)
    return backend


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": torch.rand(7, 6, 64).double()}, 'q: found dtype "d", required float32'),
        ({"q": torch.rand(7, 6, 64).bfloat16()}, 'q: found dtype "h", required float32'),
        ({"q": torch.rand(7, 5, 64)}, "q: found 5 heads, required a multiple of 2"),
        ({"q": torch.rand(7, 6, 32)}, r"q: found shape \[7, 6, 32\], required shape \[7, 6, 64\]"),
        ({"q": torch.rand(7, 384)}, r"q: found shape \[7, 384\], required 3 dimensions"),
        ({"q": torch.rand(6, 6, 64)}, "cu_seqlens_q: found 7, required 4 to 6"),
        ({"block_tables": torch.zeros(2, 3)}, 'block_tables: found dtype "f", required int32'),
        ({"block_tables": torch.zeros(6, dtype=torch.int32)}, "block_tables: found shape .* 2 dimensions"),
        ({"block_tables": torch.zeros(2, 2, dtype=torch.int32)}, "block_tables: found 2 columns, required 3"),
        ({"block_tables": torch.zeros(3, 2, dtype=torch.int32).T}, "block_tables: found strides"),
        (
            {"block_tables": torch.full((2, 3), 99, dtype=torch.int32)},
            "block_tables: found 99, required 0 to 7",
        ),
        (
            {"block_tables": torch.full((2, 3), -1, dtype=torch.int32)},
            "block_tables: found -1, required 0 to 7",
        ),
        ({"seq_lens": torch.tensor([40, 3])}, "seq_lens: found dtype .* required int32"),
        (
            {"seq_lens": torch.tensor([40], dtype=torch.int32)},
            r"seq_lens: found shape \[1\], required shape \[2\]",
        ),
        (
            {"seq_lens": torch.tensor([40, 2], dtype=torch.int32)},
            "seq_lens: found 2, required 3 or more in row 1",
        ),
        ({"cu_seqlens_q": torch.tensor([0, 4], dtype=torch.int32)}, r"cu_seqlens_q: found shape \[2\]"),
        (
            {"cu_seqlens_q": torch.tensor([1, 4, 7], dtype=torch.int32)},
            r"cu_seqlens_q\[0\]: found 1, required 0",
        ),
        (
            {"cu_seqlens_q": torch.tensor([0, 4, 3], dtype=torch.int32)},
            "cu_seqlens_q: found 3, required 4 to 7",
        ),
        ({"sinks": torch.zeros(5)}, r"sinks: found shape \[5\], required shape \[6\]"),
        ({"out": torch.zeros(7, 6, 32)}, r"out: found shape \[7, 6, 32\], required shape \[7, 6, 64\]"),
        ({"out": torch.zeros(6, 7, 64).transpose(0, 1)}, "out: found strides .* C-contiguous"),
        ({"out": torch.zeros(7, 6, 64).bfloat16()}, "out: found dtype"),
    ],
)
def test_contradictory_arrays_are_refused_by_name(
    scene: Scene, backend: CpuBackend, changes: dict[str, torch.Tensor], words: str
) -> None:
    arguments: dict[str, Any] = {
        "q": scene.q,
        "block_tables": scene.block_tables,
        "seq_lens": scene.seq_lens,
        "cu_seqlens_q": scene.cu_seqlens_q,
    }
    with pytest.raises(InvalidBufferError, match=words):
        backend.attend(LAYER, scale=1.0, **(arguments | changes))


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"scale": float("nan")}, "scale: found NaN"),
        ({"scale": float("inf")}, "scale: found inf"),
        ({"softcap": 0.0}, "softcap: found 0, required a finite number above 0"),
        ({"softcap": float("nan")}, "softcap: found NaN"),
        ({"sliding_window": 0}, "sliding_window: found 0, required 1 or more"),
        ({"sliding_window": -5}, "sliding_window: found -5, required 1 or more"),
    ],
)
def test_terms_out_of_range_are_refused(
    scene: Scene, backend: CpuBackend, terms: dict[str, float], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=words):
        scene.attend(backend, **terms)


def test_a_layer_outside_the_cache_is_refused(scene: Scene, backend: CpuBackend) -> None:
    k = torch.zeros(1, 2, 64)
    with pytest.raises(InvalidConfigError, match="layer: found 2, required 0 to 1"):
        backend.write(2, k, k, torch.tensor([0]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"k": torch.zeros(2, 2, 64)}, r"k: found shape \[2, 2, 64\], required shape \[1, 2, 64\]"),
        ({"v": torch.zeros(1, 2, 32)}, "v: found shape"),
        ({"v": torch.zeros(1, 2, 64, dtype=torch.float16)}, 'v: found dtype "e"'),
        ({"slot_mapping": torch.zeros(1, dtype=torch.int32)}, "slot_mapping: found dtype"),
        ({"slot_mapping": torch.zeros(1, 1, dtype=torch.int64)}, "slot_mapping: found shape"),
    ],
)
def test_contradictory_writes_are_refused_by_name(
    backend: CpuBackend, changes: dict[str, torch.Tensor], words: str
) -> None:
    arguments = {"k": torch.zeros(1, 2, 64), "v": torch.zeros(1, 2, 64), "slot_mapping": torch.tensor([0])}
    with pytest.raises(InvalidBufferError, match=words):
        backend.write(LAYER, **(arguments | changes))


def test_an_output_in_the_memory_of_an_argument_is_refused(scene: Scene, backend: CpuBackend) -> None:
    with pytest.raises(InvalidBufferError, match="out and q: found memory in common"):
        scene.attend(backend, out=scene.q)
    with pytest.raises(InvalidBufferError, match="out and cache: found memory in common"):
        scene.attend(backend, out=backend.cache.view(-1)[: scene.q.numel()].view_as(scene.q))
    k = backend.cache.view(-1)[:128].view(1, 2, 64)
    with pytest.raises(InvalidBufferError, match="k and cache: found memory in common"):
        backend.write(LAYER, k, k, torch.tensor([0]))


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        (np.zeros((4, 2, 4096), np.float64), 'cache: found dtype "d", required float32'),
        (np.zeros((4, 2, 4096), np.float16), 'cache: found dtype "e", required bfloat16'),
        (np.zeros((4, 2, 4096), ">f4"), "cache: found dtype"),
        (np.zeros((4, 8192), np.float32), r"cache: found shape \[4, 8192\], required 3 dimensions"),
        (np.zeros((4, 2, 4095), np.float32), r"cache: found shape .* required shape \[4, 2, 4096\]"),
        (np.zeros((8, 2, 4096), np.float32)[::2], "cache: found strides"),
    ],
)
def test_a_cache_of_another_kind_is_refused(cache: np.ndarray, words: str) -> None:
    with pytest.raises(InvalidBufferError, match=words):
        CpuAttention(cache, block_size=16, num_kv_heads=2, head_size=64)


def test_a_read_only_cache_is_refused() -> None:
    cache = np.zeros((4, 2, 4096), np.float32)
    cache.flags.writeable = False
    with pytest.raises(InvalidBufferError, match="cache: found a read-only array, required a writable one"):
        CpuAttention(cache, block_size=16, num_kv_heads=2, head_size=64)


def test_instructions_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidConfigError, match=r'isa: found "mmx", required one of .*"portable"'):
        CpuAttention(
            np.zeros((4, 2, 4096), np.float32),
            block_size=16,
            num_kv_heads=2,
            head_size=64,
            isa="mmx",  # type: ignore[arg-type]
        )
