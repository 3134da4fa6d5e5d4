"""Tiny model folders, each written once per session."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# A skip raised here would end the whole run when pytest is pointed at this folder.
if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers")):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from a second thread, and lose much where the machine is busy."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, by its name in ``tiny_models``."""
    from tiny_models import save_tiny_model

    root = tmp_path_factory.mktemp("tiny-models")

    def folder_of(name: str) -> Path:
        folder = root / name
        return folder if folder.is_dir() else save_tiny_model(name, folder)

    return folder_of
