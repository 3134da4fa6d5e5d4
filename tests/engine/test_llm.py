"""``LLM`` over a model that needs no files: the calls of an offline script, and how they end early."""

from __future__ import annotations

import signal

import pytest

from engine.made_up_model import assert_nothing_is_held, expected_output, made_up_engine
from engine.made_up_tokenizers import LetterTokenizer
from looseleaf import LLM, SamplingParams
from looseleaf.engine.sampling_params import RequestOutputKind
from looseleaf.errors import InvalidConfigError, RequestError, UnsupportedError

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def llm():
    front = LLM.from_engine(made_up_engine(tokenizer=LetterTokenizer(), max_num_seqs=3)[0])
    yield front
    assert_nothing_is_held(front.llm_engine)


def expected_text(prompt_ids: list[int], params: SamplingParams = GREEDY) -> str:
    tokens, _, _ = expected_output(prompt_ids, params, max_model_len=64)
    return LetterTokenizer().decode(tokens, skip_special_tokens=True)


def test_outputs_come_in_the_order_of_the_prompts(llm):
    prompts = [
        "hello",
        {"prompt": "loose"},
        [1, 2, 3],
        {"prompt_token_ids": [4, 5], "cache_salt": "s"},
        "leaf",
    ]
    lengths = [6, 2, 9, 1, 4]
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True) for length in lengths]
    outputs = llm.generate(prompts, params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths
    assert [output.prompt for output in outputs] == ["hello", "loose", None, None, "leaf"]
    assert outputs[0].prompt_token_ids == LetterTokenizer().encode("hello")
    for output, param in zip(outputs, params, strict=True):
        assert output.outputs[0].text == expected_text(output.prompt_token_ids, param)
        assert output.outputs[0].finish_reason == "length"
        assert output.finished


def test_one_prompt_alone_gives_a_list_of_one_and_no_prompts_none(llm):
    (output,) = llm.generate("hello", GREEDY)
    assert output.outputs[0].text == expected_text(output.prompt_token_ids)
    (output,) = llm.generate([1, 2, 3], GREEDY)
    assert output.prompt_token_ids == [1, 2, 3]
    assert llm.generate([], GREEDY) == []


def test_without_parameters_vllms_defaults_hold(llm):
    (output,) = llm.generate("hello")
    assert len(output.outputs[0].token_ids) <= 16


def test_a_bad_prompt_among_good_ones_is_named_and_nothing_is_computed(llm):
    with pytest.raises(RequestError, match=r"prompt 1 of 3 \(from 0\): .* found 61"):
        llm.generate(["fine", [61], "fine"], GREEDY)
    assert llm.llm_engine.stats.num_steps == 0
    with pytest.raises(RequestError, match="2 prompts need one SamplingParams or as many, found 3"):
        llm.generate(["a", "b"], [GREEDY] * 3)
    with pytest.raises(RequestError, match=r"sampling_params must be SamplingParams, .* found 'greedy'"):
        llm.generate(["a"], ["greedy"])


@pytest.mark.parametrize("prompts", [5, None, b"hello", 1.5])
def test_what_is_no_prompt_is_refused_with_the_forms_that_are(llm, prompts):
    with pytest.raises(RequestError, match=r"prompts must be text, .*, or a list of such, found ") as caught:
        llm.generate(prompts, GREEDY)
    assert str(caught.value).endswith(repr(prompts))
    with pytest.raises(RequestError, match=r"prompt 1 of 2 \(from 0\): a prompt must be text, token ids or"):
        llm.generate(["fine", prompts], GREEDY)


@pytest.mark.parametrize("params", [{"max_tokens": 5}, [{"max_tokens": 5}]])
def test_parameters_in_a_dictionary_are_refused_with_what_to_write(llm, params):
    with pytest.raises(RequestError, match=r"found \{'max_tokens': 5\}; write SamplingParams\("):
        llm.generate("fine", params)
    with pytest.raises(RequestError, match="sampling_params must be SamplingParams"):
        llm.validate("fine", params)


@pytest.mark.parametrize("params", [5, "greedy"])
def test_parameters_of_another_kind_are_refused(llm, params):
    with pytest.raises(RequestError, match=f"sampling_params must be SamplingParams, .* found {params!r}"):
        llm.generate("fine", params)


@pytest.mark.parametrize("messages", ["hi", None, {"role": "user", "content": "hi"}])
def test_what_is_no_conversation_is_refused_with_what_one_is(llm, messages):
    with pytest.raises(RequestError, match=r"messages must be a conversation, .* found ") as caught:
        llm.chat(messages, GREEDY)
    assert str(caught.value).endswith(repr(messages))


def test_a_bad_message_among_conversations_is_named(llm):
    good, bad = [{"role": "user", "content": "hi"}], [{"role": "user", "content": None}]
    with pytest.raises(RequestError, match=r"conversation 1 of 2 \(from 0\): messages\[0\] has no content"):
        llm.chat([good, bad], GREEDY)


def test_no_conversations_have_no_answers(llm):
    assert llm.chat([], GREEDY) == []


def test_validate_says_what_generate_would_say(llm):
    llm.validate("fine", GREEDY)
    with pytest.raises(RequestError, match="found 61"):
        llm.validate([61])
    with pytest.raises(RequestError, match="needs one of the keys"):
        llm.validate({})


def test_a_chat_is_the_rendered_prompt(llm):
    conversation = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    (chat,) = llm.chat(conversation, GREEDY)
    assert chat.prompt == "^Sbe^Uhi^A"
    assert chat.prompt_token_ids == LetterTokenizer().encode("^Sbe^Uhi^A", add_special_tokens=False)
    both = llm.chat([conversation, conversation[1:]], GREEDY)
    assert [output.prompt for output in both] == ["^Sbe^Uhi^A", "^Uhi^A"]
    (salted,) = llm.chat(conversation, GREEDY, cache_salt="mine")
    assert (both[0].num_cached_tokens, salted.num_cached_tokens) == (8, 0)
    assert salted.outputs[0].text == chat.outputs[0].text


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_a_stream_says_which_prompt_it_means(llm, kind):
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, output_kind=kind)
    texts: dict[int, list[str]] = {0: [], 1: []}
    for output in llm.stream(["hello", "loose"], params):
        texts[output.prompt_index].append(output.outputs[0].text)
    for index, prompt in enumerate(["hello", "loose"]):
        text = expected_text(LetterTokenizer().encode(prompt))
        if kind is RequestOutputKind.DELTA:
            assert "".join(texts[index]) == text
        else:
            assert texts[index][-1] == text
        assert len(texts[index]) == (1 if kind is RequestOutputKind.FINAL_ONLY else 6)


