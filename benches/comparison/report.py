"""The result of a comparison, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report; ``ratio`` is above 1 where ours is better, and should reach ``goal``."""

    name: str
    unit: str
    ours: float
    peer_name: str
    peer: float
    ratio: float
    goal: float
    met: bool


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of one run, with what they depend on."""

    machine: str
    versions: Mapping[str, str]
    rows: Sequence[Row]

    @property
    def met(self) -> bool:
        """Whether every row reaches its goal."""
        return all(row.met for row in self.rows)

    def as_json(self) -> dict[str, object]:
        """The object that ``--json`` prints."""
        rows = [asdict(row) for row in self.rows]
        return {"machine": self.machine, "versions": dict(self.versions), "rows": rows}

    def as_table(self) -> str:
        """The lines that a terminal shows."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        width = max(len(row.name) for row in self.rows)
        lines = [self.machine, versions, ""]
        lines.append(f"{'row':<{width}} {'unit':>5} {'ours':>11} {'peer':>11} {'ratio':>7} {'goal':>6}")
        for row in self.rows:
            verdict = "met" if row.met else "not met"
            lines.append(
                f"{row.name:<{width}} {row.unit:>5} {row.ours:>11.3f} {row.peer:>11.3f} {row.ratio:>7.2f} "
                f"{row.goal:>6g} {verdict}"
            )
        return "\n".join(lines)


def machine() -> str:
    """Processor, cores that this process may use, kernel, and how busy the machine is as the run begins."""
    cores = len(os.sched_getaffinity(0))
    return f"{_processor()}, {cores} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.2f}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
