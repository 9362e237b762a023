"""Every promise of docs/guarantees.md names a test that exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "guarantees.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_a_test_that_exists():
    named = NAMED.findall(PAGE.read_text())
    assert len(named) > 20
    missing = [f"{file}::{name}" for file, name in named if name not in functions_of(TESTS / file)]
    assert missing == []


def test_every_row_of_a_table_names_a_test():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    promises = [line for line in rows if line != "| promise | test |"]
    assert [line for line in promises if not NAMED.search(line)] == []
