"""Tiny models from a folder on disk through the whole engine, against ``generate()`` of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.made_up_model import assert_nothing_is_held
from looseleaf import LLM, SamplingParams
from looseleaf.errors import InvalidConfigError, RequestError, UnsupportedError
from tiny_models import random_prompts

LENGTHS = (1, 2, 7, 8, 33, 64, 129, 300)
NUM_TOKENS = 24


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3", "gpt2", "opt"])
@pytest.mark.parametrize("tight", [False, True])
def test_tokens_equal_those_of_generate(name, tight, tiny_folder):
    folder = tiny_folder(name)
    prompts = random_prompts(LENGTHS)
    llm = LLM(
        str(folder),
        block_size=8,
        max_model_len=328,
        max_num_batched_tokens=64,
        num_gpu_blocks_override=50 if tight else 200,
        seed=3,
    )
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True),
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=-1,
        )[0, len(prompt) :].tolist()
        assert output.outputs[0].token_ids == expected, f"a prompt of {len(prompt)} tokens"
        assert output.outputs[0].text == ""
    assert (llm.llm_engine.stats.num_preemptions > 0) == tight
    assert_nothing_is_held(llm.llm_engine)


def test_what_the_backend_cannot_do_is_refused_before_the_pool_is_made(tiny_folder):
    folder = str(tiny_folder("llama"))
    with pytest.raises(UnsupportedError, match="block_size 12 is not supported"):
        LLM(folder, block_size=12)
    with pytest.raises(InvalidConfigError, match="kv_cache_dtype must be auto or float32"):
        LLM(folder, kv_cache_dtype="bfloat16")
    with pytest.raises(InvalidConfigError, match="at most 512, the model's own limit, found 513"):
        LLM(folder, max_model_len=513)
    with pytest.raises(InvalidConfigError, match="lower max_model_len to 144"):
        LLM(folder, num_gpu_blocks_override=10)


def test_a_model_without_a_tokenizer_takes_tokens_only(tiny_folder):
    llm = LLM(str(tiny_folder("llama")), num_gpu_blocks_override=40)
    with pytest.raises(RequestError, match="no tokenizer: give token ids"):
        llm.generate("text")
    with pytest.raises(RequestError, match="no chat template"):
        llm.chat([{"role": "user", "content": "hi"}])


def test_the_longest_request_of_an_exact_pool_is_served_to_its_last_token(tiny_folder):  # [D2]
    llm = LLM(str(tiny_folder("llama")), block_size=8, num_gpu_blocks_override=11, max_model_len=80)
    (output,) = llm.generate([[5] * 3], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 77
    for too_long in (81, 88):
        with pytest.raises(InvalidConfigError, match="lower max_model_len to 80"):
            LLM(str(tiny_folder("llama")), block_size=8, num_gpu_blocks_override=11, max_model_len=too_long)


def test_half_precision_runs_in_a_cache_of_half_the_bytes(tiny_folder):
    folder = str(tiny_folder("llama"))
    wide = LLM(folder, num_gpu_blocks_override=40)
    narrow = LLM(folder, num_gpu_blocks_override=40, dtype="bfloat16")
    assert narrow.llm_engine.group.bytes_per_block * 2 == wide.llm_engine.group.bytes_per_block
    (output,) = narrow.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 5


@pytest.mark.parametrize(("algorithm", "lines"), [("sha256", 1), ("sha256_cbor", 0)])
def test_sha256_says_once_what_it_is(algorithm, lines, tiny_folder, caplog):
    caplog.set_level("INFO", logger="looseleaf")
    LLM(str(tiny_folder("llama")), num_gpu_blocks_override=40, prefix_caching_hash_algo=algorithm)
    assert caplog.messages.count("prefix_caching_hash_algo sha256 is computed as sha256_cbor") == lines
    assert "CPU KV cache size: 624 tokens" in caplog.messages


@pytest.mark.parametrize(("asked", "settled", "lines"), [(None, 32, 1), (16, 16, 0)])
def test_a_block_size_that_the_backend_prefers_is_announced(
    asked, settled, lines, tiny_folder, caplog, monkeypatch
):
    monkeypatch.setattr("looseleaf.attention.cpu.CpuBackend.preferred_block_size", 32)
    caplog.set_level("INFO", logger="looseleaf")
    llm = LLM(str(tiny_folder("llama")), num_gpu_blocks_override=40, block_size=asked)
    assert llm.llm_engine.group.block_size == settled
    assert caplog.messages.count("Setting kv cache block size to 32") == lines
