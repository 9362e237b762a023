"""What a reproduced result consists of, how its figures look, and how it is written: Markdown, JSON and one page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar

from shardmc.guards.files import write_file

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")


class Line(TypedDict):
    """Colour and dashes of a curve, in Matplotlib's terms."""

    color: str
    linestyle: str | tuple[float, tuple[float, ...]]


class WideLine(Line):
    """The same, and its width."""

    linewidth: float


# The palette of Okabe and Ito.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)

METHODS: dict[str, WideLine] = {
    "posterior": {"color": BLACK, "linestyle": "-", "linewidth": 2.2},
    "CMC": {"color": RED, "linestyle": (0, (5, 2)), "linewidth": 1.5},
    "AR": {"color": BLUE, "linestyle": (0, (3, 1.5)), "linewidth": 1.6},
    "WS": {"color": PURPLE, "linestyle": (0, (1, 1)), "linewidth": 1.7},
    "MP": {"color": GREEN, "linestyle": "-.", "linewidth": 1.5},
    "shardmc": {"color": ORANGE, "linestyle": (0, (6, 2, 1, 2)), "linewidth": 1.8},
}
"""Line of each method. The posterior is drawn below the others."""


@contextmanager
def printed() -> Iterator[None]:
    """Fonts and lines for a printed page, while figures are drawn and saved."""
    import matplotlib as mpl

    with mpl.rc_context(
        {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.labelsize": 9,
            "legend.fontsize": 9,
            "xtick.labelsize": 8,
            "ytick.labelsize": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.hashsalt": "shardmc",
            "svg.fonttype": "path",
        }
    ):
        yield


def canvas(rows: int, columns: int, width: float = 7.2, height: float = 2.3) -> tuple[Canvas, np.ndarray]:
    """A figure and its panels (rows, columns), `height` inches per row, without pyplot's global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def few_ticks(axes: Axes) -> None:
    """At most about four ticks on either axis."""
    axes.locator_params(axis="x", nbins=4)
    axes.locator_params(axis="y", nbins=4)


def legend_above(figure: Canvas, panel: Axes, columns: int = 6) -> None:
    """One legend for all panels, above them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=min(len(labels), columns),
        frameon=False,
        fontsize=9,
    )


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure and how to draw it."""

    name: str
    caption: str
    draw: Callable[[], Canvas]


@dataclass(frozen=True)
class Claim:
    """A sentence, and whether the numbers support it."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Reproduction:
    """One table or figure of the paper, recomputed."""

    name: str
    title: str
    text: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    claims: tuple[Claim, ...] = ()
    numbers: Mapping[str, object] = field(default_factory=dict)
    """Settings and raw values, for the JSON file."""


@dataclass(frozen=True)
class Call:
    """How to recompute a result: the quick or the full version, the seed, and whom to tell about progress."""

    quick: bool = False
    seed: int = 0
    covtype: str | None = None
    tell: Callable[[int, int], None] = lambda done, total: None
    """Called with the number of finished steps and their total."""

    def choose(self, full: T, quick: T) -> T:
        """The setting of the full version or of the quick one."""
        return quick if self.quick else full


def scientific(value: float | None) -> str:
    """A number with three digits, as in the tables.

    >>> scientific(0.000103)
    '1.03e-04'
    """
    if value is None:
        return "–"
    return f"{value:.2e}" if value == 0 or not 0.01 <= abs(value) < 1000 else f"{value:.3g}"


def prose(name: str) -> tuple[str, ...]:
    """The paragraphs of `text/NAME.md`.

    >>> prose("theorem-1")[0][:18]
    'Rows are geometric'
    """
    text = files("shardmc.paper").joinpath("text", f"{name}.md").read_text("utf-8")
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())


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


class Provenance(TypedDict):
    """When, how and with which versions a result was recomputed."""

    date: str
    quick: bool
    seed: int
    seconds: float
    """Wall time."""
    cpu_seconds: float
    cores: int | None
    peak_memory_gb: float | None
    versions: dict[str, str]


def write_result(result: Reproduction, out: Path, provenance: Provenance) -> list[Path]:
    """Write the Markdown, JSON and figures of one result. Returns the files, the Markdown first."""
    out.mkdir(parents=True, exist_ok=True)
    written = [out / f"{result.name}.md", out / f"{result.name}.json"]
    _write(written[0], markdown(result, provenance))
    _write(written[1], json.dumps(_record(result, provenance), indent=1, allow_nan=False) + "\n")
    with printed():
        for figure in result.figures:
            canvas = figure.draw()
            for suffix in ("png", "svg"):
                path = out / f"{figure.name}.{suffix}"
                # Without a date, the same numbers give the same file.
                canvas.savefig(path, dpi=200, metadata={"Date": None} if suffix == "svg" else None)
                written.append(path)
    return written


def write_index(out: Path) -> Path:
    """Write one page of all results whose JSON is in the folder."""
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


def markdown(result: Reproduction, provenance: Provenance) -> str:
    """A result as Markdown, figures by their file names."""
    parts = [f"# {result.title}", *result.text]
    if result.claims:
        parts.append("\n".join(f"- {'✓' if c.holds else '✗'} {c.text}" for c in result.claims))
    for table in result.tables:
        parts += [f"## {table.title}", _grid(table.columns, table.rows)]
        if table.note:
            parts.append(table.note)
    for figure in result.figures:
        parts += [f"![{figure.caption}]({figure.name}.svg)", f"*{figure.caption}*"]
    parts.append(_origin(provenance))
    return "\n\n".join(parts) + "\n"


def _record(result: Reproduction, provenance: Provenance) -> dict[str, object]:
    """A result as its JSON file has it."""
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


def _table(table: Table) -> dict[str, object]:
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


def _origin(provenance: Provenance) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    kind = "quick version" if provenance["quick"] else "full version"
    less = " Fewer rows, draws and data sets than the text says." if provenance["quick"] else ""
    memory = provenance["peak_memory_gb"]
    peak = "" if memory is None else f", at most {memory:.1f} GB"
    return (
        f"Recomputed on {provenance['date']} with seed {provenance['seed']} ({kind}, {provenance['seconds']:.0f} s of "
        f"wall time, {provenance['cpu_seconds']:.0f} s of CPU time on {provenance['cores']} cores{peak}): "
        f"{versions}.{less}"
    )


def _write(path: Path, text: str) -> None:
    write_file(path, text.encode("utf-8"))
