"""The ways to write a prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.made_up_tokenizers import ByteTokenizer, LetterTokenizer
from looseleaf.engine.prompts import TokenPrompt, listed, rendered, tokenized
from looseleaf.errors import RequestError

TOKENIZER = ByteTokenizer()


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ("text", 1),
        ({"prompt": "text"}, 1),
        ([1, 2, 3], 1),
        (["a", "b"], 2),
        (["a", {"prompt_token_ids": [1]}, [1, 2]], 3),
        (("a", "b"), 2),
        (np.array([1, 2, 3]), 1),
        ([], 0),
    ],
)
def test_one_prompt_alone_becomes_a_list_of_one(prompts, count):
    assert len(listed(prompts)) == count


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", TokenPrompt([97, 98], "ab")),
        ({"prompt": "ab", "cache_salt": "s"}, TokenPrompt([97, 98], "ab", "s")),
        ({"prompt_token_ids": [5, 6]}, TokenPrompt([5, 6])),
        ({"prompt_token_ids": [5], "prompt": "shown", "cache_salt": "s"}, TokenPrompt([5], "shown", "s")),
        ([7, 8], TokenPrompt([7, 8])),
        ({"prompt_token_ids": np.array([5, 6])}, TokenPrompt([5, 6])),
        ({"prompt_token_ids": torch.tensor([5, 6])}, TokenPrompt([5, 6])),
    ],
)
def test_every_form_becomes_token_ids(prompt, expected):
    assert tokenized(prompt, TOKENIZER) == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"text": "a"}, "found 'text'"),
        ({}, "needs one of the keys"),
        ({"prompt": 5}, "prompt must be a string, found 5"),
        ({"prompt_token_ids": ["a"]}, "prompt_token_ids must be a list of integers"),
        ({"prompt_token_ids": 5}, "prompt_token_ids must be a list of integers"),
        ({"prompt_token_ids": [1.0]}, "prompt_token_ids must be a list of integers"),
        ({"prompt_token_ids": [True]}, r"prompt_token_ids must be a list of integers, found \[True\]"),
        ({"prompt_token_ids": b"ab"}, "prompt_token_ids must be a list of integers, found b'ab'"),
        ({"prompt_token_ids": np.array([True])}, "prompt_token_ids must be a list of integers, found array"),
        ({"prompt_token_ids": torch.tensor([True])}, "prompt_token_ids must be a list of integers"),
        ({"prompt_token_ids": {5, 6}}, r"prompt_token_ids must be a list of integers, found \{5, 6\}"),
        ({"prompt_token_ids": {5: 6}}, r"prompt_token_ids must be a list of integers, found \{5: 6\}"),
        ({5, 6}, r"a prompt must be text, token ids or a dictionary, found \{5, 6\}"),
        ([3, False], r"prompt_token_ids must be a list of integers, found \[3, False\]"),
        (None, "a prompt must be text, token ids or a dictionary, found None"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt must be a non-empty string"),
        ({"prompt": "a", "cache_salt": 1}, "cache_salt must be a non-empty string"),
        ({"prompt": "a", "cache_salt": "\udcff"}, "cache_salt has half of a surrogate pair at character 0"),
        ("a\ud800", r"prompt has half of a surrogate pair at character 1 \(from 0\), '\\ud800'"),
    ],
)
def test_other_forms_are_refused(prompt, message):
    with pytest.raises(RequestError, match=message):
        tokenized(prompt, TOKENIZER)


def test_text_needs_a_tokenizer():
    with pytest.raises(RequestError, match="no tokenizer"):
        tokenized("a", None)
    assert tokenized([1], None).token_ids == [1]


def test_a_conversation_goes_through_the_template():
    messages = [{"role": "user", "content": "hi"}]
    prompt = rendered(messages, LetterTokenizer(), add_generation_prompt=True)
    assert prompt["prompt"] == "^Uhi^A"
    # The template wrote the special tokens; none is added.
    assert prompt["prompt_token_ids"] == LetterTokenizer().encode("^Uhi^A", add_special_tokens=False)


def test_a_conversation_that_the_template_refuses_is_an_error_of_the_request():
    with pytest.raises(RequestError, match="roles must alternate"):
        rendered([{"role": "nobody", "content": ""}], LetterTokenizer())
    with pytest.raises(RequestError, match="found 'hi'"):
        rendered(["hi"], LetterTokenizer())


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], r"a conversation must be a list of one message or more, found \[\]"),
        ("hi", "a conversation must be a list of one message or more, found 'hi'"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], r"found \{'content': 'b'\} as messages\[1\]"),
        ([{"role": "user", "content": None}], r"messages\[0\] has no content; give text"),
        ([{"role": "user"}], r"messages\[0\] has no content; give text"),
        ([{"role": "user", "content": 5}], r"the content of messages\[0\] must be text, found 5"),
        (
            [{"role": "system", "content": "be"}, {"role": "user", "content": "h\ud800"}],
            r"the content of messages\[1\] has half of a surrogate pair at character 1 \(from 0\)",
        ),
        (
            [{"role": "\ud800", "content": "a"}],
            "the text that the chat template made has half of a surrogate pair",
        ),
    ],
)
def test_a_message_that_is_none_is_refused_by_its_place(messages, sentence):
    with pytest.raises(RequestError, match=sentence):
        rendered(messages, LetterTokenizer())


def test_a_message_that_calls_a_tool_needs_no_content():
    message = {"role": "assistant", "content": None, "tool_calls": []}
    assert rendered([message], LetterTokenizer())["prompt"] == "^ANone^A"


def test_a_model_without_a_chat_template_says_so():
    with pytest.raises(RequestError, match="no tokenizer"):
        rendered([], None)
    tokenizer = LetterTokenizer()
    tokenizer.chat_template = None
    with pytest.raises(RequestError, match="no chat template"):
        rendered([{"role": "user", "content": "hi"}], tokenizer)
