"""Planting bugs: the list fits the sources, and only a test that fails counts as having found a bug."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import mutants
import pytest
from mutants import CoreTest, Edit, Finding, Mutant, Scratch

FOUND = CoreTest("loom_pool", "rings::a_push_is_seen")


def test_every_listed_bug_can_be_planted_and_every_test_that_has_to_find_one_exists():
    listed = mutants.read_lists()
    assert list(mutants.problems(listed, mutants.ROOT)) == []
    assert len(listed) >= 15


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A core of one source and one test."""
    files = {
        "Cargo.toml": "[workspace]\n",
        "Cargo.lock": "",
        "rust/core/src/ring.rs": "store(Release);\nload(Acquire);\nload(Acquire);\n",
        "rust/core/tests/loom_pool/rings.rs": "#[test]\nfn a_push_is_seen() {\n}\n",
    }
    for name, text in files.items():
        file = tmp_path / "workspace" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "workspace"


def bug(old: str = "store(Release)", new: str = "store(Relaxed)", test: CoreTest = FOUND) -> Mutant:
    return Mutant("a bug", "INV-3", (test,), (Edit(Path("rust/core/src/ring.rs"), old, new),))


@pytest.mark.parametrize(
    ("mutant", "expected"),
    [
        (bug(), []),
        (bug(old="store(SeqCst)"), ["a bug: rust/core/src/ring.rs has its old text 0 times, not once"]),
        (bug(old="load(Acquire)"), ["a bug: rust/core/src/ring.rs has its old text 2 times, not once"]),
        (bug(new="store(Release)"), ["a bug: rust/core/src/ring.rs would stay as it is"]),
        (
            bug(test=CoreTest("loom_pool", "a_pop_is_seen")),
            ["a bug: there is no test loom_pool a_pop_is_seen"],
        ),
        (bug(test=CoreTest("stress", "a_push_is_seen")), ["a bug: there is no test stress a_push_is_seen"]),
    ],
)
def test_a_bug_that_does_not_fit_the_sources_is_named_with_the_reason(workspace, mutant, expected):
    assert list(mutants.problems([mutant], workspace)) == expected


def test_a_planted_bug_is_gone_when_the_copy_is_restored_and_equal_files_keep_their_times(
    workspace, tmp_path
):
    scratch = Scratch(tmp_path / "scratch", workspace)
    scratch.restore()
    ring, other = (scratch.tree / "rust/core" / name for name in ("src/ring.rs", "tests/loom_pool/rings.rs"))
    written = other.stat().st_mtime_ns
    scratch.plant(bug())
    assert ring.read_text().startswith("store(Relaxed)")
    (scratch.tree / "rust/core/written_by_a_test.txt").touch()
    scratch.restore()
    assert ring.read_text().startswith("store(Release)")
    assert other.stat().st_mtime_ns == written
    assert not (scratch.tree / "rust/core/written_by_a_test.txt").exists()


def test_two_at_once_do_not_plant_in_one_copy(workspace, tmp_path):
    first, second = (Scratch(tmp_path / "scratch", workspace) for _ in range(2))
    assert first.reserve()
    assert not second.reserve()


PANIC = "\nthread 'rings::a_push_is_seen' (71) panicked at tests/rings.rs:9:5:\nnone free\n"


@pytest.mark.parametrize(
    ("output", "returncode", "expected"),
    [
        ("running 1 test\ntest a::b ... ok\n", 0, Finding("passed")),
        (f"running 1 test\ntest a::b ... FAILED\n{PANIC}", 101, Finding("failed", "a::b", "none free")),
        # It panicked while it panicked, so nobody wrote the result.
        (f"running 1 test\ntest a::b ... {PANIC}", -6, Finding("failed", "a::b", "none free")),
        ("running 1 test\ntest a::b ... ", -11, Finding("failed", "a::b", "ended with -11")),
        ("running 0 tests\n", 0, Finding("did not run", message="0 of 1 tests ran")),
        ("error: no such target\n", 101, Finding("did not run", message="none of 1 tests ran")),
    ],
)
def test_what_a_test_binary_said_is_read_from_its_output(output, returncode, expected):
    assert mutants.read_output(output, returncode, 1) == expected


