"""Plants bugs in the Rust core, one at a time, and shows which test finds each.

The bugs are listed in `mutants/*.toml`. Each has the number of the invariant it breaks (of the pool: 1 to
14, see ARCHITECTURE.md; of the sequence manager: 21 to 26, see `KVCacheManager::check_invariants`), edits
of files below `rust/core/src` that have the `old` text exactly once, and the tests that have to find it: a
target, which is a file or folder of `rust/core/tests` or `lib`, and the path in there.

They are planted in a copy of the sources below the target folder, which is kept, so that only the core is
compiled again. A bug that does not compile, or that makes a test hang, is not found: a test has to say what
is wrong.

Exit codes: 0 if every bug was found, 1 if not, 2 if the list does not fit the sources, or if one of its
tests fails without a bug.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = Path("rust/core")
LISTS = Path(__file__).with_suffix("")

# Several times what the slowest of the listed tests needs.
TIMEOUT_S = 240

# Targets whose names begin like this run on the atomics of that scheduler, see rust/core/src/sync.rs.
SCHEDULERS = ("loom", "shuttle", "crash_stop")


@dataclass(slots=True, frozen=True)
class CoreTest:
    """One test of the core: `lib` or a file or folder of rust/core/tests, and the path of the test in it."""

    target: str
    name: str

    @classmethod
    def parse(cls, text: str) -> CoreTest:
        target, _, name = text.partition(" ")
        return cls(target, name)

    def __str__(self) -> str:
        return f"{self.target} {self.name}"

    @property
    def scheduler(self) -> str | None:
        return next((name for name in SCHEDULERS if self.target.startswith(name)), None)


@dataclass(slots=True, frozen=True)
class Edit:
    """A piece of a source, and what the bug makes of it."""

    file: Path
    old: str
    new: str


@dataclass(slots=True, frozen=True)
class Mutant:
    """A bug."""

    name: str
    invariant: str
    tests: tuple[CoreTest, ...]
    edits: tuple[Edit, ...]


@dataclass(slots=True, frozen=True)
class Finding:
    """What one test binary said."""

    outcome: str  # "passed", "failed", "did not compile", "hung" or "did not run"
    test: str = ""
    message: str = ""


def read_lists(folder: Path = LISTS) -> list[Mutant]:
    """All bugs, in the order of the lists."""

    def edit(table: dict[str, str]) -> Edit:
        return Edit(CORE / "src" / table["file"], table["old"].strip("\n"), table["new"].strip("\n"))

    return [
        Mutant(
            table["name"],
            table["invariant"],
            tuple(CoreTest.parse(text) for text in table["tests"]),
            tuple(edit(entry) for entry in table["edits"]),
        )
        for path in sorted(folder.glob("*.toml"))
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["mutants"]
    ]


def problems(mutants: Sequence[Mutant], root: Path) -> Iterator[str]:
    """Why the list does not fit the sources: one line for each reason."""
    names = [mutant.name for mutant in mutants]
    for mutant in mutants:
        if names.count(mutant.name) > 1:
            yield f"{mutant.name}: the name is not the only one"
        if not re.fullmatch(r"INV-[1-9][0-9]*", mutant.invariant):
            yield f"{mutant.name}: {mutant.invariant!r} is not the number of an invariant"
        for edit in mutant.edits:
            count = (root / edit.file).read_text(encoding="utf-8").count(edit.old)
            if count != 1 or not edit.old:
                yield f"{mutant.name}: {edit.file} has its old text {count} times, not once"
            if edit.new == edit.old:
                yield f"{mutant.name}: {edit.file} would stay as it is"
        if not mutant.edits or not mutant.tests:
            yield f"{mutant.name}: it needs an edit, and a test to find it"
        for test in mutant.tests:
            if not has_test(test, root):
                yield f"{mutant.name}: there is no test {test}"


def has_test(test: CoreTest, root: Path) -> bool:
    """Whether the sources have a function of that name where the test should be."""
    if test.target == "lib":
        files = list((root / CORE / "src").rglob("*.rs"))
    else:
        tests = root / CORE / "tests"
        files = [*tests.glob(f"{test.target}.rs"), *(tests / test.target).rglob("*.rs")]
    function = re.compile(rf"#\[test\]\s+(?:#\[[^\]]*\]\s+)*fn {re.escape(test.name.split('::')[-1])}\(")
    return any(function.search(file.read_text(encoding="utf-8")) for file in files)


class Scratch:
    """A copy of the workspace, to plant bugs in, and what cargo builds of it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root = root
        self.folder = folder
        self.tree = folder / "tree"
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")

    def reserve(self) -> bool:
        """Whether nobody else plants bugs in this copy, until the process ends."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def restore(self) -> None:
        """Makes the copy equal to the sources. Equal files keep their times, so cargo keeps what it built."""
        wanted = [Path("Cargo.toml"), Path("Cargo.lock")]
        wanted += [path.relative_to(self.root) for path in (self.root / "rust").rglob("*") if path.is_file()]
        for path in wanted:
            source, copy = self.root / path, self.tree / path
            if not copy.is_file() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
        # Such as the failures that proptest writes down.
        for path in (self.tree / "rust").rglob("*"):
            if path.is_file() and path.relative_to(self.tree) not in wanted:
                path.unlink()

    def plant(self, mutant: Mutant) -> None:
        """Puts the bug into the copy."""
        for edit in mutant.edits:
            file = self.tree / edit.file
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")

    def run(self, tests: Sequence[CoreTest]) -> Finding:
        """Builds the target that the tests are in, and runs them one after the other."""
        first = tests[0]
        target = ["--lib"] if first.target == "lib" else ["--test", first.target]
        command = ["cargo", "test", "--quiet", "--locked", "-p", "looseleaf", *target]
        build = self.cargo([*command, "--no-run"], first.scheduler, timeout_s=None)
        if build is None or build.returncode != 0:
            return Finding("did not compile", message=build.stderr if build else "")
        names = sorted({test.name for test in tests})
        # One at a time, so that the output says which test was running when the process died.
        run = [*command, "--", "--exact", "--test-threads=1", "--format=pretty", *names]
        done = self.cargo(run, first.scheduler, timeout_s=TIMEOUT_S)
        if done is None:
            return Finding("hung", message=f"it ran for more than {TIMEOUT_S} s")
        return read_output(done.stdout, done.returncode, len(names))

    def cargo(
        self, command: list[str], scheduler: str | None, timeout_s: float | None
    ) -> subprocess.CompletedProcess[str] | None:
        """Runs cargo in the copy; None if it took too long."""
        environment = dict(
            os.environ,
            # A target folder for each: the flag would otherwise make cargo rebuild everything each time.
            CARGO_TARGET_DIR=str(self.folder / (scheduler or "std")),
            RUSTFLAGS=f"--cfg {scheduler}" if scheduler else "",
            # Nobody debugs a mutant or wants the smallest input that shows it.
            CARGO_PROFILE_TEST_DEBUG="0",
            CARGO_PROFILE_DEV_DEBUG="0",
            PROPTEST_MAX_SHRINK_ITERS="0",
            RUST_BACKTRACE="0",
        )
        process = subprocess.Popen(
            command,
            cwd=self.tree,
            env=environment,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if timeout_s is None else subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def read_output(output: str, returncode: int, asked: int) -> Finding:
    """What a test binary said that was asked to run that many tests, one at a time."""
    ran = re.search(r"^running (\d+) tests?$", output, re.MULTILINE)
    if ran is None or int(ran[1]) != asked:
        return Finding("did not run", message=f"{ran[1] if ran else 'none'} of {asked} tests ran")
    if returncode == 0:
        return Finding("passed")
    # Only the last test that began can have neither passed nor failed: the process ended in it.
    results = re.findall(r"^test (\S+)(?: - should panic)? \.\.\.(?: (ok|FAILED)$)?", output, re.MULTILINE)
    found = next((name for name, result in results if result != "ok"), "")
    said = re.search(r"^thread '.*' (?:\(\d+\) )?panicked at .*:\n(.*)", output, re.MULTILINE)
    return Finding("failed", found, said[1] if said else f"ended with {returncode}")


def by_target(tests: Sequence[CoreTest]) -> list[list[CoreTest]]:
    """The tests grouped by the binary they are in, in the order in which the binaries are first named."""
    groups: dict[str, list[CoreTest]] = {}
    for test in tests:
        groups.setdefault(test.target, []).append(test)
    return list(groups.values())


@dataclass(slots=True, frozen=True)
class Result:
    """What became of one bug."""

    name: str
    invariant: str
    caught: bool
    outcome: str
    target: str
    test: str
    message: str
    seconds: float


def try_mutant(scratch: Scratch, mutant: Mutant) -> Result:
    """Plants a bug and runs its tests until one finds it."""
    started = time.monotonic()
    scratch.restore()
    scratch.plant(mutant)
    finding, target = Finding("passed"), ""
    for tests in by_target(mutant.tests):
        target = tests[0].target
        finding = scratch.run(tests)
        if finding.outcome != "passed":
            break
    return Result(
        name=mutant.name,
        invariant=mutant.invariant,
        caught=finding.outcome == "failed",
        outcome=finding.outcome,
        target=target,
        test=finding.test,
        message=finding.message,
        seconds=round(time.monotonic() - started, 1),
    )


def check_sound(scratch: Scratch, mutants: Sequence[Mutant]) -> list[str]:
    """Runs every listed test without a bug; says which do not pass."""
    scratch.restore()
    wrong = []
    for tests in by_target([test for mutant in mutants for test in mutant.tests]):
        print(f"without a bug: {tests[0].target}", file=sys.stderr)
        finding = scratch.run(tests)
        if finding.outcome != "passed":
            wrong.append(
                f"without a bug, {tests[0].target} {finding.test} {finding.outcome}: {finding.message}"
            )
    return wrong


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show the bugs and plant none")
    parser.add_argument("--only", metavar="NAME", help="plant the bugs whose names contain this")
    parser.add_argument("--json", action="store_true", help="print one object instead of a table")
    options = parser.parse_args(arguments)

    mutants = [mutant for mutant in read_lists() if (options.only or "") in mutant.name]
    misfits = list(problems(mutants, root)) if mutants else [f"no bug's name contains {options.only!r}"]
    if misfits:
        print("\n".join(misfits), file=sys.stderr)
        return 2
    if options.list:
        for mutant in mutants:
            print(f"{mutant.invariant:<7} {mutant.name}")
        return 0

    target_dir = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    scratch = Scratch(target_dir.resolve() / "mutants", root)
    if not scratch.reserve():
        print(f"bugs are being planted in {scratch.tree} already", file=sys.stderr)
        return 2
    wrong = check_sound(scratch, mutants)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    width = max(len(mutant.name) for mutant in mutants)
    results = []
    for mutant in mutants:
        result = try_mutant(scratch, mutant)
        results.append(result)
        what = (
            f"{result.target} {result.test}"
            if result.caught
            else f"NOT CAUGHT: {result.target} {result.outcome}"
        )
        line = f"{mutant.name:<{width}}  {mutant.invariant:<6}  {what}"
        # With --json the table is progress.
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
    scratch.restore()
    caught = sum(result.caught for result in results)
    if options.json:
        report = {"planted": len(results), "caught": caught, "rows": [asdict(result) for result in results]}
        print(json.dumps(report, indent=2))
    else:
        print(f"{len(results)} planted, {caught} caught")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
