"""The embedding guide: its code runs, its links lead somewhere, its table of errors is complete and right."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

import pytest

from looseleaf import errors

GUIDE = Path(__file__).parents[2] / "docs" / "embedding.md"
TEXT = GUIDE.read_text(encoding="utf-8")
CHAPTERS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("title", [title for title, chapter in CHAPTERS.items() if CODE.search(chapter)])
def test_the_code_of_a_chapter_runs_from_top_to_bottom(title):
    # Blank lines in the place of all that is not code: a failure names the line of the page.
    start = TEXT.index(f"## {title}\n")
    end = start + len(CHAPTERS[title]) + len(f"## {title}\n")
    page = ["\n" * TEXT.count("\n", 0, start)]
    position = start
    for block in CODE.finditer(TEXT, start, end):
        page += ["\n" * TEXT.count("\n", position, block.start(1)), block[1]]
        position = block.end(1)
    exec(compile("".join(page), GUIDE, "exec"), {"__name__": "embedding"})


def test_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    assert [target for target in targets if not (GUIDE.parent / target).exists()] == []


def test_the_table_of_errors_names_each_that_pool_or_manager_can_raise_and_what_it_is():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", CHAPTERS["Errors"], re.MULTILINE)
    classes = {name: getattr(errors, name) for name, _ in rows}
    assert all(issubclass(classes[name], getattr(builtins, base)) for name, base in rows)
    families = (errors.PoolError, errors.ManagerError)
    raised = {
        name
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, families) and error not in families
    }
    others = {"RequestError", "InvalidBufferError", "InvalidConfigError", "InvariantError"}
    assert set(classes) == raised | others
