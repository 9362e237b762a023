"""The documentation names every public name, and its Python code runs."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

import shardmc

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOT_RUN = "<!-- not run"
"""A comment before a block that starts like this, and says why, leaves the block out."""

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    """The page's Python blocks, each after as many empty lines as come before it, so that errors name its lines."""
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        before = text[: match.start(1)]
        previous = before.removesuffix("```python\n").rstrip().rsplit("\n", 1)[-1]
        if not previous.startswith(NOT_RUN):
            found.append("\n" * before.count("\n") + match[1])
    return found


PAGES = [page for page in sorted(DOCS.glob("*.md")) if blocks(page)]


def test_there_is_code_to_run():
    assert {"start.md", "certificate.md", "gibbs.md", "formulas.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("name", shardmc.__all__)
def test_every_public_name_is_in_the_reference(name):
    text = (DOCS / "api.md").read_text()
    assert re.search(rf"^\.\. (auto\w+|py:data):: shardmc\.{re.escape(name)}\b", text, re.MULTILINE), name


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    namespace = {"__name__": f"docs_{page.stem}"}
    for code in blocks(page):
        exec(compile(code, str(page), "exec"), namespace)
