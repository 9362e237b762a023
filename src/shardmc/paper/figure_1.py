"""Example 3, Figure 1: the densities of all methods for the Beta-Bernoulli model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmc.distance import marginal_l2
from shardmc.paper.beta_bernoulli import PROPORTIONS, SHARDS, DataSet, method_draws
from shardmc.paper.curves import density_curve
from shardmc.paper.prose import prose
from shardmc.paper.result import Call, Figure, Result, Table, scientific
from shardmc.paper.style import METHODS, canvas, legend_above

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NAME = "figure-1"
_CAPTION = (
    "Densities of the combined draws and of the exact posterior (black), one data set for each p. CMC: consensus Monte "
    "Carlo; AR: the paper's method; WS: Weierstrass sampler; MP: M-posterior; shardmc: the default."
)
_HALF_WIDTH = 5.0  # of a panel, in posterior standard deviations


@dataclass(frozen=True)
class _Panel:
    """The curves of one p and K."""

    p: float
    num_shards: int
    points: np.ndarray
    curves: dict[str, np.ndarray]
    distances: dict[str, float]


def reproduce(call: Call) -> Result:
    """Draws of every method for one data set per cell of Table 3, as curves."""
    cells = [(p, num_shards) for num_shards in call.choose(SHARDS, SHARDS[:1]) for p in PROPORTIONS]
    panels = []
    for p, num_shards in cells:
        call.tell(len(panels), len(cells))
        panels.append(_panel(p, num_shards, call))
    call.tell(len(cells), len(cells))
    names = list(panels[0].distances)
    rows = tuple(
        (f"p = {panel.p:g}, K = {panel.num_shards}", *(scientific(panel.distances[m]) for m in names))
        for panel in panels
    )
    title = "L2 distance of the curves from the posterior, in units of its standard deviation"
    return Result(
        NAME,
        "Example 3, Figure 1: densities of the Beta-Bernoulli model",
        prose(NAME),
        (Table(title, ("", *names), rows),),
        (Figure(NAME, _CAPTION, lambda: _draw(panels)),),
        numbers={
            "cells": [{"p": x.p, "shards": x.num_shards, "distances": x.distances} for x in panels],
            "rows": call.choose(100_000, 50_000),
        },
    )


def _panel(p: float, num_shards: int, call: Call) -> _Panel:
    data = DataSet.simulate(p, call.choose(100_000, 50_000), num_shards, (call.seed, 5))
    draws = method_draws(data, call.choose(100_000, 10_000), call.seed)
    posterior = data.posterior
    mean, sd = posterior.mean(), posterior.std()
    points = np.linspace(max(mean - _HALF_WIDTH * sd, 0), mean + _HALF_WIDTH * sd, 401)
    curves = {"posterior": posterior.pdf(points)}
    curves |= {name: density_curve(values[:, 0], points, sd) for name, values in draws.items()}
    distances = {name: marginal_l2(values, posterior) for name, values in draws.items()}
    return _Panel(p, num_shards, points, curves, distances)


def _draw(panels: list[_Panel]) -> Canvas:
    figure, axes = canvas(len(panels) // len(PROPORTIONS), len(PROPORTIONS))
    for axis, panel in zip(axes.flat, panels, strict=True):
        for name, curve in panel.curves.items():
            axis.plot(panel.points, curve, label=name, **METHODS[name])
        axis.set_title(f"$p = {panel.p:g}$, $K = {panel.num_shards}$")
        # A method that puts all its draws in one place would flatten the others.
        axis.set_ylim(0, 1.5 * panel.curves["posterior"].max())
        axis.set_xlim(panel.points[0], panel.points[-1])
        _few_ticks(axis)
        axis.set_xlabel("$p$")
    for row in axes:
        row[0].set_ylabel("density")
    legend_above(figure, axes[0, 0])
    return figure


def _few_ticks(axis: Any) -> None:
    axis.locator_params(axis="x", nbins=4)
    axis.locator_params(axis="y", nbins=4)