def test_a_stream_that_is_left_early_gives_its_blocks_back(llm):
    stream = llm.stream(["hello", "loose"], GREEDY)
    next(stream)
    assert llm.llm_engine.pool.num_free < llm.llm_engine.pool.num_usable
    stream.close()
    assert_nothing_is_held(llm.llm_engine)


def test_a_call_during_a_stream_takes_nothing_from_it(llm):
    stream = llm.stream("hello", GREEDY)
    outputs = [next(stream)]
    (other,) = llm.generate("loose", GREEDY)
    assert other.outputs[0].text == expected_text(LetterTokenizer().encode("loose"))
    outputs += stream
    assert len(outputs) == 6
    assert outputs[-1].outputs[0].text == expected_text(LetterTokenizer().encode("hello"))


def interrupt_in_pass(llm: LLM, number: int) -> None:
    """Press Ctrl-C while the model computes."""
    model = llm.llm_engine._model
    forward = model.forward

    def interrupted(batch):
        logits = forward(batch)
        if model.num_passes == number:
            signal.raise_signal(signal.SIGINT)
        return logits

    model.forward = interrupted


def test_ctrl_c_ends_generate_and_leaves_the_pool_empty(llm):
    interrupt_in_pass(llm, 2)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["hello", "loose", "leaf", "waits"], GREEDY)
    assert_nothing_is_held(llm.llm_engine)
    (output,) = llm.generate("hello", GREEDY)
    assert output.outputs[0].finish_reason == "length"


def test_ctrl_c_in_a_stream_hands_out_what_was_written_first(llm):
    interrupt_in_pass(llm, 3)
    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
    )
    outputs = []
    with pytest.raises(KeyboardInterrupt):
        outputs.extend(llm.stream(["hello", "loose"], params))
    assert [output.outputs[0].finish_reason for output in outputs] == ["abort", "abort"]
    text = expected_text(LetterTokenizer().encode("hello"))
    assert outputs[0].outputs[0].text == text[:3]


def test_an_error_of_the_engine_gives_the_blocks_back(llm, monkeypatch):
    def broken():
        raise RuntimeError("planted")

    monkeypatch.setattr(llm.llm_engine._scheduler, "schedule", broken)
    with pytest.raises(RuntimeError, match="planted"):
        llm.generate(["hello", "loose"], GREEDY)
    assert_nothing_is_held(llm.llm_engine)


def test_a_failed_step_is_an_output_with_its_reason(llm):
    llm.llm_engine._model.errors = {2: MemoryError("no more")}
    (output,) = llm.generate("hello", GREEDY)
    assert output.outputs[0].finish_reason == "error"
    assert output.error == "the step failed: MemoryError: no more"


def test_arguments_of_the_constructor_are_checked_before_anything_is_loaded():
    with pytest.raises(UnsupportedError, match="tensor_parallel_size=2 is not supported"):
        LLM("nowhere", tensor_parallel_size=2)
    with pytest.raises(InvalidConfigError, match=r"max_num_batched_tokens .* found 2"):
        LLM("nowhere", max_num_seqs=4, max_num_batched_tokens=2)
    with pytest.raises(InvalidConfigError, match=r"page_size \(8\) and block_size \(16\) mean the same"):
        LLM("nowhere", page_size=8, block_size=16)
    with pytest.raises(TypeError, match="did you mean 'block_size'"):
        LLM("nowhere", blocksize=16)
    with pytest.raises(TypeError, match="did you mean 'prefix_caching_hash_algo'"):
        LLM("nowhere", hash_algo="md5")


def test_a_progress_bar_is_drawn_on_a_terminal_only(llm, monkeypatch, capsys):
    llm.generate("hello", GREEDY)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    llm.generate("hello", GREEDY)
    assert "Processed prompts: 100%" in capsys.readouterr().err
    llm.generate("hello", GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""
