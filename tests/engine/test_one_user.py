"""An ``LLM`` has one user at a time: who comes second is told so, and the first notices nothing."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from engine.made_up_model import assert_nothing_is_held, expected_output, made_up_engine
from engine.made_up_tokenizers import LetterTokenizer
from looseleaf import LLM, SamplingParams
from looseleaf.errors import ConcurrentUseError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def llm():
    front = LLM.from_engine(made_up_engine(tokenizer=LetterTokenizer(), max_num_seqs=3)[0])
    yield front
    assert_nothing_is_held(front.llm_engine)


def elsewhere(work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises in another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def during_pass(llm: LLM, number: int, work: Callable[[], object]) -> list[BaseException]:
    """Have the model do ``work`` in the middle of a step; the list gets what it raises."""
    model = llm.llm_engine._model
    forward = model.forward
    raised: list[BaseException] = []

    def with_work(batch):
        logits = forward(batch)
        if model.num_passes == number:
            try:
                work()
            except ConcurrentUseError as error:
                raised.append(error)
        return logits

    model.forward = with_work
    return raised


def assert_right(output, prompt: str = "hello") -> None:
    tokens, reason, _ = expected_output(LetterTokenizer().encode(prompt), GREEDY, max_model_len=64)
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == (tokens, reason)


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate("loose", GREEDY),
        lambda llm: llm.chat(HELLO, GREEDY),
        lambda llm: next(llm.stream("loose", GREEDY)),
    ],
    ids=["generate", "chat", "stream"],
)
def test_a_second_thread_is_refused_and_the_first_goes_on(llm, call):
    raised = during_pass(llm, 2, lambda: elsewhere(lambda: call(llm)))
    (output,) = llm.generate("hello", GREEDY)
    (error,) = raised
    assert "in use by another thread" in str(error)
    assert_right(output)
    assert llm.llm_engine.stats.num_steps == 6
    elsewhere(lambda: call(llm))  # the first has gone


def test_a_paused_stream_keeps_other_threads_out_until_it_ends(llm):
    stream = llm.stream("hello", GREEDY)
    next(stream)
    with pytest.raises(ConcurrentUseError, match="another thread"):
        elsewhere(lambda: llm.generate("loose", GREEDY))
    assert_right(list(stream)[-1])
    assert_right(elsewhere(lambda: llm.generate("loose", GREEDY))[0], "loose")


def test_a_stream_that_is_closed_lets_other_threads_in(llm):
    stream = llm.stream("hello", GREEDY)
    next(stream)
    stream.close()
    assert_right(elsewhere(lambda: llm.generate("loose", GREEDY))[0], "loose")


@pytest.mark.parametrize(
    "call",
    [lambda llm: llm.generate("loose", GREEDY), lambda llm: llm.chat(HELLO, GREEDY)],
    ids=["generate", "chat"],
)
def test_a_call_from_within_a_step_is_refused_and_the_step_goes_on(llm, call):
    raised = during_pass(llm, 2, lambda: call(llm))
    (output,) = llm.generate("hello", GREEDY)
    (error,) = raised
    assert "from within one of its own steps" in str(error)
    assert_right(output)
    assert llm.llm_engine.stats.num_steps == 6


def test_a_stream_that_is_alone_may_go_on_in_another_thread(llm):
    stream = llm.stream("hello", GREEDY)
    next(stream)
    elsewhere(lambda: next(stream))
    with pytest.raises(ConcurrentUseError, match="another thread"):
        elsewhere(lambda: elsewhere(lambda: llm.generate("loose", GREEDY)) if next(stream) else None)
    assert_right(list(stream)[-1])


def test_a_stream_beside_another_call_stays_in_its_thread(llm):
    kept, moved = llm.stream("hello", GREEDY), llm.stream("loose", GREEDY)
    next(kept)
    next(moved)
    with pytest.raises(ConcurrentUseError, match="another thread"):
        elsewhere(lambda: next(moved))
    # It ended in the other thread, which must not touch what the first may be using.
    assert llm.llm_engine.get_num_unfinished_requests() == 2
    assert_right(list(kept)[-1])


def test_a_stream_that_goes_in_the_middle_of_a_step_waits_for_its_end(llm):
    streams = [llm.stream("loose", GREEDY)]
    next(streams[0])
    unfinished = []

    def drop() -> None:
        streams.clear()
        gc.collect()
        unfinished.append(llm.llm_engine.get_num_unfinished_requests())

    during_pass(llm, 3, drop)
    (output,) = llm.generate("hello", GREEDY)
    assert_right(output)
    assert unfinished == [2]
    assert llm.llm_engine.stats.num_finished == {"abort": 1, "length": 1}


def test_a_stream_that_another_thread_closes_is_put_aside_for_the_first(llm):
    stream = llm.stream("loose", GREEDY)
    next(stream)
    unfinished = []

    def close() -> None:
        elsewhere(stream.close)
        unfinished.append(llm.llm_engine.get_num_unfinished_requests())

    during_pass(llm, 3, close)
    (output,) = llm.generate("hello", GREEDY)
    assert_right(output)
    assert unfinished == [2]


def test_of_many_threads_at_once_each_is_served_whole_or_refused(llm):
    num_threads, num_calls = 4, 50
    together = Barrier(num_threads)

    def work(prompt: str) -> int:
        num_served = 0
        together.wait()
        for _ in range(num_calls):
            with contextlib.suppress(ConcurrentUseError):
                (output,) = llm.generate(prompt, GREEDY)
                assert_right(output, prompt)
                num_served += 1
        return num_served

    with ThreadPoolExecutor(num_threads) as threads:
        served = list(threads.map(work, ["hello", "loose", "leaf", "waits"]))
    assert 0 < sum(served) == llm.llm_engine.stats.num_finished["length"]
