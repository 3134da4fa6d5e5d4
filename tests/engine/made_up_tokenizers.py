"""Tokenizers small enough to see through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SPECIAL_TOKEN_ID = 256


class ByteTokenizer:
    """Tokens 0 to 255 are bytes, so that a character outside ASCII takes several of them; 256 is special."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        special = b"" if skip_special_tokens else b"<s>"
        raw = b"".join(special if token == SPECIAL_TOKEN_ID else bytes([token]) for token in token_ids)
        return raw.decode(errors="replace")


class LetterTokenizer:
    """One letter per token of the made-up model; token 0 is special, and is added before text."""

    LETTERS = "^abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"
    chat_template: str | None = "made up"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [self.LETTERS.index(letter) for letter in text]

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        return "".join(self.LETTERS[token] for token in token_ids if token or not skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool = True,
        **_: object,
    ) -> str:
        assert not tokenize
        if messages[-1]["role"] == "nobody":
            raise ValueError("roles must alternate")
        text = "".join(f"^{message['role'][0].upper()}{message['content']}" for message in messages)
        return text + "^A" * add_generation_prompt
