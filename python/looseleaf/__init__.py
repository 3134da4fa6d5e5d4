"""looseleaf: the KV-cache block pool for Python LLM servers, and an engine that proves it.

Importing this package loads no other module, neither the compiled extension nor NumPy or torch: each name
below is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for typing's own, which would load two dozen modules
if TYPE_CHECKING:
    from typing import Any

    from looseleaf._core import (
        AllBlocksCleared,
        BlockHasher,
        BlockKeys,
        BlockList,
        BlockPool,
        BlockRemoved,
        BlockSnapshot,
        BlockStored,
        ExtraKey,
        GroupSpec,
        KVCacheManager,
        LayerSpec,
    )
    from looseleaf.block_manager import BlockManager
    from looseleaf.engine.beam_search import BeamSearchParams
    from looseleaf.engine.llm import LLM
    from looseleaf.engine.outputs import (
        BeamSearchOutput,
        BeamSearchSequence,
        CompletionOutput,
        RequestOutput,
    )
    from looseleaf.engine.sampling_params import SamplingParams

_HOME = {
    "AllBlocksCleared": "looseleaf._core",
    "BlockHasher": "looseleaf._core",
    "BlockKeys": "looseleaf._core",
    "BlockList": "looseleaf._core",
    "BlockPool": "looseleaf._core",
    "BlockRemoved": "looseleaf._core",
    "BlockSnapshot": "looseleaf._core",
    "BlockStored": "looseleaf._core",
    "ExtraKey": "looseleaf._core",
    "GroupSpec": "looseleaf._core",
    "KVCacheManager": "looseleaf._core",
    "LayerSpec": "looseleaf._core",
    "BlockManager": "looseleaf.block_manager",
    "LLM": "looseleaf.engine.llm",
    "BeamSearchOutput": "looseleaf.engine.outputs",
    "BeamSearchParams": "looseleaf.engine.beam_search",
    "BeamSearchSequence": "looseleaf.engine.outputs",
    "CompletionOutput": "looseleaf.engine.outputs",
    "RequestOutput": "looseleaf.engine.outputs",
    "SamplingParams": "looseleaf.engine.sampling_params",
}

__all__ = [
    "LLM",
    "AllBlocksCleared",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "BlockHasher",
    "BlockKeys",
    "BlockList",
    "BlockManager",
    "BlockPool",
    "BlockRemoved",
    "BlockSnapshot",
    "BlockStored",
    "CompletionOutput",
    "ExtraKey",
    "GroupSpec",
    "KVCacheManager",
    "LayerSpec",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from looseleaf._core import __version__

        return __version__
    if name in _HOME:
        from importlib import import_module

        try:
            return getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("looseleaf"):
                raise
            from looseleaf.errors import MissingExtraError

            command = "pip install 'looseleaf[engine]'"
            raise MissingExtraError(
                f"looseleaf.{name} needs {error.name}, which is not installed: {command}"
            ) from error
    raise AttributeError(f"module 'looseleaf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
