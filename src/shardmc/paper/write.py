"""Results on disk: Markdown and JSON for each, figures as PNG and SVG, and one page that shows all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from shardmc.paper.result import Result, Table
from shardmc.paper.style import printed
from shardmc.store.files import write_file

INDEX = "index.html"
ORDER = (
    "table-1",
    "table-2",
    "table-3",
    "figure-1",
    "figure-2",
    "theorem-1",
    "remark-2",
    "nonparametric",
)
"""The results in the order in which the paper has them."""


def write_result(result: Result, out: Path, provenance: dict[str, Any]) -> list[Path]:
    """Write one result's Markdown, JSON and figures; the files, the Markdown first."""
    out.mkdir(parents=True, exist_ok=True)
    record = _record(result, provenance)
    written = [out / f"{result.name}.md", out / f"{result.name}.json"]
    _write(written[0], markdown(record))
    _write(written[1], json.dumps(record, indent=1, allow_nan=False) + "\n")
    with printed():
        for figure in result.figures:
            canvas = figure.draw()
            for suffix in ("png", "svg"):
                path = out / f"{figure.name}.{suffix}"
                # No date inside: the same numbers give the same file.
                canvas.savefig(path, dpi=200, metadata={"Date": None} if suffix == "svg" else None)
                written.append(path)
    return written


def write_index(out: Path) -> Path:
    """One page of all results whose JSON lies in the folder."""
    from jinja2 import Environment

    records = [
        json.loads((out / f"{name}.json").read_text("utf-8"))
        for name in ORDER
        if (out / f"{name}.json").exists()
    ]
    template = files("shardmc.paper").joinpath("page.html").read_text("utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    path = out / INDEX
    _write(path, page.render(results=records))
    return path


def markdown(record: dict[str, Any]) -> str:
    """A result as Markdown, figures by their file names."""
    parts = [f"# {record['title']}", *record["text"]]
    if record["claims"]:
        parts.append("\n".join(f"- {'✓' if c['holds'] else '✗'} {c['text']}" for c in record["claims"]))
    for table in record["tables"]:
        parts += [f"## {table['title']}", _grid(table["columns"], table["rows"])]
        if table["note"]:
            parts.append(table["note"])
    for figure in record["figures"]:
        parts += [f"![{figure['caption']}]({figure['name']}.svg)", f"*{figure['caption']}*"]
    parts.append(_origin(record["provenance"]))
    return "\n\n".join(parts) + "\n"


def _record(result: Result, provenance: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": result.name,
        "title": result.title,
        "text": list(result.text),
        "claims": [{"text": c.text, "holds": bool(c.holds)} for c in result.claims],
        "tables": [_table(t) for t in result.tables],
        "figures": [{"name": f.name, "caption": f.caption} for f in result.figures],
        "numbers": dict(result.numbers),
        "provenance": provenance,
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [list(r) for r in table.rows],
        "note": table.note,
    }


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(entries: Sequence[str]) -> str:
        return "| " + " | ".join(entry.replace("|", "\\|") for entry in entries) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, rows)])


def _origin(provenance: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    kind = "quick version" if provenance["quick"] else "full version"
    less = " Fewer rows, draws and data sets than the text says." if provenance["quick"] else ""
    memory = provenance["peak_memory_gb"]
    peak = "" if memory is None else f", at most {memory:.1f} GB"
    return (
        f"Recomputed on {provenance['date']} with seed {provenance['seed']} ({kind}, {provenance['seconds']:.0f} s by "
        f"the clock, {provenance['cpu_seconds']:.0f} s of computing on {provenance['cores']} cores{peak}): "
        f"{versions}.{less}"
    )


def _write(path: Path, text: str) -> None:
    write_file(path, text.encode("utf-8"))
