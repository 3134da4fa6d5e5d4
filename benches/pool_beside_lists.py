"""What do the pool's operations cost beside a list behind a lock, on one thread and on two?

Runs the benchmark of that question, ``rust/core/benches/throughput``, and prints the medians that
criterion found: nanoseconds per block, of each thread. There is no goal: most rows are lost, for the
reasons in ``README.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from comparison.report import machine

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("spinlock", "mutex")
# For seeing whether everything runs: what is printed then is noise.
HURRIED = ["--warm-up-time", "0.05", "--measurement-time", "0.1", "--sample-size", "10"]


def main() -> int:
    args = parse_arguments()
    with TemporaryDirectory() as results:
        run(args.rows, HURRIED if args.hurry else [], results, quiet=args.json)
        medians = read_medians(Path(results))
    if args.json:
        report = {"machine": machine(), "versions": versions(), "rows": list(json_rows(medians))}
        print(json.dumps(report))
    else:
        print("\n".join(table(medians)))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 when a goal is missed; there is none"
    )
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows whose names contain this")
    parser.add_argument("--hurry", action="store_true", help="see whether it runs, without measuring")
    return parser.parse_args()


def run(rows: str, options: list[str], results: str, *, quiet: bool) -> None:
    """Criterion's own report goes to standard error, so that the table is all there is on standard output."""
    cargo = ["cargo", "bench", "--locked", "--quiet", "-p", "looseleaf", "--bench", "throughput", "--"]
    environment = os.environ | {"CRITERION_HOME": results}
    output = subprocess.DEVNULL if quiet else sys.stderr
    subprocess.run([*cargo, *options, rows], cwd=ROOT, env=environment, stdout=output, check=True)


def read_medians(results: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Nanoseconds per block, by operation and number of threads, and by pool."""
    medians: dict[tuple[str, str], dict[str, float]] = {}
    for path in sorted(results.glob("**/new/benchmark.json"), key=lambda path: path.stat().st_mtime_ns):
        benchmark = json.loads(path.read_text())
        estimates = json.loads(path.with_name("estimates.json").read_text())
        per_block = estimates["median"]["point_estimate"] / benchmark["throughput"]["Elements"]
        row = medians.setdefault((benchmark["group_id"], benchmark["value_str"]), {})
        row[benchmark["function_id"]] = per_block
    return medians


def json_rows(medians: Mapping[tuple[str, str], Mapping[str, float]]) -> Iterator[dict[str, Any]]:
    for (operation, threads), row in medians.items():
        for peer in PEERS:
            yield {
                "name": f"{operation}, {threads}",
                "unit": "ns per block",
                "ours": row["pool"],
                "peer_name": f"{peer} list",
                "peer": row[peer],
                "ratio": row[peer] / row["pool"],
                "goal": None,
                "met": None,
            }


def table(medians: Mapping[tuple[str, str], Mapping[str, float]]) -> Iterator[str]:
    yield machine()
    yield ", ".join(f"{name} {version}" for name, version in versions().items())
    width = max(len(operation) for operation, _ in medians)
    heading = f"{'pool':>8} {'spinlock':>9} {'mutex':>8} {'ratios':>11}"
    yield f"\n{'ns per block, median':<{width}} {'':>9} {heading}"
    for (operation, threads), row in medians.items():
        ratios = " ".join(f"{row[peer] / row['pool']:5.2f}" for peer in PEERS)
        figures = f"{row['pool']:>8.2f} {row['spinlock']:>9.2f} {row['mutex']:>8.2f}"
        yield f"{operation:<{width}} {threads:>9} {figures} {ratios:>11}"


def versions() -> dict[str, str]:
    """What both sides were compiled with."""
    return {"rustc": subprocess.check_output(["rustc", "--version"], text=True).split()[1]}


if __name__ == "__main__":
    sys.exit(main())
