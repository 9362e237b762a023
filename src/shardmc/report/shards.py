"""Figures with one mark per shard: whether the shards agree, and how their chains mixed."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from scipy import stats

from shardmc.errors import OptionError
from shardmc.posterior import Posterior
from shardmc.report.style import COLORS, SharedFigure, TickLabels, styled, tidy_axis

_MOST_NAMED = 6


def outlying(posterior: Posterior) -> np.ndarray:
    """Shards that the agreement check reports, largest Q first."""
    q = posterior.shards.disagreement
    if q is None:
        return np.empty(0, int)
    found = np.array(
        sorted(_named(posterior, "agreement", "q") | _named(posterior, "agreement", "scatter")), int
    )
    return found[np.argsort(-np.nan_to_num(q[found]), kind="stable")]


def _named(posterior: Posterior, check: str, about: str) -> set[int]:
    """Shards in those findings of a check that are about one of its numbers."""
    found: set[int] = set()
    for finding in posterior.findings:
        if finding.check == check and about in finding.values:
            shards = finding.values.get("shards", finding.values.get("shard"))
            several = shards if isinstance(shards, list | tuple) else [shards]
            found.update(int(shard) for shard in several if isinstance(shard, int | np.integer))
    return {shard for shard in found if 0 <= shard < posterior.shards.num_shards}


@styled
def plot_shards(posterior: Posterior) -> Figure:
    """Disagreement of every shard with all rows, against its expected value: a straight line if all is well.

    The sorted Q_i of the shards are drawn against the quantiles of chi^2 with d degrees of freedom. If all rows follow
    one model, the band contains each point with probability 0.95. Diamonds mark the shards that the agreement check
    reports.

    Parameters
    ----------
    posterior
        What `fit` returned. It must have more than one shard, and modes.
    """
    q = posterior.shards.disagreement
    if q is None or not np.isfinite(q).any():
        raise OptionError(
            "There is no shard agreement to draw: it needs at least two shards, and their modes."
        )
    there = np.flatnonzero(np.isfinite(q))
    order = there[np.argsort(q[there], kind="stable")]
    values, count, dim = q[order], len(order), len(posterior.names)
    expected = stats.chi2.ppf((np.arange(count) + 0.5) / count, dim)

    figure = SharedFigure((4.0, 3.1))
    axes = figure.add_axes((0.17, 0.15, 0.79, 0.77))
    axes.yaxis.set_label_coords(-0.15, 0.5)
    logarithmic = values[-1] > 8 * expected[-1]
    if logarithmic:
        _logarithmic(axes, max(values[0], 0.01 * dim), values[-1])
    top = _draw_chance(axes, expected, dim)
    beyond = np.isin(order, outlying(posterior))
    _dots(axes, expected[~beyond], values[~beyond], "combined", "o")
    _dots(axes, expected[beyond], values[beyond], "alarm", "D")
    if not logarithmic:
        axes.set_ylim(0, 1.1 * max(values[-1], top))
        tidy_axis(axes, "x", 5)
        tidy_axis(axes, "y", 5)
    _name_shards(axes, expected[beyond][::-1], values[beyond][::-1], order[beyond][::-1])
    axes.set_xlabel(f"expected: quantile of χ² with {dim} degree{'s' if dim > 1 else ''} of freedom")
    axes.set_ylabel("disagreement Q")
    return figure


def _draw_chance(axes: Axes, expected: np.ndarray, dim: int) -> float:
    """Draw the line of equality and the band around it; return the height of the band."""
    count = len(expected)
    rank = np.arange(1, count + 1)
    low, high = (stats.chi2.ppf(stats.beta.ppf(p, rank, count + 1 - rank), dim) for p in (0.025, 0.975))
    axes.fill_between(expected, low, high, color=COLORS["rule"], alpha=0.5, linewidth=0)
    axes.plot(expected, expected, color=COLORS["muted"], linewidth=0.8)
    return float(high[-1])


def _logarithmic(axes: Axes, smallest: float, largest: float) -> None:
    """A logarithmic axis: shards that disagree much would leave no room for the others on a linear one."""
    axes.set_yscale("log")
    axes.set_ylim(0.6 * smallest, 3 * largest)
    decades = np.arange(np.ceil(np.log10(0.6 * smallest)), np.floor(np.log10(3 * largest)) + 1)
    axes.set_yticks(10.0**decades, [f"{10**k:g}" if k < 0 else f"{10**k:,.0f}" for k in decades])
    axes.yaxis.set_minor_locator(NullLocator())
    tidy_axis(axes, "x", 5)


def _dots(axes: Axes, x: np.ndarray, y: np.ndarray, color: str, marker: str) -> None:
    size = 3.6 if len(x) <= 200 else 2.4
    axes.plot(x, y, marker, markersize=size, color=COLORS[color], markeredgewidth=0)


def _name_shards(axes: Axes, x: np.ndarray, y: np.ndarray, shards: np.ndarray) -> None:
    """Write the shards' names to the left of the marks, apart from each other; in the title if there are many."""
    if len(shards) > _MOST_NAMED:
        worst = ", ".join(map(str, shards[:_MOST_NAMED]))
        axes.set_title(f"{len(shards)} shards disagree, most of all {worst}", fontsize=7.5, weight="normal")
        return
    if len(shards) == 0:
        return
    axes.autoscale_view()  # matplotlib would do it when drawing, but the transformations need the limits now
    height = 72 * axes.get_position().height * axes.figure.get_figheight()  # type: ignore[union-attr]
    at = axes.transAxes.inverted().transform(axes.transData.transform(np.stack([x, y], axis=1)))
    left = float(at[:, 0].min()) - 0.06
    above = np.inf
    for shard, (across, up) in zip(shards, at, strict=True):
        above = min(up, above - 9 / height)
        axes.annotate(
            f"shard {shard}",
            (across, up),
            xycoords="axes fraction",
            xytext=(left, above),
            textcoords="axes fraction",
            ha="right",
            va="center",
            fontsize=7.5,
            arrowprops={
                "arrowstyle": "-",
                "color": COLORS["rule"],
                "linewidth": 0.7,
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )


@styled
def plot_chains(posterior: Posterior) -> Figure:
    """Acceptance, smallest effective size and largest R-hat of every shard's own chains.

    Diamonds mark the shards that the chain check reports.

    Parameters
    ----------
    posterior
        What `fit` returned.
    """
    shards = posterior.shards
    rows = [
        ("acceptance", np.asarray(shards.acceptance, float), _named(posterior, "chains", "acceptance")),
        ("smallest ESS", worst_of(shards.ess, np.fmin), set()),
        ("largest R-hat", worst_of(shards.r_hat, np.fmax), _named(posterior, "chains", "r_hat")),
    ]
    figure = SharedFigure((4.0, 3.1))
    for k, (name, values, named) in enumerate(rows):
        axes = figure.add_axes((0.18, 0.735 - 0.305 * k, 0.78, 0.22))
        _draw_chain_row(axes, values, named)
        axes.set_ylabel(name)
        if k < 2:
            axes.tick_params(axis="x", labelbottom=False)
        axes.yaxis.set_label_coords(-0.175, 0.5)
    figure.axes[-1].set_xlabel("shard")
    if np.isfinite(rows[0][1]).any():
        figure.axes[0].set_ylim(0, 1.05)
    return figure


def worst_of(table: np.ndarray, reduce: np.ufunc) -> np.ndarray:
    """One number per shard from a (shard, dim) table; NaN if a shard has none."""
    return reduce.reduce(np.asarray(table, float), axis=1)


def _draw_chain_row(axes: Axes, values: np.ndarray, named: set[int]) -> None:
    shard = np.arange(len(values))
    beyond = np.isin(shard, list(named))
    _dots(axes, shard[~beyond], values[~beyond], "combined", "o")
    _dots(axes, shard[beyond], values[beyond], "alarm", "D")
    finite = values[np.isfinite(values)]
    if len(finite):
        middle = float(np.median(finite))
        axes.axhline(middle, color=COLORS["rule"], linewidth=0.9, zorder=0)
        low, high = float(finite.min()), float(finite.max())
        room = 0.12 * (high - low) or 0.05 * abs(middle) or 1.0
        axes.set_ylim(low - room, high + room)
    margin = max(0.5, 0.02 * len(values))
    axes.set_xlim(-margin, len(values) - 1 + margin)
    tidy_axis(axes, "x", 6)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    tidy_axis(axes, "y", 3)
    axes.yaxis.set_major_formatter(TickLabels())
