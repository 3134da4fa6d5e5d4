"""How many instructions does each operation of the core take, and has that grown?

Counted under callgrind, so that it does not matter how busy the machine is: a row makes N calls in one run
and 2 N in another, and what the second run adds is theirs. ``instructions.json`` holds what each may take;
``--check`` allows a tenth more, and ``--update`` writes what was counted.

Which processor the machine has does not matter either, as long as it is an x86-64 with AVX2: callgrind shows
the same made-up one to every program on those. Rows marked "not checked" choose their code by what that one
offers, which changes with callgrind's version. The compiler and the C library matter to all rows.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comparison.report import machine

ROOT = Path(__file__).resolve().parent.parent
RECORD = Path(__file__).with_suffix(".json")
ALLOWED_GROWTH = 0.10


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the program in ``rust/core/benches/instructions``."""

    name: str
    calls: int
    checked: bool


@dataclass(frozen=True, slots=True)
class Row:
    """``ours`` is what was counted, ``peer`` what is recorded; the goal is for ``ratio``."""

    name: str
    unit: str
    ours: int
    peer_name: str
    peer: int | None
    ratio: float | None
    goal: float | None
    met: bool | None


def main() -> int:
    args = parse_arguments()
    if shutil.which("valgrind") is None:
        print(
            "valgrind is not on the path; Debian and Ubuntu have it in a package of that name",
            file=sys.stderr,
        )
        return 1
    program = build()
    operations = list_operations(program)
    counts = count(program, operations)
    record: dict[str, Any] = {"versions": {}, "instructions": {}}
    if args.update:
        record = {"versions": versions(), "instructions": counts}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")
    elif RECORD.exists():
        record = json.loads(RECORD.read_text())
    rows = compare(operations, counts, record["instructions"])
    if args.json:
        report = {"machine": machine(), "versions": versions(), "rows": [asdict(row) for row in rows]}
        print(json.dumps(report))
    else:
        print("\n".join(table(rows, versions(), record["versions"])))
    complaints = list(complaints_about(rows, record["instructions"]))
    if args.check and complaints:
        print("\n".join(complaints), file=sys.stderr)
        print("if it is meant to be so: python benches/instructions.py --update", file=sys.stderr)
    return int(args.check and bool(complaints))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 when an operation takes over a tenth more than is recorded, or is not recorded",
    )
    parser.add_argument("--update", action="store_true", help="record what was counted")
    return parser.parse_args()


def build() -> Path:
    """The program, compiled with the release profile."""
    command = ["cargo", "bench", "--locked", "--no-run", "-p", "looseleaf", "--bench", "instructions"]
    output = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    artifacts = [json.loads(line) for line in output.splitlines()]
    executables = [message["executable"] for message in artifacts if message.get("executable")]
    return Path(executables[-1])


def list_operations(program: Path) -> list[Operation]:
    listing = subprocess.run([program, "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = (line.split("\t") for line in listing.splitlines())
    return [Operation(name, int(calls), is_portable == "true") for name, calls, is_portable in rows]


def count(program: Path, operations: list[Operation]) -> dict[str, int]:
    """Instructions per call, of each operation."""
    with ThreadPoolExecutor() as runs:
        once = runs.map(lambda each: instructions(program, each.name, each.calls), operations)
        twice = runs.map(lambda each: instructions(program, each.name, 2 * each.calls), operations)
        measured = zip(operations, once, twice, strict=True)
        return {each.name: round((more - less) / each.calls) for each, less, more in measured}


def instructions(program: Path, name: str, calls: int) -> int:
    """Instructions of one whole run."""
    callgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    run = subprocess.run([*callgrind, program, "run", name, str(calls)], stderr=subprocess.PIPE, text=True)
    collected = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode != 0 or collected is None:
        raise RuntimeError(f"{name}, {calls} calls, failed under callgrind:\n{run.stderr}")
    return int(collected[1])


def compare(operations: list[Operation], counts: Mapping[str, int], recorded: Mapping[str, int]) -> list[Row]:
    """Each operation beside its record."""
    rows = []
    for each in operations:
        ours, peer = counts[each.name], recorded.get(each.name)
        ratio = peer / ours if peer is not None else None
        goal = 1 / (1 + ALLOWED_GROWTH) if each.checked else None
        met = None if goal is None else ratio is not None and ratio >= goal
        rows.append(Row(each.name, "instructions", ours, "recorded", peer, ratio, goal, met))
    return rows


def complaints_about(rows: list[Row], recorded: Mapping[str, int]) -> Iterator[str]:
    """What fails a check, a line each."""
    for row in rows:
        if row.peer is None:
            yield f"{row.name}: not recorded"
        elif row.met is False:
            growth = row.ours / row.peer - 1
            yield f"{row.name}: {row.ours} instructions, {row.peer} recorded: {growth:+.1%}"
    for name in recorded.keys() - {row.name for row in rows}:
        yield f"{name}: recorded, but there is no such operation"


def versions() -> dict[str, str]:
    """What else a count depends on."""
    commands = {"rustc": ["rustc", "--version"], "valgrind": ["valgrind", "--version"]}
    outputs = {
        name: subprocess.check_output(command, text=True).split() for name, command in commands.items()
    }
    return {
        "rustc": outputs["rustc"][1],
        "valgrind": outputs["valgrind"][0].removeprefix("valgrind-"),
        "C library": " ".join(platform.libc_ver()),
        "architecture": platform.machine(),
    }


def table(rows: list[Row], versions: Mapping[str, str], recorded_with: Mapping[str, Any]) -> Iterator[str]:
    yield from (
        f"{name} {version}, recorded with {recorded_with.get(name, 'nothing')}"
        for name, version in versions.items()
    )
    width = max(len(row.name) for row in rows)
    yield f"\n{'instructions per call':<{width}} {'now':>9} {'recorded':>9} {'growth':>7}"
    for row in rows:
        recorded = "–" if row.peer is None else str(row.peer)
        growth = "–" if row.peer is None else f"{row.ours / row.peer - 1:+.1%}"
        verdict = {True: "", False: " not met", None: " not checked"}[row.met]
        yield f"{row.name:<{width}} {row.ours:>9} {recorded:>9} {growth:>7}{verdict}"


if __name__ == "__main__":
    sys.exit(main())
