"""Figures with one row per parameter, comparison or group: intervals, certificate, marginal densities and contrasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shardmc.check.advice import MEASURED_BY
from shardmc.errors import OptionError, unknown
from shardmc.names import shown
from shardmc.posterior import Posterior
from shardmc.posterior.result import INTERVAL, IntervalKind, check_interval, ends
from shardmc.report.choice import coordinates, shards_to_draw, shortened
from shardmc.report.densities import Curve, marginal
from shardmc.report.style import COLORS, SharedFigure, draw_curves, styled, tidy_axis

if TYPE_CHECKING:
    import pandas as pd

_ROW = 0.17  # inches
_WIDTH = 4.0
_DOT = 2.6  # points
_LONGEST = 22  # characters of a name
_LIKE = 100.0  # parameters share an axis if their reaches differ by less than this factor
_MOST_PANELS = 5
_RIDGE = 0.34  # inches of a row of densities
_WINDOW = 4.0  # sds on either side of the mean that a row of densities shows
_PEAK = 0.4  # about the height of a standard normal density


@styled
def plot_forest(
    posterior: Posterior,
    parameters: Sequence[str] | None = None,
    *,
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
) -> Figure:
    """Mean, inner half and interval of every parameter on the natural scale.

    Parameters of similar size share an axis, so that large ones do not squeeze small ones to a dot.

    Parameters
    ----------
    posterior
        What `fit` returned.
    parameters
        Names such as `beta[3]`; all by default.
    interval, interval_kind
        Probability of the thin line's interval, and its kind: "eti" (central) or "hdi" (of highest density). The thick
        line is the 50 % interval of the same kind.
    """
    check_interval(interval, interval_kind)
    flat = posterior.flat()
    names = list(flat) if parameters is None else list(parameters)
    for name in names:
        if name not in flat:
            raise unknown("parameter", name, flat)
    table = np.full((len(names), 5), np.nan)
    for row, name in enumerate(names):
        finite = flat[name][np.isfinite(flat[name])]
        if len(finite):
            table[row, [0, 3]] = ends(finite, interval, interval_kind)
            table[row, [1, 2]] = ends(finite, 0.5, interval_kind)
            table[row, 4] = finite.mean()
    panels = _by_reach(table)
    heights = [len(panel) * _ROW + 0.42 for panel in panels]
    figure = SharedFigure((_WIDTH, sum(heights) + 0.05))
    left = left_margin(names)
    bottom = 1.0
    for panel, height in zip(panels, heights, strict=True):
        share = height / figure.get_figheight()
        bottom -= share
        axes = figure.add_axes(
            (left, bottom + 0.30 / height * share, 0.97 - left, (1 - 0.34 / height) * share)
        )
        _draw_forest(axes, [names[k] for k in panel], table[panel])
    return figure


@styled
def plot_effects(
    posterior: Posterior,
    factor: str | None = None,
    *,
    effect: str | None = None,
    most: int = 60,
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
) -> Figure:
    """Means and intervals of the effects of groups, from the smallest to the largest.

    Parameters
    ----------
    factor
        The grouping factor. It may be left out if there is only one.
    effect
        Which effect, such as "Intercept", if a group has several; the first by default.
    most
        With more groups than this, that many are shown, evenly spread over all, and names are left out.
    """
    table = posterior.effects(factor, interval=interval, interval_kind=interval_kind)
    name = str(table.index.names[0])
    if table.index.nlevels > 1:
        available = list(dict.fromkeys(table.index.get_level_values(1)))
        effect = available[0] if effect is None else effect
        if effect not in available:
            raise unknown("effect", effect, available)
        table = table.xs(effect, level=1)
    table = table.sort_values("mean")
    chosen = np.unique(np.linspace(0, len(table) - 1, min(most, len(table))).round().astype(int))
    part = table.iloc[chosen]
    names = [shortened(str(label), _LONGEST) for label in part.index] if len(part) == len(table) else []
    figure = SharedFigure((_WIDTH, len(part) * _ROW * (1.0 if names else 0.5) + 0.5))
    left = left_margin(names) if names else 0.04
    axes = figure.add_axes(
        (left, 0.40 / figure.get_figheight(), 0.97 - left, 1 - 0.5 / figure.get_figheight())
    )
    rows = np.arange(len(part), dtype=float)
    axes.hlines(rows, part["lower"], part["upper"], color=COLORS["after"], linewidth=1.0)
    axes.plot(part["mean"], rows, "o", color=COLORS["combined"], markersize=_DOT)
    axes.axvline(0.0, color=COLORS["rule"], linewidth=0.8, zorder=0)
    axes.set_yticks(rows if names else [], names)
    of_all = "" if names else f", {len(part)} of {len(table):,}"
    axes.set_xlabel(f"{effect or 'effect'} of {shown(name)}{of_all}")
    tidy_axis(axes)
    return figure


def _by_reach(table: np.ndarray) -> list[list[int]]:
    """Groups of rows whose largest absolute values are of similar size. Rows keep their order within a group."""
    reach = np.nan_to_num(np.abs(table[:, [0, 3]]).max(axis=1))
    groups: list[list[int]] = []
    for k in np.argsort(-reach, kind="stable"):
        fits = groups and (reach[k] * _LIKE >= reach[groups[-1][0]] or len(groups) == _MOST_PANELS)
        if fits:
            groups[-1].append(int(k))
        else:
            groups.append([int(k)])
    return sorted((sorted(group) for group in groups), key=lambda group: group[0])


def _draw_forest(axes: Axes, names: Sequence[str], table: np.ndarray) -> None:
    rows = np.arange(len(names), dtype=float)
    lines = [(table[k, [0, 3]], np.array([k, k], float)) for k in range(len(names))]
    inner = [(table[k, [1, 2]], np.array([k, k], float)) for k in range(len(names))]
    draw_curves(axes, lines, color=COLORS["combined"], linewidth=0.9)
    draw_curves(axes, inner, color=COLORS["combined"], linewidth=3.0)
    axes.plot(table[:, 4], rows, "o", markersize=_DOT, color=COLORS["ink"], markeredgewidth=0)
    low, high = axes.get_xlim()
    if low < 0 < high:
        axes.axvline(0, color=COLORS["rule"], linewidth=0.8, zorder=0)
    name_rows(axes, names)
    tidy_axis(axes, ticks=5)


def hides_intervals(figure: Figure) -> bool:
    """Whether a forest plot has intervals that are narrower than its dots."""
    for axes in figure.axes:
        ends = np.asarray(axes.lines[0].get_xdata(), float).reshape(-1, 3)[:, :2]
        width = 72 * axes.get_position().width * figure.get_figwidth() / np.ptp(axes.get_xlim())
        if (np.ptp(ends, axis=1) * width < _DOT).any():
            return True
    return False


@styled
def plot_certificate(posterior: Posterior, parameters: Sequence[str | int] | None = None) -> Figure:
    """Error of the mean and ratio of the standard deviations of each coordinate, ± two standard errors.

    Values in the shaded band are within bounds.

    Parameters
    ----------
    posterior
        What `fit` returned. It must have a certificate.
    parameters
        Coordinates by name or position; by default the thirty that may be most wrong.
    """
    certificate = posterior.certificate
    if certificate is None:
        raise OptionError(
            "There is no certificate: the distance of these draws from the posterior was not measured. "
            + MEASURED_BY
        )
    chosen = coordinates(posterior, parameters, 30)
    names = [posterior.names[k] for k in chosen]
    height = len(chosen) * _ROW + 0.72
    figure = SharedFigure((_WIDTH, height))
    left = left_margin(names)
    width = (0.95 - left) / 2
    bottom, size = 0.40 / height, 1 - 0.66 / height
    mean = figure.add_axes((left, bottom, width - 0.02, size))
    sd = figure.add_axes((left + width + 0.02, bottom, width - 0.02, size))
    _draw_errors(
        mean, certificate.mean_error[chosen], certificate.mean_error_se[chosen], 0.0, certificate.bounds.mean
    )
    _draw_errors(
        sd, certificate.sd_ratio[chosen], certificate.sd_ratio_se[chosen], 1.0, certificate.bounds.sd
    )
    mean.set_xlabel("sd of the posterior")
    mean.set_title("Mean error", pad=4)
    sd.set_xlabel("drawn / true")
    sd.set_title("Ratio of sds", pad=4)
    name_rows(mean, names)
    name_rows(sd, [""] * len(names))
    return figure


def _draw_errors(axes: Axes, value: np.ndarray, se: np.ndarray, target: float, bound: float) -> None:
    rows = np.arange(len(value), dtype=float)
    axes.axvspan(target - bound, target + bound, color=COLORS["good"], alpha=0.14, linewidth=0, zorder=0)
    axes.axvline(target, color=COLORS["rule"], linewidth=0.8, zorder=0)
    outside = np.abs(value - target) > bound
    for those, color, marker in ((~outside, "combined", "o"), (outside, "alarm", "D")):
        lines = [
            (np.array([value[k] - 2 * se[k], value[k] + 2 * se[k]]), np.array([k, k], float))
            for k in np.flatnonzero(those)
        ]
        draw_curves(axes, lines, color=COLORS[color], linewidth=1.0)
        axes.plot(value[those], rows[those], marker, markersize=3.2, color=COLORS[color], markeredgewidth=0)
    finite = np.isfinite(value) & np.isfinite(se)
    reach = 1.25 * bound
    if finite.any():
        reach = max(reach, 1.08 * float((np.abs(value - target) + 2 * se)[finite].max()))
    low = target - reach if target == 0 else max(target - reach, 0.0 if reach > 1 else target - reach)
    axes.set_xlim(low, target + reach)
    tidy_axis(axes, ticks=4)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """One row per name, the first at the top. Long names are cut."""
    short = [shortened(shown(name), _LONGEST) for name in names]
    axes.set_yticks(np.arange(len(names)), short, color=COLORS["ink"])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def left_margin(names: Sequence[str]) -> float:
    """Share of the figure's width that the longest name needs."""
    return 0.04 + min(max(map(len, names), default=1), _LONGEST) * 0.0185


