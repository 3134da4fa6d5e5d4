"""From tokens to text: at once when a request ends, or token by token where somebody watches.

A token's text depends on the tokens before it: a character can be spread over several tokens, and some
decoders drop a leading space. So text is decoded behind the last few tokens of the prompt, and a piece of it
counts only when it does not end in the middle of a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

# Tokens of the prompt to decode behind; more than any decoder looks back.
_CONTEXT_TOKENS = 5
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer; those of transformers have it."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text."""

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """The text of tokens."""


def decode_output(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], output_ids: Sequence[int], *, skip_special_tokens: bool
) -> str:
    """The text of a whole output.

    Args:
        tokenizer: the model's.
        prompt_ids: the prompt, or the end of it.
        output_ids: the tokens to make text of.
        skip_special_tokens: leave special tokens out.

    Returns:
        the text; a character that the output breaks off in the middle of is left out.
    """
    context = list(prompt_ids[-_CONTEXT_TOKENS:])
    before = _decode(tokenizer, context, skip_special_tokens)
    text = _decode(tokenizer, context + list(output_ids), skip_special_tokens)
    return text[len(before) :].rstrip(_INCOMPLETE)


class IncrementalDetokenizer:
    """The growing text of one request, and the search for its stop strings.

    Args:
        tokenizer: the model's.
        prompt_ids: the prompt.
        stop: strings that end the text, in the order in which they are looked for.
        min_tokens: tokens of the output in which no stop string may end.
        skip_special_tokens: leave special tokens out.
        include_stop: keep the stop string, or the text of the stop token.

    Attributes:
        text: all text so far; cut at the stop string once there was one.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        include_stop: bool = False,
    ) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._stop = stop
        self._min_tokens = min_tokens
        self._skip_special_tokens = skip_special_tokens
        self._include_stop = include_stop
        # New tokens are decoded behind `_ids[:_settled]`, whose text is complete. Of the text of the others
        # the first `_taken` characters stand in `text`; what follows is a character of which bytes are
        # missing.
        self._ids = list(prompt_ids[-_CONTEXT_TOKENS:])
        self._settled = len(self._ids)
        self._taken = 0
        self._num_tokens = 0
        self._num_shown = 0
        self._held_back = 0 if include_stop or not stop else max(map(len, stop)) - 1

    def append(self, token_id: int, *, is_stop_token: bool = False) -> str | None:
        """Add one token.

        Args:
            token_id: the token.
            is_stop_token: it ended the output, so that its own text is left out unless stops are included.

        Returns:
            the stop string that the text now contains, or None.
        """
        self._num_tokens += 1
        if is_stop_token and not self._include_stop:
            return None
        new_text = self._extend(token_id)
        self.text += new_text
        if new_text and self._num_tokens > self._min_tokens:
            return self._find_stop(len(new_text))
        return None

    def shown(self) -> str:
        """The text that no stop string can take back any more."""
        return self.text[: -self._held_back] if self._held_back else self.text

    def new(self, *, finished: bool = False) -> str:
        """What there is to show since the last call; all that is left once the text is finished."""
        shown = self.text if finished else self.shown()
        new_text = shown[self._num_shown :]
        self._num_shown = max(self._num_shown, len(shown))
        return new_text

    def _extend(self, token_id: int) -> str:
        """The text that became certain with this token."""
        self._ids.append(token_id)
        before = _decode(self._tokenizer, self._ids[: self._settled], self._skip_special_tokens)
        text = _decode(self._tokenizer, self._ids, self._skip_special_tokens)[len(before) :]
        certain = text.rstrip(_INCOMPLETE)
        new_text = certain[self._taken :]
        self._taken = len(certain)
        if not text:
            self._ids.pop()  # a special token that is skipped; a run of them must not pile up here
        elif certain == text:
            self._ids = self._ids[self._settled :]
            self._settled = len(self._ids)
            self._taken = 0
        return new_text

    def _find_stop(self, num_new: int) -> str | None:
        for string in self._stop:
            # It must end in the new text; how far before it began does not matter.
            start = self.text.find(string, max(0, len(self.text) - num_new - len(string) + 1))
            if start >= 0:
                self.text = self.text[: start + (len(string) if self._include_stop else 0)]
                return string
        return None


def _decode(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool) -> str:
    return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
