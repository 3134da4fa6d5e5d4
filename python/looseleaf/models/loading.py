"""From a name on the command line to a model that the engine can bind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from looseleaf.errors import InvalidConfigError, ModelLoadError, UnsupportedModelError
from looseleaf.models.checks import check_class, check_config
from looseleaf.models.gguf_cache import converted_folder
from looseleaf.models.loaded_model import LoadedModel
from looseleaf.models.locate import locate_model
from looseleaf.models.pretrained import DTYPES, one_line, read_model, read_tokenizer
from looseleaf.models.weight_files import check_weight_files

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)


def load_model(model: str, dtype: str = "auto") -> LoadedModel:
    """Load a causal language model from this machine; nothing is ever downloaded.

    What the paged cache would compute wrongly is refused here, most of it before weights are read.

    Args:
        model: a folder with config.json and safetensors, a ``.gguf`` file, or ``"smollm2"``.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"auto"``: what a folder's weights are stored
            in; float32 for a GGUF file, whose own numbers have no dtype of computation.

    Returns:
        The model, without a backend.

    Raises:
        InvalidConfigError: unknown ``dtype``.
        MissingExtraError: a package is not installed; the message says how to get it.
        ModelLoadError: there is no model, or its files are incomplete or unreadable.
        UnsupportedModelError: the paged cache would compute this model wrongly.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise InvalidConfigError(f"dtype is {dtype!r}; allowed: auto, {', '.join(DTYPES)}")
    source = locate_model(model)
    folder = source.path
    if source.is_gguf:
        folder = converted_folder(source.path, "float32" if dtype == "auto" else dtype)
    config = _read_config(folder)
    check_class(_model_class(folder, config))
    check_config(config)
    check_weight_files(folder)
    weights = read_model(folder, DTYPES.get(dtype, dtype), config=config, use_safetensors=True)
    if weights.dtype not in DTYPES.values():
        raise UnsupportedModelError(
            f"{folder} stores its weights in {weights.dtype}; ask for one of {', '.join(DTYPES)}"
        )
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return LoadedModel(source.name, weights, read_tokenizer(folder) if has_tokenizer else None)


def _read_config(folder: Path) -> PretrainedConfig:
    path = folder / "config.json"
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} is not a model's configuration: {error}") from error
    if not isinstance(stored, dict):
        raise ModelLoadError(f"{path} is not a model's configuration: it holds no object in braces")
    model_type = stored.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"{path} has model_type {model_type!r}, unknown to transformers {transformers.__version__}; code "
            "from a model's folder is never run"
        )
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise ModelLoadError(f"{path} is not a valid configuration: {one_line(error)}") from error
    return config


def _model_class(folder: Path, config: PretrainedConfig) -> type[PreTrainedModel]:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModelError(
            f"{folder} holds a {config.model_type!r} model; only causal language models generate text here"
        )
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model_class: type[PreTrainedModel] = found
    return model_class
