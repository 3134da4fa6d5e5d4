"""Paged attention: one contract, several backends.

``base.py`` is the contract, ``cpu.py`` the backend over the compiled kernels, ``reference.py`` the oracle.
Importing this package does not load torch; :func:`create_backend` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from looseleaf.attention.base import AttentionBackend, CacheSpec
from looseleaf.errors import MissingExtraError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AttentionBackend", "CacheSpec", "backend_class", "create_backend"]

_CLASSES: Mapping[str, tuple[str, str]] = {
    "cpu": ("looseleaf.attention.cpu", "CpuBackend"),
    "reference": ("looseleaf.attention.reference", "ReferenceBackend"),
}


def backend_class(name: str) -> type[AttentionBackend]:
    """The class of a backend, to ask what it supports before anything is allocated.

    Args:
        name: ``"cpu"`` or ``"reference"``.

    Raises:
        UnsupportedError: there is no backend of this name.
        MissingExtraError: torch is not installed.
    """
    if name not in _CLASSES:
        raise UnsupportedError(f"no attention backend is called {name!r}; there are: {', '.join(_CLASSES)}")
    module, class_name = _CLASSES[name]
    try:
        backend: type[AttentionBackend] = getattr(importlib.import_module(module), class_name)
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "numpy"}:
            raise
        raise MissingExtraError(
            f"attention needs {error.name}, which is not installed: pip install 'looseleaf[engine]'"
        ) from error
    return backend


def create_backend(name: str, spec: CacheSpec) -> AttentionBackend:
    """Allocate a cache and the backend that owns it.

    Args:
        name: ``"cpu"`` or ``"reference"``.
        spec: the cache.

    Raises:
        UnsupportedError: there is no backend of this name, or it cannot do ``spec``.
        MissingExtraError: torch is not installed.
        MemoryError: there is no room for the cache.
    """
    return backend_class(name)(spec)
