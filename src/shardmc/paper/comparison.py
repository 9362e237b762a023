"""Several methods against one posterior: distances over data sets, noise floor, winner, and the paper's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardmc.paper.result import Claim, Table, scientific

OURS = "shardmc"
"""The name under which the default combination is compared."""


@dataclass(frozen=True)
class Comparison:
    """One cell of a table: the distance of each method from the posterior, data set by data set."""

    label: str
    distances: Mapping[str, np.ndarray]  # method -> (data set,)
    floor: np.ndarray  # the same distance for as many exact draws, at least once per data set
    printed: Mapping[str, float | None]  # what the paper says
    reasons: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Why the first method is not closer than the second here, though the paper finds it so."""

    def mean(self, method: str) -> float:
        return float(np.mean(self.distances[method]))

    @property
    def noise(self) -> float:
        """Up to where a distance cannot be told from that of exact draws."""
        return float(self.floor.mean() + 2 * self.floor.std(ddof=1 if len(self.floor) > 1 else 0))

    def order(self, methods: Sequence[str]) -> list[str]:
        """Methods from the closest to the farthest."""
        return sorted(methods, key=self.mean)

    def at_floor(self, method: str) -> bool:
        return self.mean(method) <= self.noise

    @property
    def winner(self) -> str:
        """The closest method, or all that cannot be told from exact draws."""
        best = self.order(list(self.distances))
        equal = [m for m in best if self.at_floor(m)]
        return " = ".join(equal) if len(equal) > 1 else best[0]

    def reversed_pairs(self) -> list[tuple[str, str]]:
        """Pairs of methods that the paper finds in the other order."""
        known = [m for m, value in self.printed.items() if value is not None]
        return [
            (a, b)
            for a in known
            for b in known
            if (self.printed[a] or 0) < (self.printed[b] or 0) and self.mean(a) > self.mean(b)
        ]

    def explain(self, a: str, b: str) -> str:
        """Why a, closer than b in the paper, is not so here."""
        if self.at_floor(a) and self.at_floor(b):
            return f"{a} and {b} are both at the noise floor: their order is chance."
        if (a, b) in self.reasons:
            return self.reasons[a, b]
        gap = self.distances[a] - self.distances[b]
        error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.inf
        if gap.mean() < 2 * error:
            return f"{a} and {b} differ by less than two standard errors over {len(gap)} data sets."
        as_printed = int((gap < 0).sum())
        return (
            f"{b} is closer than {a}, by {scientific(float(gap.mean()))} ± {scientific(float(error))}; in {as_printed} "
            f"of {len(gap)} data sets the order is the paper's."
        )


def distance_table(title: str, cells: Sequence[Comparison], note: str = "") -> Table:
    """Mean and spread over data sets next to what the paper printed, the noise floor and the winner."""
    methods = list(cells[0].distances)
    rows = []
    for cell in cells:
        ours = [_mean_and_spread(cell.distances[m]) for m in methods]
        sets = str(len(cell.distances[methods[0]]))
        rows.append((cell.label, "here", sets, *ours, _mean_and_spread(cell.floor), cell.winner))
        known = [(value, m) for m, value in cell.printed.items() if value is not None]
        if known:
            printed = [scientific(cell.printed.get(m)) for m in methods]
            rows.append((cell.label, "paper", "–", *printed, "–", min(known)[1]))
    return Table(title, ("", "", "sets", *methods, "exact draws", "closest"), tuple(rows), note)


def ranking_table(title: str, cells: Sequence[Comparison]) -> Table:
    """The order of the paper's methods, there and here, and why it differs."""
    rows = []
    for cell in cells:
        known = [m for m, value in cell.printed.items() if value is not None]
        there = sorted(known, key=lambda m: cell.printed[m] or 0)
        pairs = cell.reversed_pairs()
        why = " ".join(dict.fromkeys(cell.explain(a, b) for a, b in pairs)) or "The same order."
        rows.append((cell.label, " < ".join(there), " < ".join(cell.order(known)), why))
    return Table(title, ("", "paper", "here", "why"), tuple(rows))


def default_is_closest(cells: Sequence[Comparison], example: str) -> Claim:
    """Whether the default is at least as close as every other method in all cells, or at the noise floor."""
    bad = [
        cell.label
        for cell in cells
        if not cell.at_floor(OURS) and cell.order(list(cell.distances))[0] != OURS
    ]
    text = (
        f"{example}: in every cell the default of shardmc is the closest, or cannot be told from exact draws."
    )
    return Claim(text if not bad else f"{text} Not in {', '.join(bad)}.", not bad)


def record(cells: Sequence[Comparison]) -> list[dict[str, Any]]:
    """The raw distances, for the JSON file."""
    return [
        {
            "cell": cell.label,
            "distances": {m: [float(v) for v in values] for m, values in cell.distances.items()},
            "noise_floor": [float(v) for v in cell.floor],
            "paper": dict(cell.printed),
        }
        for cell in cells
    ]


def _mean_and_spread(values: np.ndarray) -> str:
    if len(values) == 1:
        return scientific(float(values[0]))
    return f"{scientific(float(np.mean(values)))} ± {scientific(float(np.std(values, ddof=1)))}"
