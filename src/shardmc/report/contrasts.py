"""Figures of contrasts and marginal effects: one row per comparison and group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from shardmc.names import shown
from shardmc.posterior import Posterior
from shardmc.report.forest import left_margin, name_rows
from shardmc.report.style import COLORS, SharedFigure, draw_curves, styled, tidy_axis

if TYPE_CHECKING:
    import pandas as pd

_ROW = 0.2  # inches
_WIDTH = 4.0
_DOT = 3.0  # points


@styled
def plot_contrast(
    posterior: Posterior, variable: str, values: Sequence[Any] | None = None, **options: Any
) -> Figure:
    """Means and intervals of contrasts between values of a predictor.

    Parameters
    ----------
    posterior, variable, values
        As in `Posterior.contrast`.
    options
        Those of `Posterior.contrast`.
    """
    table = posterior.contrast(variable, values, **options)
    compare = str(options.get("compare", "difference"))
    of_what = "linear predictor" if options.get("scale") == "link" else "expected response"
    title = f"{compare.replace('_', ' ')} of {of_what}, by {shown(variable)}"
    return _drawn(table, title, 0.0 if compare == "difference" else 1.0)


@styled
def plot_marginal_effects(posterior: Posterior, variable: str, **options: Any) -> Figure:
    """Means and intervals of the marginal effects of a predictor.

    Parameters
    ----------
    posterior, variable
        As in `Posterior.marginal_effects`.
    options
        Those of `Posterior.marginal_effects`.
    """
    table = posterior.marginal_effects(variable, **options)
    return _drawn(table, f"average effect of {shown(variable)}", 0.0)


def _drawn(table: pd.DataFrame, title: str, nothing: float) -> Figure:
    """One row for each entry of a table, with a line where there is no difference."""
    entries = [label if isinstance(label, tuple) else (label,) for label in table.index]
    # What all rows share says nothing.
    varies = [len(set(column)) > 1 for column in zip(*entries, strict=True)]
    kept = varies if any(varies) else [True] * len(varies)
    names = [
        ", ".join(str(part) for part, keep in zip(entry, kept, strict=True) if keep) for entry in entries
    ]
    height = len(names) * _ROW + 0.5
    figure = SharedFigure((_WIDTH, height))
    left = left_margin(names)
    axes = figure.add_axes((left, 0.40 / height, 0.97 - left, 1 - 0.45 / height))
    lower, upper = table["lower"].to_numpy(), table["upper"].to_numpy()
    lines = [(np.array([lower[k], upper[k]]), np.array([k, k], float)) for k in range(len(names))]
    draw_curves(axes, lines, color=COLORS["combined"], linewidth=1.2)
    rows = np.arange(len(names), dtype=float)
    axes.plot(table["mean"].to_numpy(), rows, "o", markersize=_DOT, color=COLORS["ink"], markeredgewidth=0)
    axes.axvline(nothing, color=COLORS["rule"], linewidth=0.8, zorder=0)
    name_rows(axes, names)
    axes.set_xlabel(title)
    tidy_axis(axes)
    return figure
