"""Hugging Face causal language models on the paged cache.

``transformers`` owns the models; this package finds their files, refuses what the cache would compute wrongly
and hands each model an attention function and a cache object of its own. Importing it loads neither torch nor
transformers: they come with the first of the names below that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from looseleaf.errors import MissingExtraError

if TYPE_CHECKING:
    from looseleaf.models.attention_layers import LayerAttention
    from looseleaf.models.loaded_model import LoadedModel
    from looseleaf.models.loading import load_model
    from looseleaf.models.locate import ModelSource, locate_model

_HOME = {
    "LayerAttention": "looseleaf.models.attention_layers",
    "LoadedModel": "looseleaf.models.loaded_model",
    "ModelSource": "looseleaf.models.locate",
    "load_model": "looseleaf.models.loading",
    "locate_model": "looseleaf.models.locate",
}

__all__ = ["LayerAttention", "LoadedModel", "ModelSource", "load_model", "locate_model"]


_EXTRA = frozenset({"torch", "transformers", "safetensors"})


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            return getattr(importlib.import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRA:
                raise
            raise MissingExtraError(
                f"models need {error.name}, which is not installed: pip install 'looseleaf[engine]'"
            ) from error
    raise AttributeError(f"module 'looseleaf.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
