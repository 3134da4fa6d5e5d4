"""GGUF files, converted to safetensors once and kept.

De-quantising a GGUF file takes long, and reading the result does not: it is kept as a model folder in the
user's cache, under the hash of the file's content and the dtype.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from looseleaf.errors import MissingExtraError, ModelLoadError
from looseleaf.models.pretrained import DTYPES, no_progress_bars, read_model, read_tokenizer

logger = logging.getLogger(__name__)


def cache_root() -> Path:
    """Where looseleaf keeps files: ``$LOOSELEAF_CACHE``, else ``looseleaf`` in the user's cache folder."""
    if chosen := os.environ.get("LOOSELEAF_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "looseleaf"
    return Path.home() / ".cache" / "looseleaf"


def converted_folder(gguf: Path, dtype: str) -> Path:
    """Find the model folder that ``gguf`` becomes, converting it the first time.

    Any number of processes may ask at once: one converts, the others wait for it. A folder of the final name
    is complete; what an interrupted conversion left behind is removed by the next.

    Args:
        gguf: the GGUF file.
        dtype: dtype of the weights written, ``"float32"``, ``"bfloat16"`` or ``"float16"``.

    Returns:
        A folder with config.json, safetensors and the tokenizer.

    Raises:
        MissingExtraError: the package gguf is not installed.
        ModelLoadError: the file cannot be read or converted, or the cache not written.
    """
    root = cache_root() / "gguf"
    try:
        with gguf.open("rb") as file:
            if (magic := file.read(4)) != b"GGUF":
                raise ModelLoadError(f"cannot load {gguf}: no GGUF file, it begins with {magic!r}")
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        folder = root / f"{digest}-{dtype}"
        if folder.is_dir():
            return folder
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / f"{folder.name}.lock"):
            if not folder.is_dir():
                _convert_into(folder, gguf, dtype)
    except ModelLoadError:
        raise
    except OSError as error:
        raise ModelLoadError(
            f"cannot convert {gguf} into {root}: {error}; set LOOSELEAF_CACHE to a folder with room"
        ) from error
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an advisory lock, which the kernel drops when its holder dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("another process is converting this model; waiting for it (%s)", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_into(folder: Path, gguf: Path, dtype: str) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # A warning: whoever configured no logging still learns what takes so long, and where disk space went.
    logger.warning("converting %s to %s safetensors, once, into %s", gguf, dtype, folder)
    try:
        _convert(gguf, partial, dtype)
        for file in partial.iterdir():
            _sync(file)
        _sync(partial)
        partial.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    size_mib = sum(file.stat().st_size for file in folder.iterdir()) // 2**20
    logger.info("converted: %d MiB in %s", size_mib, folder)


def _sync(path: Path) -> None:
    # The rename must not reach the disk before the bytes it vouches for.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _convert(gguf: Path, folder: Path, dtype: str) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("GGUF files are read with the package gguf: pip install 'looseleaf[engine]'")
    model: Any = read_model(gguf, DTYPES[dtype])
    tokenizer = read_tokenizer(gguf)
    # The weights are plain tensors from here on; transformers refuses to save a model that says otherwise.
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with no_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
