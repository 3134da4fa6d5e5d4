"""Several outputs of one prompt: what separate requests would write, on one copy of the prompt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from engine.made_up_model import VOCAB_SIZE, assert_nothing_is_held, made_up_engine, run_to_end
from engine.made_up_tokenizers import LetterTokenizer
from looseleaf import LLM, SamplingParams
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import RequestOutputKind
from looseleaf.errors import RequestError

MAX_MODEL_LEN = 40


def separately(prompt: list[int], params: SamplingParams) -> list[tuple[list[int], str | None]]:
    """What each sample writes as a request of its own, in an engine with room for everything."""
    engine, _ = made_up_engine(max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False)
    final = replace(params, n=1, output_kind=RequestOutputKind.FINAL_ONLY)
    for index in range(params.n):
        engine.add_request(str(index), TokenPrompt(prompt), replace(final, seed=params.seed + index))
    outputs = run_to_end(engine)
    completions = [outputs[str(index)].outputs[0] for index in range(params.n)]
    return [(completion.token_ids, completion.finish_reason) for completion in completions]


@st.composite
def requests(draw: st.DrawFn) -> tuple[int, list[int], SamplingParams, int | None]:
    max_tokens = draw(st.integers(1, 15))
    params = SamplingParams(
        n=draw(st.integers(1, 4)),
        temperature=1.0,
        seed=draw(st.integers(0, 50)),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        ignore_eos=draw(st.booleans()),
        stop_token_ids=draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2)),
        output_kind=draw(st.sampled_from(list(RequestOutputKind))),
    )
    prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=20))
    abort_at = draw(st.one_of(st.none(), st.none(), st.integers(0, 12)))
    return draw(st.integers(0, 5)), prompt, params, abort_at


@given(
    arrivals=st.lists(requests(), min_size=1, max_size=5),
    block_size=st.sampled_from([1, 2, 4, 8]),
    spare_blocks=st.sampled_from([0, 2, 100]),
    max_num_seqs=st.integers(4, 8),
    more_tokens=st.sampled_from([0, 3, 30]),
    caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority", "cost"]),
    failing=st.one_of(st.none(), st.none(), st.integers(1, 15)),
)
def test_samples_write_what_separate_requests_with_their_seeds_write(
    arrivals, block_size, spare_blocks, max_num_seqs, more_tokens, caching, policy, failing
):
    engine, model = made_up_engine(
        num_blocks=1 + -(-MAX_MODEL_LEN // block_size) + spare_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + more_tokens,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=caching,
        scheduling_policy=policy,
    )
    if failing:
        model.errors = {failing: RuntimeError("planted")}
    written: dict[str, dict[int, list[int]]] = {}
    ended: dict[str, dict[int, str]] = {}
    finished = set()

    def take(outputs):
        for output in outputs:
            assert output.request_id not in finished, "nothing comes after the end"
            delta = arrivals[int(output.request_id)][2].output_kind is RequestOutputKind.DELTA
            for completion in output.outputs:
                texts = written.setdefault(output.request_id, {})
                before = texts.get(completion.index, []) if delta else []
                texts[completion.index] = before + completion.token_ids
                if completion.finished():
                    ended.setdefault(output.request_id, {})[completion.index] = completion.finish_reason
            if output.finished:
                finished.add(output.request_id)

    step = 0
    while step < 6 or engine.has_unfinished_requests():
        for number, (at, prompt, params, abort_at) in enumerate(arrivals):
            if at == step:
                engine.add_request(str(number), TokenPrompt(prompt), params)
            if abort_at == step:
                take(engine.abort_request([str(number)]))
        take(engine.step())
        engine.manager.check_invariants()
        step += 1
        assert step < 2000, "the workload does not come to an end"
    event(f"preemptions: {min(engine.stats.num_preemptions, 2)}")
    event(f"copies: {engine.manager.stats()['block_copies'] > 0}")
    assert_nothing_is_held(engine)
    for number, (at, prompt, params, abort_at) in enumerate(arrivals):
        name = str(number)
        assert name in finished
        assert sorted(ended[name]) == list(range(params.n))
        for index, (tokens, reason) in enumerate(separately(prompt, params)):
            if ended[name][index] == "abort":
                assert abort_at is not None
                assert abort_at >= at
            elif ended[name][index] == "error":
                assert failing
            else:
                assert (written[name][index], ended[name][index]) == (tokens, reason)
            assert written[name][index] == tokens[: len(written[name][index])]


def sampled(n: int, **options: object) -> SamplingParams:
    return SamplingParams(**{"n": n, "seed": 3, "max_tokens": 6, "ignore_eos": True} | options)


@pytest.mark.parametrize(("length", "copies"), [(10, 3), (9, 0), (12, 3), (1, 0)])
def test_a_prompt_is_computed_and_stored_once_and_its_last_block_copied_for_all_but_one(length, copies):
    engine, model = made_up_engine(block_size=4)
    engine.add_request("a", TokenPrompt([7] * length), sampled(4))
    for _ in range(2):
        engine.step()
    # The last token is computed by each; before it the four share all that is computed.
    assert sum(sum(rows) for rows in model.rows) == length - 1 + 4
    assert engine.manager.stats()["block_copies"] == copies
    shared = (length - 1) // 4
    assert engine.pool.num_usable - engine.pool.num_free == shared + 4
    run_to_end(engine)


def test_the_outputs_of_a_prompt_come_together_in_order():
    engine, _ = made_up_engine(max_model_len=MAX_MODEL_LEN)
    llm = LLM.from_engine(engine)
    prompts = [[1, 2, 3], [4] * 9]
    outputs = llm.generate(prompts, sampled(3))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert [completion.index for completion in output.outputs] == [0, 1, 2]
        expected = [tokens for tokens, _ in separately(prompt, sampled(3))]
        assert [completion.token_ids for completion in output.outputs] == expected
        assert output.finished
    assert len({tuple(completion.token_ids) for completion in outputs[0].outputs}) == 3


def test_a_stream_says_which_sample_grew_and_ends_with_the_last():
    engine, _ = made_up_engine(tokenizer=LetterTokenizer())
    llm = LLM.from_engine(engine)
    outputs = list(llm.stream([[1, 2, 3]], sampled(2, output_kind=RequestOutputKind.DELTA)))
    texts = {0: "", 1: ""}
    for output in outputs:
        (completion,) = output.outputs
        texts[completion.index] += completion.text
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    expected = separately([1, 2, 3], sampled(2))
    tokenizer = LetterTokenizer()
    assert texts == {
        i: tokenizer.decode(tokens, skip_special_tokens=True) for i, (tokens, _) in enumerate(expected)
    }


def test_samples_without_a_seed_differ_from_each_other_and_follow_the_engines():
    def texts(seed):
        engine, _ = made_up_engine(seed=seed)
        (output,) = LLM.from_engine(engine).generate([[1, 2, 3]], sampled(3, seed=None))
        return [tuple(completion.token_ids) for completion in output.outputs]

    assert len(set(texts(0))) == 3
    assert texts(0) == texts(0)
    assert texts(0) != texts(1)


def test_a_request_waits_for_rows_for_all_its_samples():
    engine, _ = made_up_engine(max_num_seqs=4, max_num_batched_tokens=16)
    engine.add_request("two", TokenPrompt([1] * 5), sampled(2))
    engine.add_request("three", TokenPrompt([2] * 5), sampled(3))
    engine.add_request("one", TokenPrompt([3] * 5), sampled(1))
    for _ in range(3):
        engine.step()
        assert engine.manager.num_running <= 4
    assert sorted(run_to_end(engine)) == ["one", "three", "two"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n must be an integer of at least 1, found 0"),
        ({"n": 1.5}, "n must be an integer"),
        ({"n": 2, "temperature": 0}, "n must be 1 where the likeliest token is taken"),
    ],
)
def test_a_number_of_samples_that_makes_no_sense_is_refused(options, said):
    with pytest.raises(RequestError, match=said):
        SamplingParams(**options)


def test_more_samples_than_rows_are_refused_with_both_numbers():
    engine, _ = made_up_engine(max_num_seqs=4, max_num_batched_tokens=16)
    with pytest.raises(
        RequestError, match=r"n must be at most max_num_seqs \(4\), the rows of a step, found 5"
    ):
        engine.add_request("a", TokenPrompt([1]), sampled(5))
    assert not engine.has_unfinished_requests()
    assert_nothing_is_held(engine)
