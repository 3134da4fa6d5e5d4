"""The command line over the made-up model: whole runs in milliseconds, every text known in advance.

As a program, ``made_up_llm.py WORDS…`` is ``looseleaf WORDS…`` on that model.
"""

from __future__ import annotations

import sys
from typing import Any

import looseleaf
from engine.made_up_model import MadeUpModel, expected_output, made_up_engine
from engine.made_up_tokenizers import LetterTokenizer
from looseleaf import LLM, SamplingParams
from looseleaf.cli import main

MAX_MODEL_LEN = 64


def made_up_llm() -> tuple[LLM, MadeUpModel]:
    """A model that writes nonsense of letters."""
    engine, model = made_up_engine(tokenizer=LetterTokenizer(), max_model_len=MAX_MODEL_LEN)
    return LLM.from_engine(engine), model


def text_after(prompt: str, **sampling: Any) -> str:
    """What the made-up model writes after a prompt, from the prompt alone; ``^`` is its special token."""
    tokenizer = LetterTokenizer()
    params = SamplingParams(**{"temperature": 0, "max_tokens": 256} | sampling)
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    token_ids, reason, _ = expected_output(prompt_ids, params, max_model_len=MAX_MODEL_LEN)
    return tokenizer.decode(token_ids[:-1] if reason == "stop" else token_ids, skip_special_tokens=True)


if __name__ == "__main__":
    llm, _ = made_up_llm()
    looseleaf.LLM = lambda model, **_: llm  # type: ignore[assignment,misc]
    sys.exit(main())
