"""How much faster is the pool than vLLM's, measured from Python in one process?

Both sides run in turns in vLLM's environment, on the same inputs, and the figures are medians. The first run
makes the environment. Each row's docstring in ``vllm_rows/`` says what the two sides do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

from comparison.alternation import alternate
from comparison.report import Report, Row, machine

from peers import vllm_environment

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent / "python"


def main() -> int:
    args = parse_arguments()
    if importlib.util.find_spec("vllm") is None:
        start_in_environment(args.peer_env)
    report = measure(args.rows, args.repeats, args.sample_s)
    print(json.dumps(report.as_json()) if args.json else report.as_table())
    return int(args.check and not report.met)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a row misses its goal")
    parser.add_argument(
        "--rows", type=lambda names: names.split(","), metavar="NAME,…", help="only these rows (default: all)"
    )
    parser.add_argument("--repeats", type=int, default=15, help="samples of each side (default: %(default)s)")
    parser.add_argument(
        "--sample-s", type=float, default=0.2, help="seconds that a sample lasts (default: %(default)s)"
    )
    parser.add_argument(
        "--peer-env",
        type=Path,
        default=vllm_environment.default_directory(),
        metavar="DIR",
        help="where vLLM's environment is, or is to be made (default: %(default)s)",
    )
    args = parser.parse_args()
    if args.repeats < 1 or args.sample_s <= 0:
        parser.error("--repeats must be at least 1 and --sample-s above 0")
    return args


def start_in_environment(directory: Path) -> None:
    """Go on as this script under the interpreter that has vLLM, with our package on its path."""
    python = vllm_environment.ensure(directory)
    paths = [str(PACKAGE_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Standard output is the table's, or the JSON object's.
    environment = {"VLLM_LOGGING_STREAM": "ext://sys.stderr"} | os.environ
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    os.execve(python, [str(python), __file__, *sys.argv[1:]], environment)


def measure(names: list[str] | None, repeats: int, sample_s: float) -> Report:
    """Measure the rows of these names, all if None."""
    from vllm_rows import ROWS

    unknown = [name for name in names or () if name not in ROWS]
    if unknown:
        print(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}", file=sys.stderr)
        sys.exit(2)
    rows = []
    for name in names or ROWS:
        spec = ROWS[name]
        comparison = spec.compare()
        for disagreement in comparison.disagreements:
            print(f"{name}: {disagreement}", file=sys.stderr)
        ours, peer = alternate(comparison, repeats, sample_s)
        ratio = peer / ours
        rows.append(
            Row(
                name=name,
                unit=spec.unit,
                ours=ours * spec.per_second,
                peer_name="vLLM",
                peer=peer * spec.per_second,
                ratio=ratio,
                goal=spec.goal,
                met=ratio >= spec.goal and not comparison.disagreements,
            )
        )
    return Report(machine(), versions(), rows)


def versions() -> dict[str, str]:
    """What both sides were measured with."""
    import platform

    import numpy
    import vllm

    import looseleaf

    return {
        "looseleaf": looseleaf.__version__,
        "vllm": vllm.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
