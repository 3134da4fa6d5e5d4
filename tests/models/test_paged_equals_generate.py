"""Tokens through the paged cache against transformers' own ``generate()``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from looseleaf.attention import AttentionBackend
from looseleaf.attention.cpu import CpuBackend
from looseleaf.attention.reference import ReferenceBackend
from looseleaf.models import load_model
from models.paged_generation import PagedGenerator, cache_spec
from tiny_models import HEAD_SIZE, SOFTCAP, TINY_MODELS, WINDOW, random_prompts

PROMPTS = random_prompts([1, 2, 7, 8, 9, 31, 64, 65, 130, 300])
MAX_TOKENS = 24
# Logits move by about 3e-5 with the shape of a batch; a gap this wide between the best two tokens makes any
# difference a real one.
SMALLEST_GAP = 1e-3


@cache
def generated(folder: Path) -> tuple[list[list[int]], float]:
    """What ``generate()`` answers, one prompt at a time, and the smallest gap between its best two logits."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model.generation_config.eos_token_id = None
    outputs, gaps = [], []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        outputs.append(answer.sequences[0, len(prompt) :].tolist())
        best = torch.cat(answer.logits).topk(2).values
        gaps.append((best[:, 0] - best[:, 1]).min().item())
    return outputs, min(gaps)


def paged(
    folder: Path, backend: type[AttentionBackend] = CpuBackend, block_size: int = 16, chunk: int = 37
) -> list[list[int]]:
    """The same through the adapter, all prompts in one ragged batch."""
    model = load_model(str(folder))
    num_blocks = sum(-(-(len(prompt) + MAX_TOKENS) // block_size) for prompt in PROMPTS) + 1
    model.bind(backend(cache_spec(model, num_blocks, block_size)))
    return PagedGenerator(model, num_blocks, block_size, chunk).generate(PROMPTS, MAX_TOKENS)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_fixture_can_fail(name: str, tiny_folder: Callable[[str], Path]) -> None:
    outputs, smallest_gap = generated(tiny_folder(name))
    assert smallest_gap > SMALLEST_GAP
    assert min(len(set(output)) for output in outputs) >= 8


@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize(
    ("backend", "block_size", "chunk"),
    [(CpuBackend, 16, 37), (CpuBackend, 8, 300), (ReferenceBackend, 16, 37)],
)
def test_ragged_batches_over_shuffled_blocks_equal_generate(
    name: str,
    backend: type[AttentionBackend],
    block_size: int,
    chunk: int,
    tiny_folder: Callable[[str], Path],
) -> None:
    folder = tiny_folder(name)
    assert paged(folder, backend, block_size, chunk) == generated(folder)[0]


def changed(**terms: Callable[[Any], Any]) -> type[AttentionBackend]:
    """A backend that attends with some terms changed."""

    class Changed(CpuBackend):
        def attend(self, *args: Any, **given: Any) -> torch.Tensor:
            mutated = {name: change(given[name]) for name, change in terms.items()}
            return super().attend(*args, **given | mutated)

    return Changed


MUTATIONS = {
    "no window": changed(sliding_window=lambda window: None),
    "window + 1": changed(sliding_window=lambda window: window and window + 1),
    "no soft-cap": changed(softcap=lambda softcap: None),
    "scale x 1.1": changed(scale=lambda scale: scale * 1.1),
    "no sinks": changed(sinks=lambda sinks: None),
}


@pytest.mark.parametrize(
    ("name", "mutation"),
    [
        *(("gemma2", mutation) for mutation in ("no window", "window + 1", "no soft-cap")),
        *(("gemma3", mutation) for mutation in ("no window", "window + 1")),
        *(("gpt_oss", mutation) for mutation in ("no window", "window + 1", "no sinks")),
        *((name, "scale x 1.1") for name in TINY_MODELS),
    ],
)
def test_a_planted_mistake_changes_the_tokens(
    name: str, mutation: str, tiny_folder: Callable[[str], Path]
) -> None:
    folder = tiny_folder(name)
    assert paged(folder, MUTATIONS[mutation]) != generated(folder)[0]


def test_layers_report_what_the_model_asks_of_its_attention(tiny_folder: Callable[[str], Path]) -> None:
    gemma = load_model(str(tiny_folder("gemma2")))
    assert [layer.sliding_window for layer in gemma.layers] == [WINDOW, None, WINDOW]
    assert {(layer.softcap, layer.scale) for layer in gemma.layers} == {(SOFTCAP, HEAD_SIZE**-0.5)}
    assert not any(layer.has_sinks for layer in gemma.layers)
    gpt_oss = load_model(str(tiny_folder("gpt_oss")))
    assert all(layer.has_sinks for layer in gpt_oss.layers)


ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}


@pytest.mark.parametrize("rope", ROPES)
def test_a_scaled_rope_that_looks_at_one_position_at_a_time_equals_generate(
    rope: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder("llama"), tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = ROPES[rope] | {"rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    outputs, smallest_gap = generated(folder)
    assert smallest_gap > SMALLEST_GAP
    assert outputs != generated(tiny_folder("llama"))[0]
    assert paged(folder) == outputs
