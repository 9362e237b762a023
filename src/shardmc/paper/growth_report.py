"""Errors against N and M on log-log axes with fitted slopes, and the same in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmc.paper.growth import FIXED_ROWS, RATES, Curve
from shardmc.paper.result import Table
from shardmc.paper.style import canvas, legend_above

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


@dataclass(frozen=True)
class Growth:
    """Curves with K = N^g for each rate g, and one with N fixed."""

    curves: Sequence[Curve]
    fixed: Curve
    lines: Mapping[str, dict[str, Any]]  # name -> how its line is drawn
    error: str  # what is measured, in words

    @property
    def slopes(self) -> dict[str, list[float]]:
        """Slope against N of every name for every rate."""
        return {name: [curve.slope(name, curve.rows) for curve in self.curves] for name in self.lines}

    def slope_table(self, note: str) -> Table:
        rows = tuple((name, *(f"{s:.2f}" for s in values)) for name, values in self.slopes.items())
        columns = ("", *(f"K = N^{rate:g}" for rate in RATES))
        return Table(f"Slopes of the logarithm of the {self.error} against log N", columns, rows, note)

    def value_table(self) -> Table:
        rows = [
            (f"{n:,}", f"{k:,}", *(f"{curve.errors[name][i]:.1e}" for name in self.lines))
            for curve in self.curves
            for i, (n, k) in enumerate(zip(curve.rows.tolist(), curve.shards.tolist(), strict=True))
        ]
        return Table(self.error.capitalize(), ("N", "K", *self.lines), tuple(rows))

    def numbers(self) -> dict[str, Any]:
        """Everything, for the JSON file."""
        return {
            "slopes_against_N": {
                name: dict(zip(map(str, RATES), values, strict=True)) for name, values in self.slopes.items()
            },
            "slopes_against_M_at_fixed_N": {
                name: self.fixed.slope(name, self.fixed.shard_rows) for name in self.lines
            },
            "curves": [
                {"rate": rate, **_values(curve)} for rate, curve in zip(RATES, self.curves, strict=True)
            ],
            "fixed_N": _values(self.fixed),
        }

    def draw(self) -> Canvas:
        figure, panels = canvas(2, 2, height=2.7)
        titles = [*(f"$K = N^{{{rate:g}}}$" for rate in RATES), _fixed_title()]
        for panel, title, curve in zip(panels.flat, titles, [*self.curves, self.fixed], strict=True):
            grows = curve is not self.fixed
            self._lines(panel, curve, curve.rows if grows else curve.shard_rows)
            panel.set_title(title)
            panel.set_xlabel("number of rows $N$" if grows else "rows of a shard $M$")
            panel.set_ylabel(self.error)
        legend_above(figure, panels[0, 0])
        return figure

    def _lines(self, panel: Any, curve: Curve, against: np.ndarray) -> None:
        for name, line in self.lines.items():
            panel.loglog(against, curve.errors[name], label=name, markersize=4, linewidth=1.3, **line)
        left, right = panel.get_xlim()
        panel.set_xlim(left, right * (right / left) ** 0.2)  # room for the slopes
        end = int(np.argmax(against))
        # A line marked by crosses lies on another one.
        named = [name for name, line in self.lines.items() if line["marker"] != "x"]
        heights = _apart(np.array([curve.errors[name][end] for name in named]), *panel.get_ylim())
        for name, height in zip(named, heights, strict=True):
            text = f"slope {curve.slope(name, against):.2f}".replace("-", "\N{MINUS SIGN}")
            panel.annotate(
                text,
                (against[end], height),
                xytext=(6, 0),
                textcoords="offset points",
                fontsize=7,
                va="center",
                color=self.lines[name]["color"],
            )


def _apart(heights: np.ndarray, low: float, high: float) -> np.ndarray:
    """Heights on a log axis moved up where labels there would overlap."""
    gap = 0.05 * np.log(high / low)
    placed = np.log(heights)
    order = np.argsort(placed)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    return np.exp(placed)


def _fixed_title() -> str:
    return f"$N = 10^{{{round(np.log10(FIXED_ROWS))}}}$"


def _values(curve: Curve) -> dict[str, Any]:
    errors = {name: values.tolist() for name, values in curve.errors.items()}
    return {"N": curve.rows.tolist(), "K": curve.shards.tolist(), "error": errors}
