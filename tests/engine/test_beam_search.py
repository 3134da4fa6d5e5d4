"""Beam search: the texts are those of transformers' ``generate(num_beams=k)``, and blocks are shared."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from engine.made_up_model import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    assert_nothing_is_held,
    logits_after,
    made_up_engine,
)
from looseleaf import LLM, BeamSearchParams, SamplingParams
from looseleaf.engine.beam_rules import BeamRules, FinishedBeam
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.errors import EngineError, RequestError
from tiny_models import random_prompts

NUM_TOKENS = 12


def expected_beams(model, prompt, *, end_ids, params):
    """The sequences and scores of transformers, best first."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=params.max_tokens,
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        do_sample=False,
        eos_token_id=list(end_ids) or -1,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    texts = []
    for row in found.sequences.tolist():
        text = row[len(prompt) :]
        ends = [place for place, token in enumerate(text) if token in end_ids]
        texts.append(text[: ends[0] + 1] if ends else text)
    return texts, found.sequences_scores.tolist()


EVERY_RUN = {("llama", 2), ("gpt2", 4), ("gemma2", 6)}


@pytest.mark.parametrize(
    ("name", "width"),
    [
        pytest.param(*case, marks=[] if case in EVERY_RUN else pytest.mark.nightly)
        for case in product(["llama", "gpt2", "gemma2"], [2, 4, 6])
    ],
)
def test_beams_equal_those_of_generate(name, width, tiny_folder, monkeypatch):
    folder = tiny_folder(name)
    llm = LLM(
        str(folder), block_size=8, max_model_len=328, max_num_batched_tokens=64, num_gpu_blocks_override=99
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompts = random_prompts((1, 8, 33))

    def compared(end_ids, **rules):
        monkeypatch.setattr(llm.llm_engine._model, "eos_token_ids", end_ids)
        params = BeamSearchParams(width, NUM_TOKENS, **rules)
        outputs = llm.beam_search([{"prompt_token_ids": prompt} for prompt in prompts], params)
        for prompt, output in zip(prompts, outputs, strict=True):
            texts, scores = expected_beams(model, prompt, end_ids=end_ids, params=params)
            assert [beam.tokens for beam in output.sequences] == [prompt + text for text in texts]
            assert [beam.score for beam in output.sequences] == pytest.approx(scores, rel=1e-5)
        return [beam for output in outputs for beam in output.sequences]

    beams = compared(())
    assert {beam.finish_reason for beam in beams} == {"length"}
    # Tokens of the beams themselves, so that texts end early, each in its own way.
    end_ids = tuple(
        dict.fromkeys(beams[index].tokens[-place] for index, place in ((0, 2), (width, 4), (-1, 6)))
    )
    reasons = set()
    for penalty, early_stopping in ((1.0, False), (0.0, True), (2.0, "never"), (-1.0, False), (0.5, True)):
        beams = compared(end_ids, length_penalty=penalty, early_stopping=early_stopping)
        reasons |= {beam.finish_reason for beam in beams}
    assert reasons == {"stop", "length"}
    assert_nothing_is_held(llm.llm_engine)


@pytest.mark.nightly
@pytest.mark.parametrize("width", [2, 4, 6])
def test_beams_of_a_real_model_equal_those_of_generate(width, smollm2, recorded):
    from looseleaf.engine.config import EngineConfig
    from looseleaf.engine.startup import engine_for

    config = EngineConfig(model="smollm2", max_model_len=112, kv_cache_memory_bytes=2**28)
    llm = LLM.from_engine(engine_for(smollm2, config))
    params = BeamSearchParams(width, 24)
    outputs = llm.beam_search([{"prompt_token_ids": prompt["prompt_ids"]} for prompt in recorded], params)
    end_ids = llm.llm_engine._model.eos_token_ids
    for prompt, output in zip(recorded, outputs, strict=True):
        texts, _ = expected_beams(smollm2.model, prompt["prompt_ids"], end_ids=end_ids, params=params)
        assert [beam.tokens[len(prompt["prompt_ids"]) :] for beam in output.sequences] == texts
        assert output.sequences[0].text


def beams_from_texts_alone(prompt: list[int], params: BeamSearchParams) -> list[FinishedBeam]:
    """The same rules on logits that are computed from each whole text, without engine, pool or forks."""
    end_ids = () if params.ignore_eos else (EOS_TOKEN_ID,)
    rules = BeamRules(
        params.beam_width, params.max_tokens, end_ids, params.length_penalty, params.early_stopping
    )
    texts = [prompt]
    while not rules.done:
        logits = torch.stack([torch.from_numpy(logits_after(text)) for text in texts])
        texts = [
            [*texts[continuation.parent], continuation.token]
            for continuation in rules.advance(torch.log_softmax(logits, dim=-1))
        ]
    return rules.finished


PROMPTS = st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=20), min_size=1, max_size=5)


