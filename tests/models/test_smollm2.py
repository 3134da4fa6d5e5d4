"""A real model: SmolLM2-135M-Instruct from its GGUF file, against recorded greedy tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from looseleaf.attention import create_backend
from looseleaf.models import LoadedModel
from models.paged_generation import PagedGenerator, cache_spec

SYSTEM = "You are a helpful assistant. Answer briefly."
BLOCK_SIZE = 16


def test_it_is_the_model_that_was_recorded(smollm2: LoadedModel) -> None:
    assert (smollm2.name, smollm2.dtype, smollm2.max_model_len) == ("smollm2", torch.float32, 8192)
    assert (smollm2.num_layers, smollm2.num_heads, smollm2.num_kv_heads, smollm2.head_size) == (30, 9, 3, 64)
    assert (smollm2.vocab_size, smollm2.eos_token_ids) == (49152, (2,))


def test_the_tokenizer_and_its_chat_template_give_the_recorded_prompts(
    smollm2: LoadedModel, recorded: list[dict[str, Any]]
) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer is not None
    for prompt in recorded:
        text = prompt["text"]
        if prompt["kind"] != "raw":
            chat = [{"role": "user", "content": text}]
            if prompt["kind"] == "chat-system":
                chat.insert(0, {"role": "system", "content": SYSTEM})
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert tokenizer(text, add_special_tokens=False).input_ids == prompt["prompt_ids"]


@pytest.mark.parametrize("max_tokens", [16, pytest.param(64, marks=pytest.mark.nightly)])
def test_a_ragged_batch_gives_the_recorded_tokens(
    max_tokens: int, smollm2: LoadedModel, recorded: list[dict[str, Any]]
) -> None:
    prompts = [prompt["prompt_ids"] for prompt in recorded]
    num_blocks = sum(-(-(len(ids) + max_tokens) // BLOCK_SIZE) for ids in prompts) + 1
    smollm2.bind(create_backend("cpu", cache_spec(smollm2, num_blocks, BLOCK_SIZE)))
    outputs = PagedGenerator(smollm2, num_blocks, BLOCK_SIZE, chunk=16).generate(prompts, max_tokens)
    assert outputs == [prompt["output_ids"][:max_tokens] for prompt in recorded]
