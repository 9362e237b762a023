"""Two coordinates together: draws, regions of highest density, and the margins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from shardmc.errors import OptionError
from shardmc.posterior import Posterior
from shardmc.report.choice import coordinates, label, worst_pair
from shardmc.report.density import bandwidth, density_curve
from shardmc.report.style import COLORS, SharedFigure, styled, tidy_axis

_MOST_POINTS = 600
_CELLS = 64
_WINDOW = 4.2
_REGIONS = (0.5, 0.95)


@styled
def plot_pair(posterior: Posterior, parameters: Sequence[str | int] | None = None) -> Figure:
    """Draws of two coordinates, with the regions of highest density that hold 50 % and 95 % of them.

    Parameters
    ----------
    posterior
        What `fit` returned.
    parameters
        Two coordinates by name or position; by default the heaviest of the combination that is most wrong.
    """
    pair = worst_pair(posterior) if parameters is None else tuple(coordinates(posterior, parameters, 2))
    if pair is None or len(pair) != 2:
        raise OptionError(f"A pair plot takes two coordinates; the posterior has {len(posterior.names)}.")
    points = posterior.theta[:, list(pair)]
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) < 2:
        raise OptionError("A pair plot needs at least two finite draws.")
    figure = SharedFigure((4.0, 3.6))
    joint = figure.add_axes((0.17, 0.12, 0.62, 0.66))
    above = figure.add_axes((0.17, 0.80, 0.62, 0.15))
    right = figure.add_axes((0.81, 0.12, 0.15, 0.66))
    limits = _limits(points)
    _draw_points(joint, points)
    _draw_regions(joint, points, limits)
    if posterior.mode is not None:
        joint.plot(
            *posterior.mode[list(pair)],
            "+",
            color=COLORS["before"],
            markersize=9,
            markeredgewidth=1.6,
            zorder=5,
        )
    joint.set_xlim(*limits[0])
    joint.set_ylim(*limits[1])
    joint.set_xlabel(label(posterior, pair[0]), color=COLORS["ink"])
    joint.set_ylabel(label(posterior, pair[1]), color=COLORS["ink"])
    tidy_axis(joint, "x", 4)
    tidy_axis(joint, "y", 5)
    _draw_margins(above, right, points, limits)
    return figure


def _limits(points: np.ndarray) -> np.ndarray:
    """Both axes' ends, (2, 2)."""
    center, sd = points.mean(axis=0), points.std(axis=0, ddof=1)
    sd = np.where(sd > 0, sd, np.maximum(np.abs(center), 1.0) * 1e-3)
    return np.stack([center - _WINDOW * sd, center + _WINDOW * sd], axis=1)


def _draw_points(axes: Axes, points: np.ndarray) -> None:
    """Dots as strokes of almost no length with round ends: one element of the picture for all of them."""
    some = points[np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).astype(int)]
    vertices = np.repeat(some, 2, axis=0)
    vertices[1::2, 0] += 1e-3 * np.ptp(some[:, 0])
    codes = np.tile([Path.MOVETO, Path.LINETO], len(some))
    path = Path(vertices, codes)
    path.should_simplify = False
    dots = PathPatch(path, fill=False, edgecolor=COLORS["after"], linewidth=2.2, alpha=0.6, capstyle="round")
    axes.add_patch(dots)


def _draw_regions(axes: Axes, points: np.ndarray, limits: np.ndarray) -> None:
    """Contours of a kernel density estimate at the heights above which the regions' share of the draws lies."""
    counts, x, y = np.histogram2d(points[:, 0], points[:, 1], bins=_CELLS, range=limits.tolist())
    smooth = counts
    for axis, edges in enumerate((x, y)):
        # Silverman's bandwidth in two dimensions is sd n^(-1/6), not 0.9 sd n^(-1/5).
        width = bandwidth(points[:, axis]) / 0.9 * len(points) ** (1 / 5 - 1 / 6) / (edges[1] - edges[0])
        offset = np.arange(_CELLS)[:, None] - np.arange(_CELLS)[None, :]
        kernel = np.exp(-0.5 * (offset / max(width, 0.5)) ** 2)
        kernel /= kernel.sum(axis=0)
        smooth = np.apply_along_axis(kernel.__matmul__, axis, smooth)
    heights = np.sort(smooth.ravel())[::-1]
    held = np.cumsum(heights) / max(heights.sum(), 1e-300)
    levels = sorted({float(heights[np.searchsorted(held, share)]) for share in _REGIONS})
    if len(levels) == len(_REGIONS) and levels[0] > 0:
        centers = [(edges[:-1] + edges[1:]) / 2 for edges in (x, y)]
        axes.contour(
            *centers, smooth.T, levels=levels, colors=[COLORS["combined"]], linewidths=[1.0, 1.8], zorder=4
        )


def _draw_margins(above: Axes, right: Axes, points: np.ndarray, limits: np.ndarray) -> None:
    for axes, axis in ((above, 0), (right, 1)):
        x, y = density_curve(points[:, axis], 96)
        if axis == 0:
            axes.plot(x, y, color=COLORS["combined"])
            axes.set_xlim(*limits[0])
            axes.set_ylim(bottom=0)
        else:
            axes.plot(y, x, color=COLORS["combined"])
            axes.set_ylim(*limits[1])
            axes.set_xlim(left=0)
        axes.set_axis_off()
