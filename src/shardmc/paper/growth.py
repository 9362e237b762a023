"""How errors change with the number of rows and of shards: simulations over a range of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from shardmc.paper.geometric import Shards
from shardmc.paper.result import Call

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
    # At the fastest growth a million rows would make 30,000 shards: the last half decade is left out.
    last = call.choose(6.0 if rate < 0.7 else 5.5, 4.5)
    rows = np.round(10 ** np.arange(3.0, last + 0.01, 0.5)).astype(int)
    shards = np.maximum(np.round(rows**rate), 2).astype(int)
    return _averaged(rows, shards, measure, call)


def _with_fixed_rows(measure: Measure, call: Call) -> Curve:
    size = np.round(10 ** np.arange(4.0, call.choose(0.9, 1.4), -0.5)).astype(int)
    return _averaged(np.full(len(size), FIXED_ROWS), FIXED_ROWS // size, measure, call)


def _averaged(rows: np.ndarray, shards: np.ndarray, measure: Measure, call: Call) -> Curve:
    """Mean of the measure over data sets, the same ones whatever is measured."""
    found: list[dict[str, float]] = []
    for n, k in zip(rows.tolist(), shards.tolist(), strict=True):
        rng = np.random.default_rng([call.seed, 11, n, k])
        each = [measure(Shards.simulate(n, k, rng)) for _ in range(call.choose(20, 4))]
        found.append({name: float(np.mean([e[name] for e in each])) for name in each[0]})
    used = rows // shards * shards
    return Curve(used, shards, {name: np.array([f[name] for f in found]) for name in found[0]})
