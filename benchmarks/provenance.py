"""Tables of the benchmarks: Markdown with the date, the machine and the versions that made them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from shardmc.store.records import package_versions

DOCS = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


def machine() -> str:
    """Cores, memory and processor of this machine, in words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.machine()}, Python {platform.python_version()}"
    )


def header(script: str, extra: str = "") -> str:
    """The line under a table's title: how to make it again, when and where it was made."""
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    more = f" {extra}" if extra else ""
    return f"Made by `python benchmarks/{script}` on {date.today()}: {machine()}; {versions}.{more}\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; floats in four significant digits."""

    def cell(value: object) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(v) for v in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def publish(name: str, text: str, quick: bool) -> None:
    """Print a result; the full version also goes into the documentation."""
    print(text)
    if not quick:
        DOCS.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text)