@styled
def plot_ridges(
    posterior: Posterior, parameters: Sequence[str | int] | None = None, *, shards: int = 8
) -> Figure:
    """Densities of the combined posterior and of the shards after the combiner moved them, one row per coordinate.

    Parameters
    ----------
    posterior
        What `fit` returned.
    parameters
        Coordinates by name or position; by default the twenty that may be most wrong.
    shards
        The largest number of shards to draw.
    """
    chosen = coordinates(posterior, parameters, 20)
    drawn = shards_to_draw(posterior, shards)
    names = [posterior.names[k] for k in chosen]
    height = _RIDGE * len(chosen) + 0.75
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
    axes.set_xlabel("sds from the mean of the draws")
    tidy_axis(axes, ticks=4)
    return figure


def _ridge(curves: Sequence[Curve], center: float, sd: float, row: int) -> list[Curve]:
    """Curves in standard units that rise from the line of their row. Rows are counted from the top."""
    if not sd > 0:
        return []
    inside = []
    for x, y in curves:
        z = (x - center) / sd
        seen = np.abs(z) <= _WINDOW
        inside.append((z[seen], row - 0.9 * np.minimum(y[seen] * sd / _PEAK, 1.4)))
    return inside


_CONTRAST_ROW = 0.2  # inches
_CONTRAST_DOT = 3.0  # points


@styled
def plot_contrast(
    posterior: Posterior, variable: str, values: Sequence[object] | None = None, **options: object
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
def plot_marginal_effects(posterior: Posterior, variable: str, **options: object) -> Figure:
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
    height = len(names) * _CONTRAST_ROW + 0.5
    figure = SharedFigure((_WIDTH, height))
    left = left_margin(names)
    axes = figure.add_axes((left, 0.40 / height, 0.97 - left, 1 - 0.45 / height))
    lower, upper = table["lower"].to_numpy(), table["upper"].to_numpy()
    lines = [(np.array([lower[k], upper[k]]), np.array([k, k], float)) for k in range(len(names))]
    draw_curves(axes, lines, color=COLORS["combined"], linewidth=1.2)
    rows = np.arange(len(names), dtype=float)
    axes.plot(
        table["mean"].to_numpy(), rows, "o", markersize=_CONTRAST_DOT, color=COLORS["ink"], markeredgewidth=0
    )
    axes.axvline(nothing, color=COLORS["rule"], linewidth=0.8, zorder=0)
    name_rows(axes, names)
    axes.set_xlabel(title)
    tidy_axis(axes)
    return figure
