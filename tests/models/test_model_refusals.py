"""Models that the paged cache would compute wrongly do not load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DogeConfig,
    DogeForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3NextConfig,
    T5Config,
    ViTConfig,
)

from looseleaf.errors import UnsupportedModelError
from looseleaf.models import load_model
from looseleaf.models.paged_cache import PagedCache

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}


def two_ropes() -> PretrainedConfig:
    ropes = {"full_attention": DYNAMIC, "sliding_attention": PLAIN}
    return Gemma3TextConfig(**SMALL, head_dim=16, rope_parameters=ropes)


def layers_of_their_own() -> PretrainedConfig:
    return MistralConfig(**SMALL, sliding_window=8, per_layer_config={1: {"sliding_window": 4}})


# None of these has weights: what its configuration says must be enough.
BY_CONFIGURATION: dict[str, tuple[Callable[[], PretrainedConfig], str]] = {
    "rope that follows the longest row": (lambda: LlamaConfig(**SMALL, rope_parameters=DYNAMIC), "'dynamic'"),
    "rope with two sets of factors": (lambda: Phi3Config(**SMALL, rope_parameters=LONGROPE), "'longrope'"),
    "such a rope for one kind of layer": (two_ropes, "'dynamic'"),
    "chunks that only the mask knows": (lambda: Llama4TextConfig(**SMALL), "'chunked_attention'"),
    "layers that share keys and values": (lambda: Gemma3nTextConfig(**SMALL), "num_kv_shared_layers=15"),
    "a window of its own in one layer": (layers_of_their_own, "settings of their own"),
    "attention to later tokens": (
        lambda: Gemma3TextConfig(**SMALL, use_bidirectional_attention=True),
        "only causal attention",
    ),
    "cross-attention": (lambda: GPT2Config(add_cross_attention=True), "cross-attention"),
    "layers with a recurrent state": (lambda: Qwen3NextConfig(), "recurrent state"),
    "state space": (lambda: MambaConfig(), "recurrent state"),
    "Bloom's own attention": (lambda: BloomConfig(), "BloomForCausalLM computes attention in its own code"),
    "Falcon's own attention": (
        lambda: FalconConfig(),
        "FalconForCausalLM computes attention in its own code",
    ),
    "GPT-Neo's own attention": (
        lambda: GPTNeoConfig(),
        "GPTNeoForCausalLM computes attention in its own code",
    ),
    "MPT's own attention": (lambda: MptConfig(), "MptForCausalLM computes attention in its own code"),
    "an encoder and a decoder": (lambda: BartConfig(), "BartForCausalLM computes attention in its own code"),
    "no causal language model": (lambda: T5Config(), "only causal language models"),
    "no language model": (lambda: ViTConfig(), "only causal language models"),
}


@pytest.mark.parametrize("case", BY_CONFIGURATION)
def test_a_configuration_is_refused_before_weights_are_read(case: str, tmp_path: Path) -> None:
    make_config, found = BY_CONFIGURATION[case]
    make_config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=found):
        load_model(str(tmp_path))


def latent_attention() -> PreTrainedModel:
    config = DeepseekV3Config(
        **SMALL,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        head_dim=8,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
    )
    return DeepseekV3ForCausalLM(config)


def window_in_the_mask_only() -> PreTrainedModel:
    config = Qwen2MoeConfig(
        **SMALL,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        use_sliding_window=True,
        sliding_window=8,
    )
    return Qwen2MoeForCausalLM(config)


# What only shows when a token runs through.
BY_TRACE: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "keys and values of different widths": (latent_attention, r"\[2, 24\], \[2, 24\] and \[2, 16\]"),
    "a window in the mask only": (window_in_the_mask_only, "sliding_window=None in layer 0, .* says 8"),
    "two attentions in one layer": (
        lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SMALL)),
        "once per forward",
    ),
    "a mask of its own": (lambda: DogeForCausalLM(DogeConfig(**SMALL)), "an attention mask of its own"),
    "an encoder": (lambda: BertLMHeadModel(BertConfig(**SMALL)), "only causal attention"),
}


@pytest.mark.parametrize("case", BY_TRACE)
def test_a_model_is_refused_when_a_token_has_run_through_it(case: str, tmp_path: Path) -> None:
    make_model, found = BY_TRACE[case]
    make_model().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match=found):
        load_model(str(tmp_path))


def test_a_model_that_stays_on_its_own_attention_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    FalconForCausalLM(config).save_pretrained(tmp_path)
    monkeypatch.setattr(FalconForCausalLM, "_supports_attention_backend", True)
    with pytest.raises(UnsupportedModelError, match="FalconForCausalLM stays on its own attention"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("keyword", ["sinks", "position_bias", "indices", "block_indices"])
def test_an_unknown_word_to_the_attention_is_named(keyword: str) -> None:
    states = torch.zeros(1, 2, 1, 16)
    with pytest.raises(UnsupportedModelError, match=f"TinyLM passes '{keyword}' to its attention"):
        PagedCache("TinyLM").attend(
            torch.nn.Identity(), states, states, states, None, **{keyword: torch.ones(2)}
        )


def test_a_window_that_the_model_has_never_heard_of_refuses_nothing(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_folder("llama"), tmp_path / "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": 8}))
    assert load_model(str(folder)).layers[0].sliding_window is None
