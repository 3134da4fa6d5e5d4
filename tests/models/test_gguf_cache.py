"""GGUF files become model folders once, whoever asks and whatever interrupts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

pytest.importorskip("gguf")
from looseleaf.errors import ModelLoadError
from looseleaf.models import gguf_cache, load_model
from looseleaf.models.gguf_cache import cache_root, converted_folder
from models.tiny_gguf import CONTEXT, EOS, LAYERS, write_tiny_gguf


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file, and an empty cache for it."""
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "cache"))
    return write_tiny_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Grows by one for each conversion."""
    seen: list[Path] = []
    read_model = gguf_cache.read_model

    def counted(folder: Path, *args: object, **options: object) -> object:
        seen.append(folder)
        return read_model(folder, *args, **options)

    monkeypatch.setattr(gguf_cache, "read_model", counted)
    return seen


def cached() -> list[str]:
    return sorted(entry.name for entry in (cache_root() / "gguf").iterdir() if entry.is_dir())


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"LOOSELEAF_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/looseleaf"),
        ({}, "/home/c/.cache/looseleaf"),
    ],
)
def test_the_cache_is_where_the_environment_says(
    variables: dict[str, str], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/c")
    for name in ("LOOSELEAF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(root)


def test_a_gguf_file_loads_with_its_tokenizer_and_template(tiny: Path) -> None:
    model = load_model(str(tiny))
    assert (model.name, model.dtype, model.num_layers) == ("tiny", torch.float32, LAYERS)
    assert (model.max_model_len, model.eos_token_ids) == (CONTEXT, (EOS,))
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer("Grüße\n").input_ids) == "Grüße\n"
    chat = [{"role": "user", "content": "hello"}]
    assert model.tokenizer.apply_chat_template(chat, tokenize=False) == "hello"


def test_a_file_is_converted_once_and_the_user_is_told(
    tiny: Path, conversions: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = converted_folder(tiny, "float32")
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [str(tiny) in record.getMessage() and str(folder) in record.getMessage() for record in told] == [
        True
    ]
    caplog.clear()
    assert converted_folder(tiny, "float32") == folder
    assert (len(conversions), caplog.records) == (1, [])


def test_the_key_is_the_content_and_the_dtype(tiny: Path, conversions: list[Path]) -> None:
    folder = converted_folder(tiny, "float32")
    copied = tiny.rename(tiny.with_name("renamed.gguf"))
    assert converted_folder(copied, "float32") == folder
    half = converted_folder(copied, "bfloat16")
    write_tiny_gguf(tiny, seed=1)
    other = converted_folder(tiny, "float32")
    assert cached() == sorted({folder.name, half.name, other.name})
    assert len(conversions) == 3


def test_an_interrupted_conversion_leaves_nothing_that_could_be_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf_cache, "read_tokenizer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            converted_folder(tiny, "float32")
    assert cached() == []
    assert load_model(str(tiny)).num_layers == LAYERS


def test_what_a_killed_conversion_left_is_not_taken_for_a_model(tiny: Path) -> None:
    folder = converted_folder(tiny, "float32")
    partial = folder.rename(folder.with_name(f"{folder.name}.partial"))
    (partial / "model.safetensors").write_bytes(b"half")
    (partial / "leftover").touch()
    assert load_model(str(tiny)).num_layers == LAYERS
    assert cached() == [folder.name]
    assert not (folder / "leftover").exists()


def test_of_many_who_ask_at_once_one_converts(tiny: Path, conversions: list[Path]) -> None:
    together = threading.Barrier(4)

    def ask(_: int) -> Path:
        together.wait()
        return converted_folder(tiny, "float32")

    with ThreadPoolExecutor(4) as threads:
        folders = set(threads.map(ask, range(4)))
    assert len(folders) == len(conversions) == 1
    assert load_model(str(tiny)).num_layers == LAYERS


def test_a_file_of_another_kind_is_refused_before_anything_is_written(tiny: Path) -> None:
    tiny.write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match=f"cannot load {tiny}: no GGUF file, it begins with b'not '"):
        load_model(str(tiny))
    assert not cache_root().exists()


@pytest.mark.parametrize("damage", [lambda whole: whole[:20], lambda whole: whole[:-1]])
def test_a_damaged_file_is_refused_and_leaves_nothing_behind(
    damage: Callable[[bytes], bytes], tiny: Path
) -> None:
    tiny.write_bytes(damage(tiny.read_bytes()))
    with pytest.raises(ModelLoadError, match=f"cannot load {tiny}"):
        load_model(str(tiny))
    assert cached() == []


def test_a_cache_that_cannot_be_written_names_the_setting(tiny: Path) -> None:
    cache_root().touch()
    with pytest.raises(ModelLoadError, match="set LOOSELEAF_CACHE to a folder with room"):
        load_model(str(tiny))
