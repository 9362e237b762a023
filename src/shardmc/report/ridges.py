"""Marginal densities of many coordinates below each other, each in units of its own standard deviation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from shardmc.posterior import Posterior
from shardmc.report.choice import coordinates, shards_to_draw
from shardmc.report.forest import left_margin, name_rows
from shardmc.report.marginals import Curve, marginal
from shardmc.report.style import COLORS, SharedFigure, draw_curves, styled, tidy_axis

_ROW = 0.34  # inches
_WINDOW = 4.0
_PEAK = 0.4  # about the height of a standard normal density


@styled
def plot_ridges(
    posterior: Posterior, parameters: Sequence[str | int] | None = None, *, shards: int = 8
) -> Figure:
    """Densities of the combined posterior and of the shards after they were moved, one row per coordinate.

    Parameters
    ----------
    posterior
        What `fit` returned.
    parameters
        Coordinates by name or position; by default the twenty that may be most wrong.
    shards
        At most so many shards are drawn.
    """
    chosen = coordinates(posterior, parameters, 20)
    drawn = shards_to_draw(posterior, shards)
    names = [posterior.names[k] for k in chosen]
    height = _ROW * len(chosen) + 0.75
    figure = SharedFigure((4.0, height))
    left = left_margin(names)
    axes = figure.add_axes((left, 0.42 / height, 0.97 - left, 1 - 0.44 / height))
    combined, moved = [], []
    for row, k in enumerate(chosen):
        curves = marginal(posterior, k, drawn, before=False)
        combined += _ridge([curves.combined], curves.center, curves.sd, row)
        moved += _ridge(curves.after, curves.center, curves.sd, row)
        axes.axhline(row, color=COLORS["rule"], linewidth=0.6, zorder=0)
    draw_curves(axes, moved, color=COLORS["after"], linewidth=0.7, alpha=0.75)
    draw_curves(axes, combined, color=COLORS["combined"], linewidth=1.5)
    name_rows(axes, names)
    axes.set_ylim(len(chosen) - 0.75, -1.25)
    axes.set_xlim(-_WINDOW, _WINDOW)
    axes.set_xlabel("sds of the draws from their mean")
    tidy_axis(axes, ticks=4)
    return figure


def _ridge(curves: Sequence[Curve], center: float, sd: float, row: int) -> list[Curve]:
    """Curves in standard units, growing upwards from their row; rows count downwards."""
    if not sd > 0:
        return []
    inside = []
    for x, y in curves:
        z = (x - center) / sd
        seen = np.abs(z) <= _WINDOW
        inside.append((z[seen], row - 0.9 * np.minimum(y[seen] * sd / _PEAK, 1.4)))
    return inside
