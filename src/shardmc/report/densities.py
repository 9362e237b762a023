"""Marginal densities, before and after the shards were moved, and the joint density of two coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, PathPatch
from matplotlib.path import Path

from shardmc.combiners.density import density_curve, density_of_plane, plane_axes
from shardmc.errors import OptionError
from shardmc.posterior import Posterior
from shardmc.posterior.result import INTERVAL
from shardmc.report.choice import coordinates, label, shards_to_draw, worst_pair
from shardmc.report.style import COLORS, SharedFigure, draw_curves, no_y_axis, styled, tidy_axis

Curve = tuple[np.ndarray, np.ndarray]
Box = tuple[float, float, float, float]

_WIDTH, _HEIGHT = 3.3, 2.15  # inches of a coordinate's two panels
_FEWEST = 8  # draws, to estimate a density from
_WINDOW = 4.2  # posterior sds on either side of the mean, in the lower panel and for pairs
_MOST_DOTS = 600  # of a pair
_SIDE = 96  # points along each side of a pair's grid
_REGIONS = (0.5, INTERVAL)


@dataclass(frozen=True)
class MarginalDensity:
    """The curves of one coordinate."""

    combined: Curve
    before: list[Curve]
    after: list[Curve]
    center: float
    sd: float


@styled
def plot_marginals(
    posterior: Posterior,
    parameters: Sequence[str | int] | None = None,
    *,
    shards: int = 24,
    columns: int | None = None,
    legend: bool = True,
) -> Figure:
    """Densities of the combined posterior and of the shards, before and after the combiner moved them.

    Each coordinate has two panels. The upper one shows the shards as they were sampled. The lower one is a closer look
    at the combined posterior, with the shards after the combiner moved them.

    Parameters
    ----------
    posterior
        What `fit` returned.
    parameters
        Coordinates by name or position; by default the twelve that may be most wrong.
    shards
        The largest number of shards to draw: those that disagree most, and others evenly spaced.
    columns
        Number of coordinates side by side.
    legend
        Whether to draw a legend.
    """
    chosen = coordinates(posterior, parameters, 12)
    columns = min(len(chosen), 3 if columns is None else columns)
    rows = -(-len(chosen) // columns)
    height = _HEIGHT * rows
    stacked = columns == 1  # a single column is too narrow for the legend in one line
    top = (0.6 if stacked else 0.3) if legend else 0.0
    figure = SharedFigure((_WIDTH * columns, height + top))
    drawn = shards_to_draw(posterior, shards)
    for cell, k in enumerate(chosen):
        row, column = divmod(cell, columns)
        bottom = height * (1 - (row + 1) / rows) / (height + top)
        box = (column / columns, bottom, 1 / columns, height / rows / (height + top))
        _draw_marginal(figure, box, posterior, k, drawn)
    if legend:
        _legend(figure, posterior, len(drawn), stacked)
    return figure


def marginal(
    posterior: Posterior, coordinate: int, shards: np.ndarray, *, before: bool = True
) -> MarginalDensity:
    """The curves of one coordinate for the given shards; with `before`, also as they were sampled."""
    theta = posterior.theta[:, coordinate]
    finite = theta[np.isfinite(theta)]
    own = posterior.shards.draws[shards, :, coordinate] if before else []
    moved = [] if posterior.shard is None else [theta[posterior.shard == i] for i in shards]
    return MarginalDensity(
        combined=density_curve(finite, 96),
        before=_curves(own),
        after=_curves(moved),
        center=float(finite.mean()) if len(finite) else 0.0,
        sd=float(finite.std(ddof=1)) if len(finite) > 1 else 0.0,
    )


def _curves(samples: Sequence[np.ndarray] | np.ndarray) -> list[Curve]:
    enough = [values for values in samples if np.isfinite(values).sum() >= _FEWEST]
    found = [density_curve(values, 48) for values in enough]
    return [curve for curve in found if len(curve[0])]


def _draw_marginal(
    figure: Figure, box: Box, posterior: Posterior, coordinate: int, shards: np.ndarray
) -> None:
    curves = marginal(posterior, coordinate, shards)
    above, below = _axes(figure, box, 0.61, 0.29), _axes(figure, box, 0.11, 0.34)
    _draw_before(above, curves, fractional=posterior.plan.scaling == "fractional")
    _draw_after(below, curves)
    _draw_zoom(figure, above, below)
    above.set_title(label(posterior, coordinate), pad=3)


def _axes(figure: Figure, box: Box, bottom: float, height: float) -> Axes:
    """Axes in a box (left, bottom, width, height) of the figure, with a margin on either side."""
    return figure.add_axes((box[0] + 0.05 * box[2], box[1] + bottom * box[3], 0.9 * box[2], height * box[3]))


def _draw_before(axes: Axes, curves: MarginalDensity, *, fractional: bool) -> None:
    peak = _peak([curves.combined])
    own = curves.before
    if fractional and own and peak:
        # A shard's share of the posterior is so wide that its curve would be flat, so the curves are scaled up.
        factor = 0.5 * peak / _peak(own)
        own = [(x, factor * y) for x, y in own]
    draw_curves(axes, own, color=COLORS["before"], linewidth=0.7, alpha=0.75)
    _draw_combined(axes, curves)
    low, high = _wide_window(curves)
    if low < high:
        axes.set_xlim(low, high)
    _count_outside(axes, own, low, high)
    axes.set_ylim(0, 1.12 * max(peak, _typical_peak(own)) or 1.0)
    no_y_axis(axes)
    tidy_axis(axes)


def _draw_after(axes: Axes, curves: MarginalDensity) -> None:
    draw_curves(axes, curves.after, color=COLORS["after"], linewidth=0.7, alpha=0.75)
    _draw_combined(axes, curves)
    if curves.sd > 0:
        axes.set_xlim(curves.center - _WINDOW * curves.sd, curves.center + _WINDOW * curves.sd)
    axes.set_ylim(0, 1.12 * max(_peak([curves.combined]), _typical_peak(curves.after)) or 1.0)
    no_y_axis(axes)
    tidy_axis(axes)


def _draw_combined(axes: Axes, curves: MarginalDensity) -> None:
    x, y = curves.combined
    if len(x):
        axes.plot(x, y, color=COLORS["combined"], linewidth=1.7)
    else:
        axes.axvline(curves.center, color=COLORS["combined"], linewidth=1.7)  # all draws are equal


def _draw_zoom(figure: Figure, above: Axes, below: Axes) -> None:
    """Two lines from the part of the upper panel that the lower one shows to the lower one's corners."""
    for edge, corner in zip(below.get_xlim(), (0.0, 1.0), strict=True):
        line = ConnectionPatch(
            (edge, -0.30),
            (corner, 1.04),
            coordsA=above.get_xaxis_transform(),
            coordsB=below.transAxes,
            color=COLORS["rule"],
            linewidth=0.7,
        )
        figure.add_artist(line)
        above.axvline(edge, color=COLORS["rule"], linewidth=0.7, zorder=0)


