"""Refuses a wheel that is too large, or that carries what does not belong to the package."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

LIMIT_BYTES = 3_000_000


def main(paths: list[str]) -> int:
    if len(paths) != 1:
        print(f"expected exactly one wheel, found {len(paths)}: {paths}", file=sys.stderr)
        return 2
    wheel = Path(paths[0])
    size_bytes = wheel.stat().st_size
    names = zipfile.ZipFile(wheel).namelist()
    problems = [f"unexpected file: {name}" for name in names if not name.startswith("looseleaf")]
    if not any(name.startswith("looseleaf/_core.") and name.endswith(".so") for name in names):
        problems.append("the extension looseleaf/_core is missing")
    if "looseleaf/py.typed" not in names or "looseleaf/_core.pyi" not in names:
        problems.append("the type information (py.typed, _core.pyi) is missing")
    if size_bytes >= LIMIT_BYTES:
        problems.append(f"{size_bytes:,} bytes, the limit is {LIMIT_BYTES:,}")
    for problem in problems:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    if not problems:
        print(f"{wheel.name}: {size_bytes:,} bytes in {len(names)} files")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
