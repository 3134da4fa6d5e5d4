"""Text token by token, against the text of all tokens at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.made_up_tokenizers import SPECIAL_TOKEN_ID, ByteTokenizer
from looseleaf.engine.detokenizer import IncrementalDetokenizer, decode_output

TOKENIZER = ByteTokenizer()


def feed(detokenizer: IncrementalDetokenizer, ids: list[int]) -> str | None:
    for token_id in ids:
        if (stop := detokenizer.append(token_id)) is not None:
            return stop
    return None


@given(prompt=st.text(max_size=8), output=st.text(max_size=20), cut=st.integers(0, 3))
def test_text_in_pieces_is_the_text_at_once(prompt, output, cut):
    prompt_ids = TOKENIZER.encode(prompt)
    ids = TOKENIZER.encode(output)
    ids = ids[: len(ids) - cut]
    detokenizer = IncrementalDetokenizer(TOKENIZER, prompt_ids)
    pieces = []
    for token_id in ids:
        detokenizer.append(token_id)
        pieces.append(detokenizer.new())
    pieces.append(detokenizer.new(finished=True))
    whole = decode_output(TOKENIZER, prompt_ids, ids, skip_special_tokens=True)
    assert "".join(pieces) == detokenizer.text == whole
    assert output.encode().startswith(whole.rstrip("\ufffd").encode())


def test_no_piece_ends_inside_a_character():
    detokenizer = IncrementalDetokenizer(TOKENIZER, TOKENIZER.encode("x"))
    seen = []
    for token_id in TOKENIZER.encode("a€😀b"):
        detokenizer.append(token_id)
        seen.append(detokenizer.new())
    assert seen == ["a", "", "", "€", "", "", "", "😀", "b"]


def test_a_character_that_never_ends_is_left_out():
    ids = TOKENIZER.encode("ok €")[:-1]
    assert decode_output(TOKENIZER, [], ids, skip_special_tokens=True) == "ok "


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens_ends_the_text_and_is_cut_unless_included(include):
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], stop=["END", "zz"], include_stop=include)
    assert feed(detokenizer, TOKENIZER.encode("some END and more")) == "END"
    assert detokenizer.text == ("some END" if include else "some ")


def test_nothing_is_shown_that_a_stop_string_could_still_take_back():
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], stop=["END"])
    shown = ""
    for token_id in TOKENIZER.encode("an ENd, an EN"):
        assert detokenizer.append(token_id) is None
        shown += detokenizer.new()
        assert shown == detokenizer.text[:-2]
    assert shown + detokenizer.new(finished=True) == "an ENd, an EN"


def test_of_several_stop_strings_the_first_listed_wins_as_in_vllm():
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], stop=["cd", "bcd"])
    assert feed(detokenizer, TOKENIZER.encode("abcd")) == "cd"
    assert detokenizer.text == "ab"


def test_stop_strings_are_not_looked_for_before_min_tokens():
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], stop=["aa"], min_tokens=3)
    assert feed(detokenizer, TOKENIZER.encode("aab")) is None
    assert feed(detokenizer, TOKENIZER.encode("caa")) == "aa"
    assert detokenizer.text == "aabc"


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_the_text_of_a_stop_token_is_left_out_unless_included(include, text):
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], include_stop=include)
    *ids, last = TOKENIZER.encode("abc")
    feed(detokenizer, ids)
    assert detokenizer.append(last, is_stop_token=True) is None
    assert detokenizer.text == text


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "a<s>b")])
def test_special_tokens_are_skipped_on_request(skip, text):
    ids = [ord("a"), SPECIAL_TOKEN_ID, ord("b")]
    detokenizer = IncrementalDetokenizer(TOKENIZER, [], skip_special_tokens=skip)
    feed(detokenizer, ids)
    assert detokenizer.text == text == decode_output(TOKENIZER, [], ids, skip_special_tokens=skip)


def test_a_long_run_of_skipped_tokens_does_not_slow_the_next_ones_down():
    decoded = []

    class Counting(ByteTokenizer):
        def decode(self, token_ids, **options):
            decoded.append(len(token_ids))
            return super().decode(token_ids, **options)

    detokenizer = IncrementalDetokenizer(Counting(), [])
    feed(detokenizer, [SPECIAL_TOKEN_ID] * 500 + TOKENIZER.encode("text"))
    assert detokenizer.text == "text"
    assert max(decoded) < 12