def test_the_first_test_that_did_not_pass_is_the_one_that_found_the_bug():
    output = "running 3 tests\ntest a ... ok\ntest b - should panic ... FAILED\ntest c ... FAILED\n"
    assert mutants.read_output(output, 101, 3).test == "b"


class Told(Scratch):
    """Has a finding for each target instead of a compiler."""

    def __init__(self, folder: Path, root: Path, findings: dict[str, Finding]) -> None:
        super().__init__(folder, root)
        self.findings = findings

    def run(self, tests):
        return self.findings[tests[0].target]


@pytest.mark.parametrize("outcome", ["passed", "did not compile", "hung", "did not run"])
def test_only_a_test_that_fails_has_found_the_bug(workspace, tmp_path, outcome):
    scratch = Told(tmp_path / "scratch", workspace, {"loom_pool": Finding(outcome)})
    result = mutants.try_mutant(scratch, bug())
    assert (result.caught, result.outcome) == (False, outcome)
    assert (scratch.tree / "rust/core/src/ring.rs").read_text().startswith("store(Relaxed)")


def test_tests_are_run_until_one_finds_the_bug(workspace, tmp_path):
    findings = {
        "stress": Finding("passed"),
        "loom_pool": Finding("failed", "rings::a_push_is_seen", "none free"),
    }
    tests = (CoreTest("stress", "long"), FOUND, CoreTest("never_run", "late"))
    mutant = Mutant("a bug", "INV-3", tests, bug().edits)
    result = mutants.try_mutant(Told(tmp_path / "scratch", workspace, findings), mutant)
    assert (result.caught, result.target, result.test) == (True, "loom_pool", "rings::a_push_is_seen")


@pytest.fixture
def planting(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the script on that workspace with these bugs; the findings come one after the other."""

    def run(listed: list[Mutant], findings: list[Finding], *arguments: str) -> int:
        remaining = iter(findings)
        monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path / "target"))
        monkeypatch.setattr(mutants, "read_lists", lambda: listed)
        monkeypatch.setattr(Scratch, "run", lambda *_: next(remaining))
        return mutants.main(arguments, workspace)

    return run


SOUND = Finding("passed")  # Before all bugs, the tests run without one.
FAILED = Finding("failed", FOUND.name, "none free")


@pytest.mark.parametrize(("finding", "caught"), [(FAILED, 1), (Finding("passed"), 0), (Finding("hung"), 0)])
def test_the_last_line_counts_and_the_exit_code_says_whether_all_were_found(
    planting, capsys, finding, caught
):
    assert planting([bug()], [SOUND, finding]) == 1 - caught
    assert capsys.readouterr().out.splitlines()[-1] == f"1 planted, {caught} caught"


def test_the_object_has_a_row_for_each_bug(planting, capsys):
    assert planting([bug()], [SOUND, FAILED], "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["planted"], report["caught"]) == (1, 1)
    assert [(row["name"], row["test"], row["message"]) for row in report["rows"]] == [
        ("a bug", "rings::a_push_is_seen", "none free")
    ]


def test_bugs_are_listed_and_chosen_by_name(planting, capsys):
    listed = [bug(), dataclasses.replace(bug(), name="another")]
    assert planting(listed, [], "--list", "--only", "bug") == 0
    assert capsys.readouterr().out == "INV-3   a bug\n"
    assert planting(listed, [], "--only", "nothing like it") == 2


def test_a_list_that_does_not_fit_the_sources_is_refused_before_anything_runs(planting, capsys):
    assert planting([bug(old="no such text")], []) == 2
    assert "has its old text 0 times" in capsys.readouterr().err


def test_nothing_is_planted_while_a_listed_test_fails_without_a_bug(planting, capsys):
    assert planting([bug()], [FAILED]) == 2
    assert "without a bug, loom_pool rings::a_push_is_seen failed: none free" in capsys.readouterr().err
