"""Theorem 1 and Remark 2 in numbers: how errors change with the number of rows and of shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shardmc.paper.beta import COMBINATIONS, TRUE, Shards
from shardmc.paper.result import (
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    Call,
    Claim,
    Figure,
    Line,
    Reproduction,
    Table,
    canvas,
    legend_above,
    prose,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


RATES = (0.25, 0.5, 0.75)
"""Exponents g of K = N^g, the number of shards."""
FIXED_ROWS = 10**5

Measure: TypeAlias = Callable[[Shards], Mapping[str, float]]


@dataclass(frozen=True)
class Curve:
    """Mean errors of several combinations along a sequence of (N, K)."""

    rows: np.ndarray  # (point,) N
    shards: np.ndarray  # (point,) K
    errors: Mapping[str, np.ndarray]  # name -> (point,)

    @property
    def shard_rows(self) -> np.ndarray:
        """M = N / K."""
        return self.rows / self.shards

    def slope(self, name: str, against: np.ndarray) -> float:
        """Least-squares slope of log error against the logarithm of N or M."""
        return float(np.polyfit(np.log(against), np.log(self.errors[name]), 1)[0])


def measured(measure: Measure, call: Call) -> tuple[list[Curve], Curve]:
    """A curve with K = N^g for each rate, and one with N fixed."""
    curves = []
    for done, rate in enumerate(RATES):
        call.tell(done, len(RATES) + 1)
        curves.append(_with_growing_rows(rate, measure, call))
    call.tell(len(RATES), len(RATES) + 1)
    fixed = _with_fixed_rows(measure, call)
    call.tell(len(RATES) + 1, len(RATES) + 1)
    return curves, fixed


def _with_growing_rows(rate: float, measure: Measure, call: Call) -> Curve:
    # A million rows at the fastest growth would be 30,000 shards, so the last half decade is left out.
    last = call.choose(6.0 if rate < 0.7 else 5.5, 4.5)
    rows = np.round(10 ** np.arange(3.0, last + 0.01, 0.5)).astype(int)
    shards = np.maximum(np.round(rows**rate), 2).astype(int)
    return _averaged(rows, shards, measure, call)


def _with_fixed_rows(measure: Measure, call: Call) -> Curve:
    size = np.round(10 ** np.arange(4.0, call.choose(0.9, 1.4), -0.5)).astype(int)
    return _averaged(np.full(len(size), FIXED_ROWS), FIXED_ROWS // size, measure, call)


def _averaged(rows: np.ndarray, shards: np.ndarray, measure: Measure, call: Call) -> Curve:
    """Mean of the measure over data sets. The data sets do not depend on the measure."""
    found: list[dict[str, float]] = []
    for n, k in zip(rows.tolist(), shards.tolist(), strict=True):
        rng = np.random.default_rng([call.seed, 11, n, k])
        each = [measure(Shards.simulate(n, k, rng)) for _ in range(call.choose(20, 4))]
        found.append({name: float(np.mean([e[name] for e in each])) for name in each[0]})
    used = rows // shards * shards
    return Curve(used, shards, {name: np.array([f[name] for f in found]) for name in found[0]})


class MarkedLine(Line):
    """A line with markers."""

    marker: str


@dataclass(frozen=True)
class Growth:
    """Curves with K = N^g for each rate g, and one with N fixed."""

    curves: Sequence[Curve]
    fixed: Curve
    lines: Mapping[str, MarkedLine]  # by name
    error: str  # name of the measure

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

    def result(
        self, name: str, title: str, note: str, caption: str, claims: tuple[Claim, ...]
    ) -> Reproduction:
        """Tables, a figure and claims under the name of a statement of the paper."""
        tables = (self.slope_table(note), self.value_table())
        return Reproduction(
            name, title, prose(name), tables, (Figure(name, caption, self.draw),), claims, self.numbers()
        )

    def numbers(self) -> dict[str, object]:
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
        titles = [*(f"$K = N^{{{rate:g}}}$" for rate in RATES), f"$N = 10^{{{round(np.log10(FIXED_ROWS))}}}$"]
        for panel, title, curve in zip(panels.flat, titles, [*self.curves, self.fixed], strict=True):
            grows = curve is not self.fixed
            self._lines(panel, curve, curve.rows if grows else curve.shard_rows)
            panel.set_title(title)
            panel.set_xlabel("number of rows $N$" if grows else "rows of a shard $M$")
            panel.set_ylabel(self.error)
        legend_above(figure, panels[0, 0])
        return figure

    def _lines(self, panel: Axes, curve: Curve, against: np.ndarray) -> None:
        for name, line in self.lines.items():
            panel.loglog(against, curve.errors[name], label=name, markersize=4, linewidth=1.3, **line)
        left, right = panel.get_xlim()
        panel.set_xlim(left, right * (right / left) ** 0.2)  # room for the slopes
        end = int(np.argmax(against))
        # A line with crosses coincides with another line, so it gets no label.
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
    """Heights on a log axis, moved up where labels would overlap."""
    gap = 0.05 * np.log(high / low)
    placed = np.log(heights)
    order = np.argsort(placed)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    return np.exp(placed)


def _values(curve: Curve) -> dict[str, object]:
    errors = {name: values.tolist() for name, values in curve.errors.items()}
    return {"N": curve.rows.tolist(), "K": curve.shards.tolist(), "error": errors}


_DISTANCE_LINES: dict[str, MarkedLine] = {
    "AR": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "AR at modes": {"color": SKY, "marker": "x", "linestyle": ":"},
    "AR + Newton": {"color": GREEN, "marker": "s", "linestyle": "--"},
    "affine": {"color": ORANGE, "marker": "^", "linestyle": "-."},
}
_DISTANCE_NOTE = (
    "Expected slopes: g - 1/2 for AR, until its total variation approaches 1; for AR + Newton the larger of -1/2 (the "
    "offset between mean and mode) and g - 1 (from 1 / M)."
)
_DISTANCE_CAPTION = (
    "Total variation between the recentred average and the posterior, mean over data sets. "
    "First three panels: K = N^g shards; last: N fixed, shards of M rows."
)


def theorem_1(call: Call) -> Reproduction:
    """Total variation for K = N^(1/4), N^(1/2), N^(3/4) and for shards of every size at fixed N."""
    curves, fixed = measured(_distances, call)
    growth = Growth(curves, fixed, _DISTANCE_LINES, "total variation")
    title = "Theorem 1: convergence in total variation"
    return growth.result("theorem-1", title, _DISTANCE_NOTE, _DISTANCE_CAPTION, _distance_claims(growth))


def _distances(shards: Shards) -> dict[str, float]:
    return {name: shards.total_variation(name) for name in COMBINATIONS}


def _distance_claims(growth: Growth) -> tuple[Claim, ...]:
    plain, newton, affine = (growth.slopes[name] for name in ("AR", "AR + Newton", "affine"))
    last = [curve.errors["AR"][-1] for curve in growth.curves]
    return (
        Claim(
            f"Plain AR converges for K = N^(1/4) (slope {plain[0]:.2f}) and not for K = N^(1/2) "
            f"(slope {plain[1]:.2f}, total variation {last[1]:.2f}) or N^(3/4) (total variation {last[2]:.2f}).",
            plain[0] < -0.1 and abs(plain[1]) < 0.1 and last[2] > 0.9,
        ),
        Claim(
            "With the Newton centre and with the affine map the error falls at every growth rate "
            f"(slopes at most {max(newton):.2f} and {max(affine):.2f}).",
            max(*newton, *affine) < -0.15,
        ),
    )


ASYMPTOTIC, POSTERIOR, AFFINE = (
    "AR, from 1 / information",
    "AR, from the posterior",
    "affine, from the posterior",
)

_VARIANCE_LINES: dict[str, MarkedLine] = {
    ASYMPTOTIC: {"color": GREEN, "marker": "s", "linestyle": "--"},
    POSTERIOR: {"color": BLUE, "marker": "o", "linestyle": "-"},
    AFFINE: {"color": ORANGE, "marker": "^", "linestyle": "-."},
}
_VARIANCE_NOTE = (
    "The first line is the remark's statement: N times the variance of AR against the inverse Fisher information. "
    "The others compare with the variance of the posterior of the same rows."
)
_VARIANCE_CAPTION = (
    "Relative error of the variance of the recentred draws, mean over data sets. "
    "First three panels: K = N^g shards; last: N fixed, shards of M rows."
)


def remark_2(call: Call) -> Reproduction:
    """Relative errors of the variance for K = N^(1/4), N^(1/2), N^(3/4) and for every shard size at fixed N."""
    curves, fixed = measured(_errors, call)
    growth = Growth(curves, fixed, _VARIANCE_LINES, "relative error of the variance")
    title = "Remark 2: the covariance of the recentred draws"
    return growth.result("remark-2", title, _VARIANCE_NOTE, _VARIANCE_CAPTION, _variance_claims(growth))


def _errors(shards: Shards) -> dict[str, float]:
    combined = float(shards.rescaled.variance.mean())
    return {
        ASYMPTOTIC: abs(shards.num_rows * combined / (TRUE**2 * (1 - TRUE)) - 1),
        POSTERIOR: abs(shards.variance_ratio("AR") - 1),
        AFFINE: abs(shards.variance_ratio("affine") - 1),
    }


def _variance_claims(growth: Growth) -> tuple[Claim, ...]:
    stated = growth.slopes[ASYMPTOTIC]
    against_shard = growth.fixed.slope(POSTERIOR, growth.fixed.shard_rows)
    return (
        Claim(
            "The remark's rate, a slope of -1/2, holds for K = N^(1/4) and N^(1/2) "
            f"({stated[0]:.2f}, {stated[1]:.2f}), and a slower one for K = N^(3/4) ({stated[2]:.2f}; 1 / M has -0.25).",
            max(abs(stated[0] + 0.5), abs(stated[1] + 0.5)) < 0.2 and stated[2] > -0.4,
        ),
        Claim(
            f"At fixed N the error against the posterior falls like 1 / M (slope {against_shard:.2f}).",
            abs(against_shard + 1) < 0.15,
        ),
    )
