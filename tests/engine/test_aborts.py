"""Requests that end before their time: by abort, in every state and at every moment, by timeout, by failure.

What they had written is right as far as it goes, what they held comes back, and all others write what they
would have written alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import pytest

from engine.made_up_model import (
    MadeUpModel,
    assert_nothing_is_held,
    expected_output,
    made_up_engine,
    run_to_end,
)
from engine.made_up_tokenizers import LetterTokenizer
from looseleaf import LLM, RequestOutput, SamplingParams
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import RequestOutputKind
from looseleaf.errors import EngineError, RequestError

FINAL = RequestOutputKind.FINAL_ONLY
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, output_kind=FINAL)
SEVERAL = SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True, output_kind=FINAL)
PROMPTS = {"first": list(range(18)), "second": list(range(9)), "third": [5] * 7}


def text_of(name: str) -> list[int]:
    return expected_output(PROMPTS[name], GREEDY, max_model_len=64)[0]


def crowded() -> tuple[LLMEngine, MadeUpModel]:
    """Three requests, each in several pieces, on a pool that cannot hold all they write."""
    engine, model = made_up_engine(num_blocks=13, max_num_seqs=3, max_num_batched_tokens=8)
    for name, prompt in PROMPTS.items():
        engine.add_request(name, TokenPrompt(prompt), GREEDY)
    return engine, model


def state_of(engine: LLMEngine, name: str) -> str:
    if name not in engine._requests:
        return "finished"
    (request,) = engine._requests[name]
    if request.handle not in engine._scheduler.running:
        return "preempted" if request.started else "waiting"
    return "writing" if engine.manager.output_len(request.handle) else "prompt"


def during(model: MadeUpModel, number: int, act: Callable[[], object]) -> None:
    """Have ``act`` happen while the model computes its pass of that number, after it wrote to the cache."""
    forward = model.forward

    def watched(batch):
        logits = forward(batch)
        if model.num_passes == number:
            act()
        return logits

    model.forward = watched  # type: ignore[method-assign]


def check(engine: LLMEngine, outputs: dict[str, RequestOutput], ended: dict[str, RequestOutput]) -> None:
    """All but those that were ended have all their text; those have the beginning of theirs."""
    for name in PROMPTS:
        output = ended.get(name) or outputs[name]
        completion = output.outputs[0]
        text = text_of(name)
        if name in ended:
            assert completion.token_ids == text[: len(completion.token_ids)]
        else:
            assert (completion.token_ids, completion.finish_reason) == (text, "length")
    assert_nothing_is_held(engine)


# --- Abort --------------------------------------------------------------------------------------------------


def test_an_abort_between_steps_is_right_in_every_state():
    seen = set()
    for name in PROMPTS:
        for steps in range(0, 45, 2):
            engine, _ = crowded()
            outputs = {}
            for _ in range(steps):
                outputs |= {output.request_id: output for output in engine.step()}
            state = state_of(engine, name)
            seen.add(state)
            aborted = {output.request_id: output for output in engine.abort_request([name, "unknown", name])}
            assert engine.abort_request(name) == []
            assert list(aborted) == ([] if state == "finished" else [name])
            assert all(output.outputs[0].finish_reason == "abort" for output in aborted.values())
            engine.manager.check_invariants()
            check(engine, outputs | run_to_end(engine), aborted)
    assert seen == {"waiting", "prompt", "writing", "preempted", "finished"}


@pytest.mark.parametrize("fails", [False, True], ids=["a step that succeeds", "a step that fails"])
def test_an_abort_while_a_step_runs_is_right_in_every_state(fails):
    seen = set()
    for name in PROMPTS:
        for number in range(1, 35, 2):
            engine, model = crowded()
            aborted: list[RequestOutput] = []

            def act(engine=engine, name=name, aborted=aborted):
                seen.add(state_of(engine, name))
                for _ in range(2):
                    aborted += engine.abort_request([name])
                if fails:
                    raise RuntimeError("planted")

            during(model, number, act)
            outputs = run_to_end(engine)
            failed = {
                name: output for name, output in outputs.items() if output.outputs[0].finish_reason == "error"
            }
            assert name not in failed or not aborted
            assert all(output.error == "the step failed: RuntimeError: planted" for output in failed.values())
            check(engine, outputs, failed | {output.request_id: output for output in aborted})
    assert seen == {"waiting", "prompt", "writing", "preempted", "finished"}


def test_blocks_of_an_abort_while_a_step_runs_are_back_with_its_end():
    engine, model = made_up_engine()
    during(model, 3, lambda: engine.abort_request("a"))
    engine.add_request("a", TokenPrompt([1, 2, 3]), GREEDY)
    for _ in range(2):
        engine.step()
    assert engine.pool.num_free < engine.pool.num_usable
    assert engine.step() == []
    assert engine.pool.num_free == engine.pool.num_usable


def test_a_row_that_is_aborted_while_its_logits_turn_out_to_be_no_numbers_ends_once():
    engine, model = made_up_engine()
    forward = model.forward

    def spoiled(batch):
        logits = forward(batch)
        if model.num_passes == 2:
            logits[0] = np.nan
            engine.abort_request("bad")
        return logits

    model.forward = spoiled
    for name, prompt in (("bad", [9, 9]), ("second", PROMPTS["second"])):
        engine.add_request(name, TokenPrompt(prompt), GREEDY)
    outputs = run_to_end(engine)
    assert list(outputs) == ["second"], "the end of the other was the abort's"
    assert outputs["second"].outputs[0].token_ids == text_of("second")
    assert engine.stats.num_finished == {"abort": 1, "length": 1}


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
@pytest.mark.parametrize("inside", [False, True])
def test_an_abort_ends_all_samples_forked_or_not(steps, inside):
    engine, model = made_up_engine(max_num_batched_tokens=8, max_num_seqs=8)
    engine.add_request("several", TokenPrompt([7] * 14), SEVERAL)
    engine.add_request("second", TokenPrompt(PROMPTS["second"]), GREEDY)
    aborted: list[RequestOutput] = []
    if inside:
        during(model, steps + 1, lambda: aborted.extend(engine.abort_request("several")))
    for _ in range(steps + inside):
        engine.step()
    aborted += engine.abort_request("several")
    (output,) = aborted
    assert [completion.finish_reason for completion in output.outputs] == ["abort"] * 3
    assert [completion.index for completion in output.outputs] == [0, 1, 2]
    assert run_to_end(engine)["second"].outputs[0].token_ids == text_of("second")
    assert engine.stats.num_finished == {"abort": 3, "length": 1}


def test_a_name_can_be_used_again_after_an_abort():
    engine, _ = made_up_engine()
    engine.add_request("a", TokenPrompt(PROMPTS["first"]), GREEDY, timeout=1e9)
    engine.abort_request("a")
    engine.add_request("a", TokenPrompt(PROMPTS["second"]), GREEDY)
    assert run_to_end(engine)["a"].outputs[0].token_ids == text_of("second")


# --- Abort through LLM --------------------------------------------------------------------------------------


STREAMED = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def llm() -> LLM:
    return LLM.from_engine(made_up_engine(tokenizer=LetterTokenizer())[0])


def last_outputs(stream) -> dict[int, RequestOutput]:
    return {output.prompt_index: output for output in stream}


@pytest.mark.parametrize("where", ["between outputs", "within a step", "in another thread during a step"])
def test_one_prompt_of_a_stream_is_aborted_and_the_others_go_on(llm, where):
    stream = llm.stream(["hello", "loose"], STREAMED)
    first = next(stream)
    abort = lambda: [llm.abort(first.request_id) for _ in range(2)]  # noqa: E731
    if where == "within a step":
        during(llm.llm_engine._model, 2, abort)
    elif where == "in another thread during a step":

        def elsewhere():
            thread = threading.Thread(target=abort)
            thread.start()
            thread.join()

        during(llm.llm_engine._model, 2, elsewhere)
    else:
        abort()
        llm.abort(["unknown", first.request_id])
        assert llm.llm_engine.get_num_unfinished_requests() == 1
    outputs = last_outputs(stream)
    other = 1 - first.prompt_index
    aborted, finished = outputs[first.prompt_index].outputs[0], outputs[other].outputs[0]
    assert (aborted.finish_reason, finished.finish_reason) == ("abort", "length")
    assert len(aborted.token_ids) == (1 if where == "between outputs" else 2)
    assert len(finished.token_ids) == 6
    llm.abort([first.request_id, outputs[other].request_id])
    assert_nothing_is_held(llm.llm_engine)
    assert llm._boxes == {}


def test_a_prompt_of_generate_that_is_aborted_keeps_its_place(llm):
    during(llm.llm_engine._model, 3, lambda: llm.abort("0"))
    outputs = llm.generate(["hello", "loose"], STREAMED)
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort", "length"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 6]


def test_a_call_whose_outputs_somebody_else_took_does_not_wait_for_them(llm):
    during(llm.llm_engine._model, 2, lambda: llm.llm_engine.abort_request(["0", "1"]))
    with pytest.raises(EngineError, match=r"2 requests were ended .* use LLM\.abort"):
        llm.generate(["hello", "loose"], STREAMED)
    assert_nothing_is_held(llm.llm_engine)


# --- Timeouts -----------------------------------------------------------------------------------------------


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def timed(**options: object) -> tuple[LLMEngine, Clock]:
    clock = Clock()
    engine, _ = made_up_engine(clock=clock, **options)
    return engine, clock


def test_a_request_ends_when_its_time_is_up_with_what_it_has_written():
    engine, clock = timed()
    engine.add_request("first", TokenPrompt(PROMPTS["first"]), GREEDY, timeout=2.5)
    engine.add_request("second", TokenPrompt(PROMPTS["second"]), GREEDY)
    ended = []
    for _ in range(3):
        ended += engine.step()
        clock.now += 1.0
    (output,) = ended + engine.step()
    completion = output.outputs[0]
    assert (output.request_id, completion.finish_reason, output.finished) == ("first", "timeout", True)
    assert completion.token_ids == text_of("first")[:3]
    assert run_to_end(engine)["second"].outputs[0].token_ids == text_of("second")
    assert engine.stats.num_finished == {"timeout": 1, "length": 1}


def test_time_runs_while_a_request_waits_for_its_turn_or_is_preempted():
    engine, clock = timed(max_num_seqs=1)
    engine.add_request("first", TokenPrompt(PROMPTS["first"]), GREEDY)
    engine.add_request("second", TokenPrompt(PROMPTS["second"]), GREEDY, timeout=1)
    engine.step()
    clock.now += 1
    (output,) = engine.step()
    assert output.outputs[0].finish_reason == "timeout"
    assert output.outputs[0].token_ids == []
    assert output.num_cached_tokens is None
    assert run_to_end(engine)["first"].outputs[0].token_ids == text_of("first")


def test_the_last_request_can_time_out_and_all_samples_do_together():
    engine, clock = timed()
    engine.add_request("several", TokenPrompt([7] * 9), SEVERAL, timeout=1)
    for _ in range(3):
        assert engine.step() == []
    clock.now += 5
    (output,) = engine.step()
    assert [completion.finish_reason for completion in output.outputs] == ["timeout"] * 3
    assert not engine.has_unfinished_requests()
    assert_nothing_is_held(engine)


def test_a_timeout_belongs_to_the_request_and_not_to_its_name():
    engine, clock = timed()
    engine.add_request("a", TokenPrompt(PROMPTS["first"]), GREEDY, timeout=3)
    engine.step()
    engine.abort_request("a")
    engine.add_request("a", TokenPrompt(PROMPTS["second"]), GREEDY)
    clock.now += 100
    assert run_to_end(engine)["a"].outputs[0].token_ids == text_of("second")


@pytest.mark.parametrize("timeout", [-1, -0.5, 0, math.nan, math.inf, "3", True, 1j, [1]])
def test_a_timeout_that_is_no_time_is_refused_and_nothing_is_queued(timeout):
    engine, _ = made_up_engine()
    with pytest.raises(RequestError, match="timeout must be a finite number of seconds above 0"):
        engine.add_request("a", TokenPrompt([1]), GREEDY, timeout=timeout)
    assert not engine.has_unfinished_requests()


def test_the_prompts_of_a_call_have_one_timeout_or_each_its_own(monkeypatch):
    engine, clock = timed(tokenizer=LetterTokenizer())
    llm = LLM.from_engine(engine)
    forward = engine._model.forward

    def slow(batch):
        clock.now += 1
        return forward(batch)

    monkeypatch.setattr(engine._model, "forward", slow)
    lengths = lambda outputs: [len(output.outputs[0].token_ids) for output in outputs]  # noqa: E731
    assert lengths(llm.generate(["hello", "loose"], STREAMED, timeout=3)) == [3, 3]
    assert lengths(llm.generate(["hello", "loose"], STREAMED, timeout=[None, 2])) == [6, 2]
    assert lengths(llm.stream(["hello"], GREEDY, timeout=4)) == [4]
    for timeout, said in (([1], "2 prompts need one timeout or as many, found 1"), ([1, -1], "found -1")):
        with pytest.raises(RequestError, match=said):
            llm.generate(["hello", "loose"], STREAMED, timeout=timeout)
    assert_nothing_is_held(engine)
