"""The command line over the made-up model: whole runs in milliseconds, every text known in advance.

As a program, ``made_up_llm.py WORDS…`` is ``looseleaf WORDS…`` on that model.
"""

from __future__ import annotations

import string
import sys
from typing import Any

import looseleaf
from engine.made_up_model import EOS_TOKEN_ID, MadeUpModel, expected_output, made_up_engine
from looseleaf import LLM, SamplingParams
from looseleaf.cli import main

MAX_MODEL_LEN = 64
_LETTERS = string.ascii_letters + " .?\n:'<>"
assert len(_LETTERS) == EOS_TOKEN_ID


class LetterTokenizer:
    """One token a letter."""

    chat_template: str | None = "role, colon, content, line end"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [_LETTERS.index(letter) for letter in text]

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return "".join(_LETTERS[token] for token in token_ids if token != EOS_TOKEN_ID)

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        return "".join(f"{message['role']}:{message['content']}\n" for message in messages)


def made_up_llm(**options: Any) -> tuple[LLM, MadeUpModel]:
    """A model that writes nonsense of letters."""
    settings = {"num_blocks": 64, "block_size": 4, "max_model_len": MAX_MODEL_LEN} | options
    engine, model = made_up_engine(tokenizer=LetterTokenizer(), **settings)
    return LLM.from_engine(engine), model


def text_after(prompt: str, **sampling: Any) -> str:
    """What the made-up model writes after ``prompt``, from the prompt alone."""
    tokenizer = LetterTokenizer()
    params = SamplingParams(**{"temperature": 0, "max_tokens": 256} | sampling)
    token_ids, _, _ = expected_output(tokenizer.encode(prompt), params, max_model_len=MAX_MODEL_LEN)
    return tokenizer.decode(token_ids)


if __name__ == "__main__":
    llm, _ = made_up_llm()
    looseleaf.LLM = lambda model, **_: llm  # type: ignore[assignment,misc]
    sys.exit(main())
