"""``looseleaf generate`` over the made-up model: what is written where, and the exit code of every ending."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import looseleaf
from cli.made_up_llm import made_up_llm, text_after
from engine.made_up_model import MadeUpModel, assert_nothing_is_held
from looseleaf import LLM
from looseleaf.cli import main

CHAT = "^U{}^A"


class Run:
    """One run of the command line, and everything it did."""

    def __init__(self, capsys: pytest.CaptureFixture[str], llm: LLM, model: MadeUpModel) -> None:
        self._capsys = capsys
        self.llm = llm
        self.model = model
        self.settings: dict[str, Any] = {}
        self.code = -1
        self.out = ""
        self.err = ""

    def __call__(self, *words: str) -> Run:
        try:
            self.code = main(["generate", *words])
        except SystemExit as error:  # argparse
            self.code = int(str(error.code))
        self.out, self.err = self._capsys.readouterr()
        assert_nothing_is_held(self.llm.llm_engine)
        return self

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    llm, model = made_up_llm()
    run = Run(capsys, llm, model)

    def load(model: str, **settings: Any) -> LLM:
        run.settings = {"model": model} | settings
        return llm

    monkeypatch.setattr(looseleaf, "LLM", load)
    return run


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    def write(*values: object) -> str:
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values))
        return str(path)

    return write


def pipe_in(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_one_prompt_is_answered_as_a_chat(run: Run) -> None:
    assert run("--prompt", "hi").code == 0
    assert run.out == text_after(CHAT.format("hi")) + "\n"


def test_a_system_prompt_comes_first(run: Run) -> None:
    assert run("--prompt", "hi", "--system", "be").code == 0
    assert run.out == text_after("^Sbe^Uhi^A") + "\n"


def test_raw_continues_the_bare_text(run: Run) -> None:
    assert run("--prompt", "hi", "--raw").out == text_after("^hi") + "\n"


def test_a_model_without_a_chat_template_continues_the_bare_text(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.llm.get_tokenizer(), "chat_template", None)
    assert run("--prompt", "hi").out == text_after("^hi") + "\n"
    assert run("--prompt", "hi", "--chat").code == 2
    assert "no chat template" in run.err


def test_one_prompt_is_written_while_it_grows(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    passes_at_write: list[int] = []
    write = sys.stdout.write

    def watch(text: str) -> int:
        passes_at_write.append(run.model.num_passes)
        return write(text)

    monkeypatch.setattr(sys.stdout, "write", watch)
    run("--prompt", "hi", "--max-tokens", "5", "--ignore-eos")
    assert len(set(passes_at_write)) == 5


def test_several_prompts_are_written_in_order_under_their_titles(run: Run) -> None:
    assert run("--prompt", "hello", "--prompt", "you", "--max-tokens", "4").code == 0
    first = text_after(CHAT.format("hello"), max_tokens=4)
    second = text_after(CHAT.format("you"), max_tokens=4)
    assert run.out == f"[prompt 1] hello\n{first}\n\n[prompt 2] you\n{second}\n\n"


def test_texts_stand_in_the_order_of_the_prompts_and_not_of_their_ends(
    run: Run, lines: Callable[..., str]
) -> None:
    long = {"prompt": "a", "max_tokens": 20, "ignore_eos": True}
    short = {"prompt": "b", "max_tokens": 1}
    assert run("--file", lines(long, short), "--json", "--raw").code == 0
    assert [item["index"] for item in run.objects] == [0, 1]
    assert [len(item["token_ids"]) for item in run.objects] == [20, 1]


def test_standard_input_is_one_prompt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, b"hi\n")
    assert run("--raw").out == text_after("^hi") + "\n"


def test_a_dash_reads_lines_from_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, b'"hi"\n"ho"\n')
    assert run("--file", "-", "--json", "--raw").code == 0
    assert [item["text"] for item in run.objects] == [text_after("^hi"), text_after("^ho")]


def test_json_says_all_about_a_prompt(run: Run) -> None:
    assert run("--prompt", "hi", "--raw", "--json", "--max-tokens", "3", "--ignore-eos").code == 0
    (item,) = run.objects
    assert len(item.pop("token_ids")) == 3
    assert item == {
        "index": 0,
        "source": "prompt 1",
        "prompt": "hi",
        "text": text_after("^hi", max_tokens=3, ignore_eos=True),
        "finish_reason": "length",
        "stop_reason": None,
        "num_prompt_tokens": 3,
        "num_cached_tokens": 0,
    }


def test_token_ids_are_taken_as_they_are(run: Run, lines: Callable[..., str]) -> None:
    assert run("--file", lines({"prompt_token_ids": [8, 9]})).code == 0
    assert run.out == text_after("hi") + "\n"


def test_a_salt_keeps_blocks_apart(run: Run, lines: Callable[..., str]) -> None:
    alike = {"prompt": "a" * 15}
    mine = alike | {"cache_salt": "me"}
    assert run("--file", lines(alike, alike, mine, mine), "--json", "--raw").code == 0
    assert [item["num_cached_tokens"] for item in run.objects] == [0, 12, 0, 12]


def test_flags_reach_the_engine_and_those_not_given_do_not(run: Run) -> None:
    run("--prompt", "hi", "--model", "there", "--block-size", "8", "--kv-cache-memory-bytes", "1MiB")
    assert run.settings == {"model": "there", "block_size": 8, "kv_cache_memory_bytes": 1 << 20}


def test_figures_go_to_standard_error_or_into_the_last_object(run: Run) -> None:
    words = (
        "--prompt",
        "aaaaaaaaaaaaaaa",
        "--prompt",
        "aaaaaaaaaaaaaaa",
        "--raw",
        "--stats",
        "--max-tokens",
        "4",
    )
    assert run(*words, "--ignore-eos").code == 0
    assert "8 tokens for 2 prompts" in run.err
    assert "32 tokens; 12 of them came from the prefix cache" in run.err
    assert "shared 3 times" in run.err
    assert "2 contiguous ones of 64 tokens" in run.err
    run.llm.reset_prefix_cache()
    run(*words, "--ignore-eos", "--json")
    stats = run.objects[-1]["stats"]
    assert stats["num_cached_tokens"] == 24  # of both runs: the engine counts since its start
    assert stats["strip_bytes"] == 2 * 64 * stats["bytes_per_token"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--prompt", ""], "looseleaf: prompt 1: the prompt is empty"),
        (["--prompt", "a" * 64], "leaves no room for an output"),
        (
            ["--prompt", "a", "--temperature", "-1"],
            "temperature must be a finite number at least 0, found -1.0",
        ),
        (
            ["--prompt", "a", "--temperature", "nan"],
            "temperature must be a finite number at least 0, found nan",
        ),
        (
            ["--prompt", "a", "--top-p", "inf"],
            "top_p must be a finite number above 0 and at most 1, found inf",
        ),
        (["--prompt", "a", "--top-k", "-2"], "top_k must be an integer of at least -1.*, found -2"),
        (["--prompt", "a", "--max-tokens", "0"], "max_tokens must be an integer of at least 1.*, found 0"),
        (["--prompt", "a", "--max-tokens", "many"], "argument --max-tokens: invalid int value: 'many'"),
        (["--prompt", "a", "--stop", ""], "stop must not contain the empty string"),
        (["--prompt", "a", "--stop-token-id", "61"], "must be from 0 to 60, the vocabulary, found 61"),
        (["--prompt", "a", "--kv-cache-memory-bytes", "much"], "'much' is not a size"),
        (["--prompt", "a", "--system", "b", "--raw"], "--system is part of a chat: leave out --raw"),
        (["--prompt", "a", "--file", "b"], "not allowed with argument --prompt"),
        (["--file", "/nowhere/at/all"], "--file /nowhere/at/all: No such file or directory"),
        (["--file", os.devnull], f"--file {os.devnull} has no prompts"),
        (["--prompt", os.fsdecode(b"a\xff")], "prompt 1: not UTF-8 text: byte 0xff"),
        (
            ["--prompt", "a", "--system", os.fsdecode(b"\xff")],
            "looseleaf: --system: not UTF-8 text: byte 0xff",
        ),
    ],
)
def test_bad_input_says_what_is_wrong_and_ends_with_2(run: Run, words: list[str], sentence: str) -> None:
    assert run(*words, *([] if "--system" in words else ["--raw"])).code == 2
    assert re.search(sentence, run.err), run.err
    assert run.out == ""


@pytest.mark.parametrize("stdin", [None, io.TextIOWrapper(io.BytesIO(b"\xff"))])
def test_nothing_to_read_ends_with_2(run: Run, monkeypatch: pytest.MonkeyPatch, stdin: object) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run().code == 2
    assert ("nothing to do" if stdin is None else "standard input: not UTF-8") in run.err


def test_a_bad_line_stops_all_unless_told_to_keep_going(run: Run, lines: Callable[..., str]) -> None:
    path = lines(
        "{broken", "hi", {"prompt": "ho"}, {"prompt": "ha", "temperature": -1}, {"prompt_token_ids": [61]}
    )
    assert run("--file", path, "--raw").code == 2
    assert run.out == ""
    assert run.model.num_passes == 0
    assert "line 1: not valid JSON" in run.err
    assert "line 2: not valid JSON" in run.err
    assert "line 4: temperature must be" in run.err
    assert run.settings == {}  # the model is not loaded for this, and may refuse more
    assert "nothing was run, 3 of 5 prompts refused; --keep-going runs the others that suit the" in run.err

    assert run("--file", path, "--raw", "--keep-going", "--json").code == 2
    assert [item["index"] for item in run.objects] == [0, 1, 2, 3, 4]
    assert run.objects[2]["text"] == text_after("^ho")
    assert run.objects[4]["source"] == "line 5"
    assert "must be from 0 to 60, the vocabulary, found 61" in run.objects[4]["error"]
    assert "line 5: prompt_token_ids must be from 0 to 60" in run.err


def test_a_line_that_the_model_refuses_stops_all_before_anything_is_computed(
    run: Run, lines: Callable[..., str]
) -> None:
    path = lines('"ho"', {"prompt_token_ids": [61]}, '"ha"')
    assert run("--file", path, "--raw").code == 2
    assert run.out == ""
    assert run.model.num_passes == 0
    assert run.err.splitlines() == [
        "looseleaf: line 2: prompt_token_ids must be from 0 to 60, the vocabulary, found 61",
        "looseleaf: nothing was run, 1 of 3 prompts refused; --keep-going runs the other 2",
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"prompt": "a", "cache_salt": ""}, "cache_salt must be a non-empty string, found ''"),
        ({"prompt": "a", "cache_salt": "\ud800"}, "cache_salt has half of a surrogate pair at character 0"),
        ({"prompt": "ab\ud800"}, "prompt has half of a surrogate pair at character 2 (from 0)"),
        ({"prompt_token_ids": [3, -1]}, "prompt_token_ids must be from 0 up, found -1"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids must be a list of integers, found true in it"),
        (
            {"prompt": "a", "stop_token_ids": [True]},
            "stop_token_ids must be an integer of at least 0, found True",
        ),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be an integer of at least 1, found 0"),
    ],
)
def test_what_no_model_takes_is_refused_before_one_is_loaded(
    run: Run, lines: Callable[..., str], line: dict[str, Any], sentence: str
) -> None:
    assert run("--file", lines('"fine"', line)).code == 2
    assert run.settings == {}
    assert f"looseleaf: line 2: {sentence}" in run.err


def test_titles_and_refusals_count_alike(run: Run, lines: Callable[..., str]) -> None:
    path = lines('"ho"', "", "{broken", {"prompt_token_ids": [61]}, '"ha"')
    assert run("--file", path, "--raw", "--keep-going").code == 2
    assert [line.split("]")[0] for line in run.out.splitlines() if line.startswith("[")] == [
        "[line 1",
        "[line 5",
    ]
    assert [line.split(":")[1] for line in run.err.splitlines()] == [" line 3", " line 4"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--temperature", "-1"], "temperature must be a finite number at least 0, found -1.0"),
        (["--stop-token-id", "61"], "stop_token_ids must be from 0 to 60, the vocabulary, found 61"),
        (["--min-tokens", "257"], "min_tokens must be at most max_tokens (256), found 257"),
    ],
)
def test_a_flag_at_fault_is_named_once_and_without_a_prompt(
    run: Run, lines: Callable[..., str], flags: list[str], sentence: str
) -> None:
    for more in ([], ["--keep-going"]):
        assert run("--file", lines('"a"', {"prompt": "b", "top_k": 5}), "--raw", *flags, *more).code == 2
        assert run.err == f"looseleaf: {sentence}\n"


def test_a_prompt_whose_own_fields_are_at_fault_is_named(run: Run, lines: Callable[..., str]) -> None:
    path = lines('"a"', {"prompt": "b", "stop_token_ids": [61]}, {"prompt": "c", "min_tokens": 300})
    assert run("--file", path, "--raw", "--keep-going", "--json").code == 2
    assert [item["index"] for item in run.objects if "error" in item] == [1, 2]
    assert "line 2: stop_token_ids must be from 0 to 60" in run.err
    assert "line 3: min_tokens must be at most max_tokens (256), found 300" in run.err


def test_only_bad_lines_load_no_model(run: Run, lines: Callable[..., str]) -> None:
    assert run("--file", lines("{broken"), "--keep-going").code == 2
    assert run.settings == {}


def test_a_step_that_fails_ends_with_1_and_spares_the_other_prompts(
    run: Run, lines: Callable[..., str]
) -> None:
    run.model.errors = {2: RuntimeError("bad memory")}
    short, long = {"prompt": "a", "max_tokens": 1}, {"prompt": "b", "ignore_eos": True}
    assert run("--file", lines(short, long), "--raw", "--json").code == 1
    assert run.objects[0]["text"] == text_after("^a", max_tokens=1)
    assert run.objects[1]["finish_reason"] == "error"
    assert "line 2: the step failed: RuntimeError: bad memory" in run.err


def interrupt_in_pass(number: int, model: MadeUpModel, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = model.forward

    def interrupted(batch: Any) -> Any:
        if model.num_passes + 1 == number:
            signal.raise_signal(signal.SIGINT)
        return forward(batch)

    monkeypatch.setattr(model, "forward", interrupted)


def test_ctrl_c_keeps_the_text_so_far_and_ends_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_in_pass(5, run.model, monkeypatch)
    assert run("--prompt", "hi", "--raw", "--ignore-eos").code == 130
    assert run.out == text_after("^hi", max_tokens=5, ignore_eos=True) + "\n"
    assert "interrupted: 0 of 1 prompts finished" in run.err


def test_ctrl_c_keeps_what_many_prompts_have_written(
    run: Run, lines: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_in_pass(5, run.model, monkeypatch)
    long, short = {"prompt": "a", "ignore_eos": True}, {"prompt": "b", "max_tokens": 2, "ignore_eos": True}
    assert run("--file", lines(long, short), "--raw", "--json").code == 130
    assert [(item["finish_reason"], len(item["token_ids"])) for item in run.objects] == [
        ("abort", 5),
        ("length", 2),
    ]
    assert "interrupted: 1 of 2 prompts finished" in run.err


def test_ctrl_c_while_a_text_is_written_loses_nothing_of_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = sys.stdout.write
    num_writes = 0

    def interrupted(text: str) -> int:
        nonlocal num_writes
        num_writes += 1
        if num_writes == 3:
            signal.raise_signal(signal.SIGINT)
        return write(text)

    monkeypatch.setattr(sys.stdout, "write", interrupted)
    assert run("--prompt", "hi", "--raw", "--ignore-eos").code == 130
    assert run.out == text_after("^hi", max_tokens=3, ignore_eos=True) + "\n"
