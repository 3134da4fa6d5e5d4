"""What only a process of its own can show: pipes, signals, missing packages, and what is loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MADE_UP = [sys.executable, str(Path(__file__).with_name("made_up_llm.py"))]
LOOSELEAF = [sys.executable, "-m", "looseleaf"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # it would hide what happens when buffers are written at the end
FULL = Path("/dev/full")


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload,no-any-return]


def test_a_closed_output_pipe_ends_quietly_with_1() -> None:
    command = [*MADE_UP, "generate", "--raw", "--ignore-eos", "--prompt", "a", "--prompt", "b", "--quiet"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["generate", "--help"]])
def test_help_and_version_into_a_closed_pipe_end_quietly_with_1(words: list[str]) -> None:
    process = subprocess.Popen(
        [*LOOSELEAF, *words], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=120) == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize("words", [["--help"], ["generate", "--help"], ["demo", "--help"]])
def test_the_help_says_what_the_exit_codes_mean(words: list[str]) -> None:
    result = run([*LOOSELEAF, *words])
    assert result.returncode == 0
    for code in (
        "0    all done",
        "1    the run failed, or the output's reader went",
        "2    bad",
        "130  stopped",
    ):
        assert f"\n  {code}" in result.stdout


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "command", [[*LOOSELEAF, "--version"], [*MADE_UP, "generate", "--raw", "--prompt", "a"]]
)
def test_output_that_cannot_be_written_is_one_sentence_and_ends_with_1(command: list[str]) -> None:
    with FULL.open("w") as full:
        process = subprocess.run(
            command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert process.returncode == 1
    assert process.stderr == "looseleaf: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("words", [["--nope"], ["--prompt", ""], ["--prompt", "a", "--stats"]])
def test_messages_that_cannot_be_written_end_with_1(words: list[str]) -> None:
    process = subprocess.Popen(
        [*MADE_UP, "generate", "--raw", *words],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.close()
    process.stdout.read()
    assert process.wait(timeout=120) == 1
    process.stdout.close()


def test_closed_standard_output_is_nowhere_to_write() -> None:
    result = run(["bash", "-c", " ".join([*LOOSELEAF, "generate --prompt a >&-"])])
    assert result.returncode == 2
    assert result.stderr == "looseleaf: standard output is closed: there is nowhere to write\n"


def test_closed_standard_error_leaves_standard_output_to_the_texts() -> None:
    words = "generate --raw --file - --json --keep-going --max-tokens 1 2>&-"
    result = run(["bash", "-c", f"""printf '"a"\\n{{\\n' | {" ".join([*MADE_UP, words])}"""])
    assert result.returncode == 2
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [0, 1]


def test_ctrl_c_while_prompts_are_read_is_one_word_and_ends_with_130(tmp_path: Path) -> None:
    fifo = tmp_path / "prompts"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [*LOOSELEAF, "generate", "--file", str(fifo)], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    with fifo.open("w"):  # returns when the other end is open
        process.send_signal(signal.SIGINT)
        _, written = process.communicate(timeout=120)
    assert process.returncode == 130
    assert written == "interrupted\n"


def test_pipes_at_both_ends_carry_a_prompt_and_the_line_that_its_reader_waits_for() -> None:
    words = " ".join([*MADE_UP, "generate --raw --ignore-eos --file - --json --quiet"])
    result = run(["bash", "-c", f"""printf '"a"\\n"b"\\n' | {words} | head -n 1"""])
    assert result.stdout.startswith('{"index": 0')
    assert result.stderr == ""


def test_closed_standard_input_is_nothing_to_read() -> None:
    result = run(["bash", "-c", " ".join([*LOOSELEAF, "generate <&-"])])
    assert result.returncode == 2
    assert "nothing to do" in result.stderr


@pytest.mark.parametrize("package", ["numpy", "torch", "transformers"])
def test_a_missing_package_ends_with_2_and_the_command_that_installs_it(package: str) -> None:
    program = textwrap.dedent(f"""
        import importlib.abc
        import sys

        class Missing(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] == "{package}":
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

        sys.meta_path.insert(0, Missing())
        from looseleaf.cli import main
        sys.exit(main(["generate", "--prompt", "hi", "--model", "smollm2", "--max-tokens", "1"]))
    """)
    result = run([sys.executable, "-c", program])
    assert result.returncode == 2, result.stderr
    assert "pip install 'looseleaf[engine]'" in result.stderr
    assert package in result.stderr
    assert "Traceback" not in result.stderr


def test_help_and_version_load_neither_numpy_nor_torch() -> None:
    program = textwrap.dedent("""
        import sys
        from looseleaf.cli import main
        for words in (["--version"], ["generate", "--help"], ["demo", "--help"]):
            try:
                main(words)
            except SystemExit as end:
                assert end.code == 0
        print(sorted({"numpy", "torch", "transformers"} & set(sys.modules)))
    """)
    result = run([sys.executable, "-c", program])
    assert result.stdout.startswith("looseleaf ")
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_module_is_the_command() -> None:
    result = run([*LOOSELEAF])
    assert result.returncode == 2
    assert result.stderr.startswith("usage: looseleaf ")
