"""The tools are scripts, not a package: their folder joins the path as it does when one of them runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