@given(
    prompts=PROMPTS,
    width=st.integers(1, 6),
    max_tokens=st.integers(1, 14),
    penalty=st.sampled_from([1.0, 0.0, -1.0, 2.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
    ignore_eos=st.booleans(),
    block_size=st.sampled_from([1, 2, 4, 8]),
    spare_blocks=st.sampled_from([0, 3, 200]),
    caching=st.booleans(),
)
def test_sharing_blocks_changes_no_beam(
    prompts, width, max_tokens, penalty, early_stopping, ignore_eos, block_size, spare_blocks, caching
):
    params = BeamSearchParams(
        width, max_tokens, ignore_eos=ignore_eos, length_penalty=penalty, early_stopping=early_stopping
    )
    # Room for one search whose beams share nothing, so that more of them must take turns.
    longest = max(map(len, prompts)) + max_tokens
    engine, _ = made_up_engine(
        num_blocks=1 + width * -(-longest // block_size) + spare_blocks,
        block_size=block_size,
        max_num_seqs=8,
        max_num_batched_tokens=8,
        enable_prefix_caching=caching,
        max_model_len=40,
    )
    llm = LLM.from_engine(engine)
    outputs = llm.beam_search(prompts, params)
    event(f"copies: {engine.manager.stats()['block_copies'] > 0}")
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = beams_from_texts_alone(prompt, params)
        assert [tuple(beam.tokens[len(prompt) :]) for beam in output.sequences] == [
            beam.token_ids for beam in expected
        ]
        assert [beam.score for beam in output.sequences] == [beam.score for beam in expected]
        assert [beam.finish_reason for beam in output.sequences] == [beam.finish_reason for beam in expected]
    assert_nothing_is_held(engine)


def test_four_samples_of_a_thousand_tokens_make_three_copies():
    engine, _ = made_up_engine(num_blocks=400, block_size=16, max_model_len=2048, max_num_batched_tokens=2048)
    manager = engine.manager
    parent = manager.open([number % VOCAB_SIZE for number in range(1000)])
    manager.admit(parent)
    manager.append(parent, 1000)
    manager.commit(parent, 7)
    samples = [parent, *manager.fork(parent, 3)]
    for sample in samples:
        manager.append(sample, 1)
        manager.commit(sample, 8)
    # 1,000 tokens end in the middle of a block of 16, which four share and the last one writes in place.
    assert manager.stats()["block_copies"] == 3
    for sample in samples:
        manager.close(sample)
    assert_nothing_is_held(engine)


def test_a_step_of_the_beams_copies_shared_last_blocks_only_and_losers_go_at_once():
    engine, _ = made_up_engine(num_blocks=400, block_size=4, max_model_len=128)
    search = engine.beam_search([TokenPrompt([5] * 50)], BeamSearchParams(4, 20, ignore_eos=True))
    manager, before = engine.manager, 0
    while True:
        shared_last = sum(
            engine.pool.ref_cnt(manager.block_ids(beam)[-1]) > 1
            for active in search._active
            for beam in active.beams
            if manager.num_computed_tokens(beam) % 4
        )
        if not search.step():
            break
        copies = manager.stats()["block_copies"]
        assert copies - before <= shared_last
        before = copies
        assert manager.num_open <= 4
    assert before > 0
    assert_nothing_is_held(engine)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beam_width": 0}, "beam_width must be an integer of at least 1, found 0"),
        ({"beam_width": 2.0}, "beam_width must be an integer"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, found 0"),
        ({"temperature": 0.7}, "temperature must be 0, since a beam search draws no random numbers"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number, found nan"),
        ({"early_stopping": "always"}, "early_stopping must be True, False or 'never', found 'always'"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, found 1"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(options, said):
    with pytest.raises(RequestError, match=said):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **options})


def test_what_cannot_be_served_is_refused_before_anything_is_opened():
    engine, _ = made_up_engine(max_num_seqs=8, max_model_len=40)
    llm = LLM.from_engine(engine)
    for width, max_tokens, prompt, said in (
        (9, 4, [1], r"beam_width must be at most max_num_seqs \(8\)"),
        (2, 38, [1, 2, 3], r"3 tokens and max_tokens of 38 are more than max_model_len \(40\)"),
        (2, 4, [], "the prompt is empty"),
        (2, 4, [VOCAB_SIZE], f"the vocabulary, found {VOCAB_SIZE}"),
    ):
        with pytest.raises(RequestError, match=said):
            llm.beam_search([[1], prompt], BeamSearchParams(width, max_tokens))
    wide, _ = made_up_engine(max_num_seqs=64, max_num_batched_tokens=64)
    with pytest.raises(
        RequestError, match="looks at 80 candidates, and the vocabulary has 61 tokens: use at most 30"
    ):
        LLM.from_engine(wide).beam_search([[1]], BeamSearchParams(40, 4))
    stream = llm.stream([[1, 2, 3]], SamplingParams(max_tokens=5))
    next(stream)
    with pytest.raises(EngineError, match="needs the engine for itself: 1 requests have not ended"):
        llm.beam_search([[1]], BeamSearchParams(2, 4))
    stream.close()
    assert_nothing_is_held(engine)


def test_a_search_that_is_too_large_for_the_pool_says_so_and_leaves_nothing_behind():
    engine, model = made_up_engine(num_blocks=9, block_size=4, max_model_len=64)
    llm = LLM.from_engine(engine)
    with pytest.raises(
        EngineError, match=r"a beam search of width 4 is alone .* holds 8 of 8; use fewer beams"
    ):
        llm.beam_search([[1] * 6], BeamSearchParams(4, 30, ignore_eos=True))
    assert_nothing_is_held(engine)
    model.errors = {model.num_passes + 3: RuntimeError("planted")}
    with pytest.raises(RuntimeError, match="planted"):
        llm.beam_search([[1] * 6], BeamSearchParams(2, 8))
    assert_nothing_is_held(engine)
    assert len(llm.beam_search([1, 2, 3], BeamSearchParams(2, 8))[0].sequences) == 2
