"""Reading with ``transformers``: from this machine only, quietly, and with every weight accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from looseleaf.errors import ModelLoadError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read_model(path: Path, dtype: torch.dtype | str, **options: Any) -> PreTrainedModel:
    """Read a causal language model with its weights, in evaluation mode.

    Args:
        path: a model folder or a GGUF file.
        dtype: of the weights in memory; ``"auto"`` for the one they are stored in.
        options: more arguments of ``from_pretrained``.

    Raises:
        ModelLoadError: the files cannot be read, or lack weights.
    """
    loader: Any = AutoModelForCausalLM
    try:
        with no_progress_bars():
            model, report = loader.from_pretrained(
                dtype=dtype, output_loading_info=True, **_local(path), **options
            )
    except Exception as error:  # what a broken file raises is of any class, down to a bare Exception
        raise ModelLoadError(f"transformers cannot load {path}: {one_line(error)}") from error
    # transformers fills missing weights with random numbers and only warns.
    if missing := sorted(report["missing_keys"]):
        raise ModelLoadError(
            f"{path} lacks {len(missing)} of the model's weights, {missing[0]} among them; copy it again"
        )
    loaded: PreTrainedModel = model.eval()
    return loaded


def read_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer, chat template included.

    Args:
        path: a model folder or a GGUF file.

    Raises:
        ModelLoadError: the files cannot be read.
    """
    loader: Any = AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(**_local(path))
    except Exception as error:  # what a broken file raises is of any class, down to a bare Exception
        raise ModelLoadError(
            f"transformers cannot load the tokenizer in {path}: {one_line(error)}"
        ) from error
    return tokenizer


def _local(path: Path) -> dict[str, Any]:
    """Arguments of ``from_pretrained``: ``path``, no downloads, and no code from the folder."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(path)}
    if path.is_file():
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    return where | {"local_files_only": True, "trust_remote_code": False}


def one_line(error: BaseException) -> str:
    """The message of somebody else's error, which may be a page, as part of a sentence."""
    return " ".join(str(error).split())


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """A library prints nothing; the setting is given back to whoever shares transformers with us."""
    settings: Any = transformers_logging
    shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            settings.enable_progress_bar()
