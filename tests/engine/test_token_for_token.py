"""A real model writes the recorded tokens, whatever the engine is set to."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import pytest

from engine.made_up_model import assert_nothing_is_held
from looseleaf import LLM, SamplingParams
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.startup import engine_for

MAX_MODEL_LEN = 112
GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, skip_special_tokens=False)

SETTINGS = {
    "block_size": (8, 16, 32),
    "long_prefill_token_threshold": (0, 7, 64, 512),
    "enable_prefix_caching": (True, False),
    "pool": ("roomy", "tight"),
    "company": ("alone", "together", "again"),
}
EVERYTHING = list(product(*SETTINGS.values()))
# Every pair of values of any two settings occurs in one of these.
PAIRWISE = [
    (8, 0, True, "tight", "alone"),
    (16, 0, False, "roomy", "together"),
    (32, 0, True, "tight", "again"),
    (8, 7, False, "roomy", "again"),
    (16, 7, True, "tight", "together"),
    (32, 7, False, "roomy", "alone"),
    (8, 64, True, "tight", "together"),
    (16, 64, False, "roomy", "alone"),
    (32, 64, False, "tight", "again"),
    (16, 512, True, "roomy", "again"),
    (8, 512, False, "tight", "alone"),
    (32, 512, True, "roomy", "together"),
]


def test_the_short_list_has_every_pair_of_settings():
    def pairs(rows):
        return {(i, row[i], j, row[j]) for row in rows for i, j in combinations(range(len(SETTINGS)), 2)}

    assert pairs(PAIRWISE) == pairs(EVERYTHING)


def name_of(setting: tuple[Any, ...]) -> str:
    block_size, threshold, caching, pool, company = setting
    return f"block {block_size}-threshold {threshold}-{'cache' if caching else 'no cache'}-{pool}-{company}"


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, id=name_of(setting), marks=[] if setting in PAIRWISE else pytest.mark.nightly)
        for setting in EVERYTHING
    ],
)
def test_the_recorded_tokens_are_written(setting, smollm2, recorded, request):
    block_size, threshold, caching, pool, company = setting
    if company == "alone" and not request.config.getoption("--nightly"):
        # One prompt at a time is slow: each is alone in one of the short list's settings.
        settings = [setting for setting in PAIRWISE if setting[-1] == "alone"]
        recorded = recorded[settings.index(setting) :: len(settings)]
    longest = -(-MAX_MODEL_LEN // block_size)
    config = EngineConfig(
        model="smollm2",
        block_size=block_size,
        long_prefill_token_threshold=threshold,
        enable_prefix_caching=caching,
        num_gpu_blocks_override=1 + longest * (2 if pool == "tight" else 8),
        max_model_len=MAX_MODEL_LEN,
    )
    llm = LLM.from_engine(engine_for(smollm2, config))
    prompts = [{"prompt_token_ids": prompt["prompt_ids"]} for prompt in recorded]
    if company == "alone":
        outputs = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    else:
        if company == "again":
            llm.generate(prompts, replace(GREEDY, max_tokens=8))
        outputs = llm.generate(prompts, GREEDY)
    for output, prompt in zip(outputs, recorded, strict=True):
        assert output.outputs[0].token_ids == prompt["output_ids"], prompt["id"]
        assert output.outputs[0].text == prompt["output_text"], prompt["id"]
        assert output.outputs[0].finish_reason == "length"
    if company == "again" and caching and pool == "roomy":
        # All but the last of a prompt's tokens that fill blocks are there.
        cached = [(len(prompt["prompt_ids"]) - 1) // block_size * block_size for prompt in recorded]
        assert [output.num_cached_tokens for output in outputs] == cached
    stats = llm.llm_engine.stats
    assert (stats.num_preemptions > 0) == (pool == "tight" and company != "alone")
    if not caching:
        assert stats.num_cached_tokens == 0
    assert_nothing_is_held(llm.llm_engine)


def test_text_prompts_and_chats_end_where_the_model_does(smollm2, recorded):
    config = EngineConfig(model="smollm2", max_model_len=MAX_MODEL_LEN, kv_cache_memory_bytes=2**28)
    llm = LLM.from_engine(engine_for(smollm2, config))
    params = SamplingParams(temperature=0, max_tokens=64)
    for prompt in recorded[:1] + recorded[4:6]:
        if prompt["kind"] == "raw":
            (output,) = llm.generate(prompt["text"], params)
        else:
            (output,) = llm.chat([{"role": "user", "content": prompt["text"]}], params)
        assert output.prompt_token_ids == prompt["prompt_ids"]
        # `first_eos` is the index of the end-of-text token; its text is no part of the output.
        assert output.outputs[0].token_ids == prompt["output_ids"][: prompt["first_eos"] + 1]
        assert output.outputs[0].text == prompt["output_text"].split("<|im_end|>")[0]
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)


def test_a_stream_of_a_real_tokenizer_is_the_text_at_once(smollm2, recorded):
    config = EngineConfig(model="smollm2", max_model_len=MAX_MODEL_LEN, kv_cache_memory_bytes=2**28)
    llm = LLM.from_engine(engine_for(smollm2, config))
    prompt = recorded[1]
    stop_at = "word or phrase"
    params = SamplingParams(temperature=0, max_tokens=64, stop=stop_at)
    outputs = list(llm.stream(prompt["text"], params))
    assert outputs[-1].outputs[0].text == prompt["output_text"].split(stop_at)[0]
    assert outputs[-1].outputs[0].stop_reason == stop_at
    for earlier, later in pairwise(outputs):
        assert later.outputs[0].text.startswith(earlier.outputs[0].text)
    tokens = outputs[-1].outputs[0].token_ids
    assert tokens == prompt["output_ids"][: len(tokens)]
