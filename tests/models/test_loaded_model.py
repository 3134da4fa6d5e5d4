"""A loaded model: what it says of itself, and binding it to backends."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface

from looseleaf.attention import AttentionBackend, create_backend
from looseleaf.errors import InvalidConfigError, UnsupportedModelError
from looseleaf.models import LoadedModel, load_model
from models.paged_generation import PagedGenerator, Row, cache_spec, pack
from tiny_models import HEAD_SIZE, MAX_MODEL_LEN, VOCAB_SIZE, random_prompts

PROMPTS = random_prompts([5, 40])


BLOCK_SIZE, NUM_BLOCKS = 8, 32


def generate(model: LoadedModel) -> list[list[int]]:
    return PagedGenerator(model, NUM_BLOCKS, BLOCK_SIZE).generate(PROMPTS, 8)


def backend_for(model: LoadedModel) -> AttentionBackend:
    return create_backend("reference", cache_spec(model, NUM_BLOCKS, BLOCK_SIZE))


def bound(folder: Path, dtype: str = "auto") -> LoadedModel:
    model = load_model(str(folder), dtype)
    model.bind(backend_for(model))
    return model


@pytest.fixture
def llama(tiny_folder: Callable[[str], Path]) -> LoadedModel:
    return load_model(str(tiny_folder("llama")))


@pytest.mark.parametrize(
    ("name", "num_heads", "num_kv_heads"), [("llama", 6, 2), ("gpt2", 2, 2), ("opt", 2, 2)]
)
def test_shapes_are_those_of_the_attention(
    name: str, num_heads: int, num_kv_heads: int, tiny_folder: Callable[[str], Path]
) -> None:
    model = load_model(str(tiny_folder(name)))
    assert (model.num_layers, model.num_heads, model.num_kv_heads) == (3, num_heads, num_kv_heads)
    assert (model.head_size, model.vocab_size, model.max_model_len) == (HEAD_SIZE, VOCAB_SIZE, MAX_MODEL_LEN)
    assert (model.name, model.eos_token_ids, model.tokenizer) == (name, (2,), None)


@pytest.mark.parametrize(("asked", "dtype"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_dtype_is_the_stored_one_unless_asked_otherwise(
    asked: str, dtype: torch.dtype, tiny_folder: Callable[[str], Path]
) -> None:
    assert load_model(str(tiny_folder("llama")), dtype=asked).dtype == dtype


def test_the_generation_settings_say_what_ends_a_text(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder("llama"), tmp_path / "llama")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [7, 9, 7]}))
    assert load_model(str(folder)).eos_token_ids == (7, 9)


def test_forward_before_bind_says_so(llama: LoadedModel) -> None:
    with pytest.raises(RuntimeError, match="call bind"):
        generate(llama)


def test_bind_leaves_the_cache_as_it_is(llama: LoadedModel) -> None:
    backend = backend_for(llama)
    llama.bind(backend)
    assert backend.cache.isnan().all()


@pytest.mark.parametrize(
    ("field", "value"), [("num_layers", 2), ("num_kv_heads", 6), ("head_size", 32), ("dtype", "bfloat16")]
)
def test_a_cache_of_another_shape_is_refused(field: str, value: object, llama: LoadedModel) -> None:
    spec = replace(cache_spec(llama, NUM_BLOCKS, BLOCK_SIZE), **{field: value})
    with pytest.raises(InvalidConfigError, match=f"{field} of llama's cache must be .* found {value}"):
        llama.bind(create_backend("reference", spec))


def test_logits_are_float32_for_each_token_asked_for(tiny_folder: Callable[[str], Path]) -> None:
    model = bound(tiny_folder("llama"), dtype="bfloat16")
    rows = [Row(PROMPTS[0], 5, blocks=[1]), Row(PROMPTS[1], 40, blocks=[2, 3, 4, 5, 6])]
    logits = model.forward(pack(rows, [5, 40], BLOCK_SIZE, num_padding=2))
    assert (logits.shape, logits.dtype) == ((2, VOCAB_SIZE), torch.float32)


def test_a_step_that_finishes_no_prompt_has_no_logits(tiny_folder: Callable[[str], Path]) -> None:
    row = Row(PROMPTS[1], 40, blocks=[1, 2])
    logits = bound(tiny_folder("llama")).forward(pack([row], [16], BLOCK_SIZE, num_padding=0))
    assert logits.shape == (0, VOCAB_SIZE)


def test_models_bound_at_the_same_time_keep_apart(tiny_folder: Callable[[str], Path]) -> None:
    names = ["llama", "gemma2", "llama"]
    alone = [generate(bound(tiny_folder(name))) for name in names]
    models = [bound(tiny_folder(name)) for name in names]
    assert [generate(model) for model in models] == alone


def test_a_model_goes_on_with_the_backend_bound_last(llama: LoadedModel) -> None:
    first, second = (backend_for(llama) for _ in range(2))
    llama.bind(first)
    expected = generate(llama)
    written = first.cache.clone()
    llama.bind(second)
    assert generate(llama) == expected
    assert torch.equal(first.cache.nan_to_num(), written.nan_to_num())


def test_an_attention_that_was_swapped_afterwards_is_noticed(llama: LoadedModel) -> None:
    llama.bind(backend_for(llama))
    AttentionInterface.register("deaf", lambda module, query, *args, **given: (query.transpose(1, 2), None))
    llama.config._attn_implementation = "deaf"
    with pytest.raises(UnsupportedModelError, match="attended in 0 of its 3 layers"):
        generate(llama)