def _wide_window(curves: MarginalDensity) -> tuple[float, float]:
    """Ends of an axis for all shards, except those so far away that nothing else could be seen."""
    low, high = curves.center - _WINDOW * curves.sd, curves.center + _WINDOW * curves.sd
    if curves.before:
        starts = np.array([x[0] for x, _ in curves.before])
        ends = np.array([x[-1] for x, _ in curves.before])
        middle = np.quantile([*starts, *ends], [0.1, 0.9])
        reach = 4 * (middle[1] - middle[0])
        low = min(low, float(starts[starts >= middle[0] - reach].min()))
        high = max(high, float(ends[ends <= middle[1] + reach].max()))
    margin = 0.02 * (high - low)
    return low - margin, high + margin


def _count_outside(axes: Axes, curves: Sequence[Curve], low: float, high: float) -> None:
    """Write at each edge how many shards lie beyond it."""
    tops = np.array([x[int(np.argmax(y))] for x, y in curves])
    for number, words, place, side in (
        (int((tops < low).sum()), "← {}", 0.0, "left"),
        (int((tops > high).sum()), "{} →", 1.0, "right"),
    ):
        if number:
            text = words.format(f"{number} shard{'s' if number > 1 else ''}")
            axes.text(place, 1.0, text, transform=axes.transAxes, ha=side, va="top", fontsize=7.5)


