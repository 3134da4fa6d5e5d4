"""What only a process of its own can show: pipes, signals, missing packages, and what is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MADE_UP = [sys.executable, str(Path(__file__).with_name("made_up_llm.py"))]
LOOSELEAF = [sys.executable, "-m", "looseleaf"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


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
