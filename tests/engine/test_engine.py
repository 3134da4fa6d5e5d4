"""The loop: what is refused, how requests end, and what a failing step leaves behind."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import torch

from engine.made_up_model import (
    EOS_TOKEN_ID,
    VOCAB_SIZE,
    assert_nothing_is_held,
    expected_output,
    logits_after,
    made_up_engine,
    run_to_end,
)
from engine.made_up_tokenizers import LetterTokenizer
from looseleaf import SamplingParams
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import RequestOutputKind
from looseleaf.errors import RequestError


def greedy(max_tokens: int | None = 5, **options: object) -> SamplingParams:
    options = {"ignore_eos": True} | options
    return SamplingParams(temperature=0, max_tokens=max_tokens, **options)


def add(engine: LLMEngine, name: str, tokens: list[int], params: SamplingParams | None = None) -> None:
    engine.add_request(name, TokenPrompt(tokens), params or greedy())


def text_of(tokens: list[int]) -> str:
    return LetterTokenizer().decode(tokens, skip_special_tokens=True)


# --- Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "params", "message"),
    [
        ([], greedy(), "the prompt is empty"),
        (
            [1, VOCAB_SIZE],
            greedy(),
            f"prompt_token_ids must be from 0 to {VOCAB_SIZE - 1}, the vocabulary, found 61",
        ),
        ([-1], greedy(), "found -1"),
        ([1], greedy(stop_token_ids=[10**6]), "stop_token_ids must be from 0 to .* found 1000000"),
        ([1] * 64, greedy(), "64 tokens leaves no room .* max_model_len=64 .* at most 63"),
        ([1] * 1000, greedy(), "leaves no room"),
        ([1], greedy(stop="a"), "no tokenizer: use stop_token_ids"),
    ],
)
def test_a_bad_request_is_refused_with_the_value_and_others_go_on(tokens, params, message):
    engine, _ = made_up_engine()
    add(engine, "good", [1, 2, 3])
    engine.step()
    with pytest.raises(RequestError, match=message):
        add(engine, "bad", tokens, params)
    outputs = run_to_end(engine)
    assert list(outputs) == ["good"]
    assert outputs["good"].outputs[0].token_ids == expected_output([1, 2, 3], greedy(), max_model_len=64)[0]


# --- Endings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [None, 5, 500])
def test_a_text_ends_where_max_model_len_does(max_tokens):
    engine, _ = made_up_engine(max_model_len=12)
    add(engine, "a", list(range(9)), greedy(max_tokens))
    output = run_to_end(engine)["a"]
    assert output.outputs[0].finish_reason == "length"
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 12


def test_the_longest_prompt_gets_its_one_token():
    engine, _ = made_up_engine(max_model_len=12, num_blocks=4)
    add(engine, "a", list(range(11)), greedy(None))
    assert len(run_to_end(engine)["a"].outputs[0].token_ids) == 1


def test_end_of_text_has_no_stop_reason_and_a_stop_token_is_its_own():
    engine, model = made_up_engine()
    prompt = [1, 2, 3]
    third = expected_output(prompt, greedy(3), max_model_len=64)[0][2]
    add(engine, "stop token", prompt, greedy(20, stop_token_ids=[third]))
    model.eos_token_ids = (third,)
    add(engine, "end of text", prompt, greedy(20, ignore_eos=False))
    add(engine, "ignored", prompt, greedy(20))
    outputs = {name: output.outputs[0] for name, output in run_to_end(engine).items()}
    assert [len(output.token_ids) for output in outputs.values()] == [3, 3, 20]
    assert (outputs["stop token"].finish_reason, outputs["stop token"].stop_reason) == ("stop", third)
    assert (outputs["end of text"].finish_reason, outputs["end of text"].stop_reason) == ("stop", None)
    assert (outputs["ignored"].finish_reason, outputs["ignored"].stop_reason) == ("length", None)


@pytest.mark.parametrize("kind", list(RequestOutputKind))
@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_the_text_and_keeps_the_tokens(kind, include):
    engine, _ = made_up_engine(tokenizer=LetterTokenizer())
    tokens = expected_output([1, 2, 3], greedy(20), max_model_len=64)[0]
    stop = text_of(tokens[4:7])
    params = greedy(20, stop=["nowhere", stop], include_stop_str_in_output=include, output_kind=kind)
    add(engine, "a", [1, 2, 3], params)
    text, ids = "", []
    while engine.has_unfinished_requests():
        for output in engine.step():
            completion = output.outputs[0]
            if kind is RequestOutputKind.DELTA:
                text, ids = text + completion.text, ids + completion.token_ids
            else:
                text, ids = completion.text, completion.token_ids
    assert text == text_of(tokens[:7] if include else tokens[:4])
    assert ids == tokens[:7]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert_nothing_is_held(engine)


@pytest.mark.parametrize("kind", list(RequestOutputKind))
@pytest.mark.parametrize("include", [False, True])
def test_the_text_of_a_stop_token_is_left_out_unless_included(kind, include):
    engine, _ = made_up_engine(tokenizer=LetterTokenizer())
    tokens = expected_output([1, 2, 3], greedy(20), max_model_len=64)[0]
    params = greedy(20, stop_token_ids=[tokens[4]], include_stop_str_in_output=include, output_kind=kind)
    add(engine, "a", [1, 2, 3], params)
    texts = []
    while engine.has_unfinished_requests():
        texts += [output.outputs[0].text for output in engine.step()]
    end = tokens.index(tokens[4]) + include
    whole = "".join(texts) if kind is RequestOutputKind.DELTA else texts[-1]
    assert whole == text_of(tokens[:end])


def test_text_is_not_made_where_nobody_wants_it():
    engine, _ = made_up_engine(tokenizer=LetterTokenizer())
    add(engine, "a", [1, 2, 3], greedy(detokenize=False))
    assert run_to_end(engine)["a"].outputs[0].text == ""


# --- Failing steps ------------------------------------------------------------------------------------------


def test_a_failing_step_ends_its_requests_with_the_reason_and_the_engine_lives(caplog):
    engine, model = made_up_engine(max_num_seqs=2)
    model.errors = {3: RuntimeError("out of luck")}
    for name, first in (("a", 1), ("b", 2), ("waits", 3)):
        add(engine, name, [first, 5, 6, 7, 8])
    outputs = run_to_end(engine)
    for name in ("a", "b"):
        output = outputs[name]
        assert output.outputs[0].finish_reason == "error"
        assert output.error == "the step failed: RuntimeError: out of luck"
        assert len(output.outputs[0].token_ids) == 2
    assert (
        outputs["waits"].outputs[0].token_ids
        == expected_output([3, 5, 6, 7, 8], greedy(), max_model_len=64)[0]
    )
    assert "A step failed and ends its 2 requests" in caplog.text


def test_blocks_of_a_failed_step_are_never_hits():
    engine, model = made_up_engine()
    prompt = list(range(20))
    model.errors = {1: RuntimeError("planted")}
    add(engine, "fails", prompt)
    run_to_end(engine)
    model.memory.slots[:] = 0
    add(engine, "again", prompt)
    output = run_to_end(engine)["again"]
    assert output.num_cached_tokens == 0
    assert output.outputs[0].token_ids == expected_output(prompt, greedy(), max_model_len=64)[0]


def test_requests_that_shared_blocks_of_the_failing_step_end_with_it():
    engine, model = made_up_engine(max_num_batched_tokens=64)
    add(engine, "other", [9, 9, 9], greedy(30))
    engine.step()
    model.errors = {2: RuntimeError("planted")}
    add(engine, "a", list(range(20)))
    add(engine, "b", list(range(20)))
    outputs = run_to_end(engine)
    assert {output.outputs[0].finish_reason for output in outputs.values()} == {"error"}
    assert set(outputs) == {"other", "a", "b"}


def test_an_interrupt_in_the_model_leaves_the_pool_whole():
    engine, model = made_up_engine(max_num_seqs=1)
    model.errors = {2: KeyboardInterrupt()}
    add(engine, "a", [1, 2, 3])
    add(engine, "waits", [4, 5, 6])
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.manager.check_invariants()
    assert engine.pool.num_free == engine.pool.num_usable
    outputs = run_to_end(engine)
    assert outputs["waits"].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_logits_are_not_numbers_ends_alone(temperature):
    engine, model = made_up_engine()
    forward = model.forward

    def spoiled(batch):
        logits = forward(batch)
        if model.num_passes == 3:
            logits[engine.manager.row(engine._requests["bad"][0].handle)] = np.nan
        return logits

    model.forward = spoiled
    params = SamplingParams(temperature=temperature, max_tokens=5, ignore_eos=True, seed=1)
    for name, first in (("good", 1), ("bad", 2), ("too", 3)):
        add(engine, name, [first, 5, 6], params)
    outputs = run_to_end(engine)
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert outputs["bad"].error == "the model's logits are not numbers"
    assert len(outputs["bad"].outputs[0].token_ids) == 2
    for name in ("good", "too"):
        assert len(outputs[name].outputs[0].token_ids) == 5


# --- Random numbers -----------------------------------------------------------------------------------------


def test_a_seed_decides_the_text_and_requests_without_one_differ():
    def texts(engine_seed: int, seeds: list[int | None]) -> list[list[int]]:
        engine, _ = made_up_engine(seed=engine_seed)
        for number, seed in enumerate(seeds):
            params = SamplingParams(temperature=5.0, max_tokens=12, seed=seed, ignore_eos=True)
            add(engine, str(number), [1, 2, 3], params)
        outputs = run_to_end(engine)
        return [outputs[str(number)].outputs[0].token_ids for number in range(len(seeds))]

    first = texts(0, [7, None, 7, None])
    assert first[0] == first[2]
    assert first[1] != first[3]
    assert texts(0, [7, None, 7, None]) == first
    other = texts(1, [7, None, 7, None])
    assert other[0] == first[0]
    assert other[1] != first[1]


def test_min_tokens_keeps_the_end_away_even_where_it_is_likeliest():
    engine, _ = made_up_engine()
    prompt = next(
        [first, second]
        for first in range(VOCAB_SIZE)
        for second in range(VOCAB_SIZE)
        if logits_after([first, second]).argmax() == EOS_TOKEN_ID
    )
    for name, min_tokens in (("may end", 0), ("may not", 3)):
        add(engine, name, prompt, greedy(8, ignore_eos=False, min_tokens=min_tokens))
    outputs = run_to_end(engine)
    assert outputs["may end"].outputs[0].token_ids == [EOS_TOKEN_ID]
    assert EOS_TOKEN_ID not in outputs["may not"].outputs[0].token_ids[:3]


# --- What it says -------------------------------------------------------------------------------------------


def test_the_counters_add_up():
    engine, _ = made_up_engine()
    for name in "ab":
        add(engine, name, list(range(10)), greedy(4))
        run_to_end(engine)
    add(engine, "c", [5, 6])
    engine.abort_request("c")
    stats = engine.stats
    assert (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_generation_tokens) == (12, 8, 8)
    assert stats.num_steps == 8
    assert stats.peak_blocks_in_use == 4
    assert stats.num_finished == {"length": 2, "abort": 1}


def test_a_line_is_written_every_ten_seconds_of_work(caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="looseleaf")
    clock = [0.0]
    monkeypatch.setattr("looseleaf.engine.engine.time.monotonic", lambda: clock[0])
    engine, _ = made_up_engine()
    clock[0] = 1000.0
    add(engine, "a", [1, 2, 3], greedy(30))
    for _ in range(25):
        clock[0] += 1.0
        engine.step()
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith(
        "Avg prompt throughput: 0.3 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 1 reqs,"
        " Waiting: 0 reqs, KV cache usage: "
    )


def test_the_cache_is_reset_only_while_nothing_is_held():
    engine, _ = made_up_engine()
    add(engine, "a", list(range(10)))
    engine.step()
    assert not engine.reset_prefix_cache()
    run_to_end(engine)
    assert engine.reset_prefix_cache()
    add(engine, "b", list(range(10)))
    assert run_to_end(engine)["b"].num_cached_tokens == 0


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor", "blake3", "xxh3"])
def test_every_hash_finds_a_repeated_prompt(algorithm):
    engine, _ = made_up_engine(prefix_caching_hash_algo=algorithm)
    hits = []
    for name in "ab":
        add(engine, name, list(range(10)))
        hits.append(run_to_end(engine)[name].num_cached_tokens)
    assert hits == [0, 8]


def test_the_arrays_of_a_step_stay_where_they_are():
    engine, model = made_up_engine()
    addresses = set()
    forward = model.forward

    def watched(batch):
        addresses.add(
            (batch.token_ids.data_ptr(), batch.block_tables.data_ptr(), batch.slot_mapping.data_ptr())
        )
        assert batch.token_ids.dtype == batch.slot_mapping.dtype == torch.int64
        assert batch.block_tables.dtype == batch.seq_lens.dtype == batch.cu_seqlens_q.dtype == torch.int32
        assert batch.max_seq_len == int(batch.seq_lens.max())
        assert batch.max_query_len == int(batch.cu_seqlens_q.diff().max())
        return forward(batch)

    model.forward = watched
    for name in "abc":
        add(engine, name, list(range(7)))
    run_to_end(engine)
    assert len(addresses) == 1


# --- Cost ---------------------------------------------------------------------------------------------------


def calls_of_a_decode_step(num_rows: int) -> int:
    """Calls, of Python and of C functions, that one step makes while ``num_rows`` rows write text."""
    engine, model = made_up_engine(
        num_blocks=400,
        block_size=16,
        max_num_seqs=64,
        max_num_batched_tokens=256,
        tokenizer=LetterTokenizer(),
    )
    model.forward = lambda batch: torch.zeros(len(batch.logits_indices), VOCAB_SIZE)
    params = SamplingParams(
        temperature=0.5,
        top_p=0.9,
        max_tokens=60,
        ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    for number in range(num_rows):
        add(engine, str(number), [number, 1, 2], params)
    for _ in range(3):
        engine.step()
    assert engine.manager.num_running == num_rows
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
    return count


def test_a_decode_step_costs_no_python_per_row():
    assert calls_of_a_decode_step(2) == calls_of_a_decode_step(60)