def _peak(curves: Sequence[Curve]) -> float:
    return max((float(y.max()) for _, y in curves if len(y)), default=0.0)


def _typical_peak(curves: Sequence[Curve]) -> float:
    """The height that nine of ten curves do not exceed: one sharp peak must not flatten all others."""
    return float(np.quantile([y.max() for _, y in curves], 0.9)) if curves else 0.0


def _legend(figure: Figure, posterior: Posterior, drawn: int, stacked: bool) -> None:
    total = posterior.shards.num_shards
    some = f"{drawn} of {total} shards" if drawn < total else f"{total} shards" if total > 1 else "the shard"
    lines = [
        Line2D([], [], color=COLORS["combined"], linewidth=1.7),
        Line2D([], [], color=COLORS["before"], linewidth=1.0),
    ]
    words = ["combined", f"{some}, as sampled"]
    if posterior.shard is not None:
        lines.append(Line2D([], [], color=COLORS["after"], linewidth=1.0))
        words.append("the same, moved")
    figure.legend(
        lines,
        words,
        loc="upper left",
        ncols=1 if stacked else len(lines),
        borderaxespad=0.3,
        handlelength=1.6,
    )


@styled
def plot_pair(posterior: Posterior, parameters: Sequence[str | int] | None = None) -> Figure:
    """Draws of two coordinates, with the regions of highest density that contain 50 % and 95 % of the draws.

    Parameters
    ----------
    posterior
        What `fit` returned.
    parameters
        Two coordinates by name or position; by default the two with the largest weights in the worst combination.
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
    """The ends of both axes, (2, 2)."""
    center, sd = points.mean(axis=0), points.std(axis=0, ddof=1)
    sd = np.where(sd > 0, sd, np.maximum(np.abs(center), 1.0) * 1e-3)
    return np.stack([center - _WINDOW * sd, center + _WINDOW * sd], axis=1)


def _draw_points(axes: Axes, points: np.ndarray) -> None:
    """Draw all dots as one path: strokes of almost no length with round ends."""
    some = points[np.linspace(0, len(points) - 1, min(len(points), _MOST_DOTS)).astype(int)]
    vertices = np.repeat(some, 2, axis=0)
    vertices[1::2, 0] += 1e-3 * np.ptp(some[:, 0])
    codes = np.tile([Path.MOVETO, Path.LINETO], len(some))
    path = Path(vertices, codes)
    path.should_simplify = False
    dots = PathPatch(path, fill=False, edgecolor=COLORS["after"], linewidth=2.2, alpha=0.6, capstyle="round")
    axes.add_patch(dots)


def _draw_regions(axes: Axes, points: np.ndarray, limits: np.ndarray) -> None:
    """Contours of the joint density that enclose 50 % and 95 % of the draws."""
    edge = [(float(low), float(high)) for low, high in limits]
    grid = density_of_plane(points, edge, _SIDE)
    heights = np.sort(grid.ravel())[::-1]
    held = np.cumsum(heights) / max(heights.sum(), 1e-300)
    levels = sorted({float(heights[np.searchsorted(held, share)]) for share in _REGIONS})
    if len(levels) == len(_REGIONS) and levels[0] > 0:
        axes.contour(
            *plane_axes(edge, _SIDE),
            grid.T,
            levels=levels,
            colors=[COLORS["combined"]],
            linewidths=[1.0, 1.8],
            zorder=4,
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
