"""Tiny random models, made when a test asks for them.

Weights are drawn with a standard deviation of 0.2, ten times the usual. At the usual one a random model's
attention is nearly uniform and its answers hardly depend on what it attends to: a lost soft-cap or a wrong
scale would pass. For the same reason the embeddings are untied; tied, a random Gemma repeats its last token
whatever it attends to.

Head sizes are 64, so that every backend can run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 320
WINDOW = 8
SOFTCAP = 5.0
HEAD_SIZE = 64
MAX_MODEL_LEN = 512

_SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_ROTARY = _SHARED | {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": HEAD_SIZE,
    "max_position_embeddings": MAX_MODEL_LEN,
}
_PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_ALTERNATING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_ROTARY))


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_ROTARY))


def _gemma2() -> PreTrainedModel:
    config = Gemma2Config(
        **_ROTARY,
        **_ALTERNATING,
        query_pre_attn_scalar=HEAD_SIZE,
        attn_logit_softcapping=SOFTCAP,
        final_logit_softcapping=None,
    )
    return Gemma2ForCausalLM(config)


def _gemma3() -> PreTrainedModel:
    return Gemma3ForCausalLM(Gemma3TextConfig(**_ROTARY, **_ALTERNATING, query_pre_attn_scalar=HEAD_SIZE))


def _gpt_oss() -> PreTrainedModel:
    config = GptOssConfig(
        **_ROTARY,
        **_ALTERNATING,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters=_PLAIN_ROPE,
    )
    return GptOssForCausalLM(config)


def _gpt2() -> PreTrainedModel:
    config = GPT2Config(**_SHARED, n_positions=MAX_MODEL_LEN, n_embd=2 * HEAD_SIZE, n_layer=3, n_head=2)
    return GPT2LMHeadModel(config)


def _opt() -> PreTrainedModel:
    config = OPTConfig(
        **{name: value for name, value in _SHARED.items() if name != "initializer_range"},
        init_std=0.2,
        max_position_embeddings=MAX_MODEL_LEN,
        hidden_size=2 * HEAD_SIZE,
        word_embed_proj_dim=2 * HEAD_SIZE,
        ffn_dim=256,
        num_hidden_layers=3,
        num_attention_heads=2,
    )
    return OPTForCausalLM(config)


TINY_MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt_oss": _gpt_oss,
    "gpt2": _gpt2,
    "opt": _opt,
}
# Seeds whose models write varied text and never hesitate between two tokens on ``random_prompts``; the tests
# that need it assert both.
_SEEDS = {"llama": 2, "qwen3": 6, "gemma2": 0, "gemma3": 2, "gpt_oss": 2, "gpt2": 0, "opt": 3}


def save_tiny_model(name: str, folder: Path) -> Path:
    """Write the tiny model ``name``, a key of ``TINY_MODELS``, as a model folder without a tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(_SEEDS[name])
        model = TINY_MODELS[name]()
    model.save_pretrained(folder)
    return folder


def random_prompts(lengths: Sequence[int]) -> list[list[int]]:
    """Draw one prompt of each length, without the special ids 0 to 2."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in lengths]
