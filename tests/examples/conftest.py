"""The examples are scripts beside the package, so they are put on the path as whoever runs them has it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
