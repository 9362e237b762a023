"""Do the shards agree, and how did their chains go: figures with one mark per shard."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from scipy import stats

from shardmc.check.agreement import LEVEL
from shardmc.errors import OptionError
from shardmc.posterior import Posterior
from shardmc.report.style import COLORS, SharedFigure, TickLabels, styled, tidy_axis

_MOST_NAMED = 6
_GOOD_R_HAT = 1.1  # of one shard, whose chains are short


def outlying(posterior: Posterior, level: float = LEVEL) -> np.ndarray:
    """Shards whose disagreement Q is beyond the family-wise level, the gravest first.

    P(chi^2_d > Q_i) < level / K
    """
    q = posterior.shards.disagreement
    if q is None:
        return np.empty(0, int)
    beyond = np.flatnonzero(np.nan_to_num(q, nan=0.0) > threshold(posterior, level))
    return beyond[np.argsort(-q[beyond], kind="stable")]


def threshold(posterior: Posterior, level: float = LEVEL) -> float:
    """The Q that no shard of a good run exceeds, save with chance `level`."""
    count = int(np.isfinite(posterior.shards.disagreement).sum())  # type: ignore[arg-type]
    return float(stats.chi2.isf(level / max(count, 1), len(posterior.names)))


@styled
def plot_shards(posterior: Posterior, *, level: float = LEVEL) -> Figure:
    """Disagreement of every shard with the whole against what chance makes: a straight line if all is well.

    Q_i of shard i, sorted, over the quantiles of chi^2 with d degrees of freedom; the band holds each point with
    probability 0.95, and shards above the dashed line are named.

    Parameters
    ----------
    posterior
        What `fit` returned, of more than one shard and with modes.
    level
        Chance that any shard of a good run lies above the dashed line.
    """
    q = posterior.shards.disagreement
    if q is None or not np.isfinite(q).any():
        raise OptionError("There is no shard agreement to draw: it takes several shards, and their modes.")
    there = np.flatnonzero(np.isfinite(q))
    order = there[np.argsort(q[there], kind="stable")]
    values, count, dim = q[order], len(order), len(posterior.names)
    expected = stats.chi2.ppf((np.arange(count) + 0.5) / count, dim)
    limit = threshold(posterior, level)

    figure = SharedFigure((4.0, 3.1))
    axes = figure.add_axes((0.17, 0.15, 0.79, 0.77))
    axes.yaxis.set_label_coords(-0.15, 0.5)
    logarithmic = values[-1] > 4 * limit
    if logarithmic:
        _logarithmic(axes, max(values[0], 0.01 * dim), values[-1])
    _draw_chance(axes, expected, dim, limit, level)
    beyond = values > limit
    _dots(axes, expected[~beyond], values[~beyond], "combined", "o")
    _dots(axes, expected[beyond], values[beyond], "alarm", "D")
    if not logarithmic:
        axes.set_ylim(0, 1.1 * max(values[-1], limit))
        tidy_axis(axes, "x", 5)
        tidy_axis(axes, "y", 5)
    _name_shards(axes, expected[beyond][::-1], values[beyond][::-1], order[beyond][::-1])
    axes.set_xlabel(f"expected: quantile of χ² with {dim} degree{'s' if dim > 1 else ''} of freedom")
    axes.set_ylabel("disagreement Q")
    return figure


def _draw_chance(axes: Axes, expected: np.ndarray, dim: int, limit: float, level: float) -> None:
    """What chance makes: the line of equality, the band around it, and the limit."""
    count = len(expected)
    rank = np.arange(1, count + 1)
    low, high = (stats.chi2.ppf(stats.beta.ppf(p, rank, count + 1 - rank), dim) for p in (0.025, 0.975))
    axes.fill_between(expected, low, high, color=COLORS["rule"], alpha=0.5, linewidth=0)
    axes.plot(expected, expected, color=COLORS["muted"], linewidth=0.8)
    axes.axhline(limit, color=COLORS["alarm"], linewidth=0.9, linestyle=(0, (4, 3)))
    axes.annotate(
        f"none above in {100 * (1 - level):g} % of good runs",
        (0.01, limit),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=COLORS["alarm"],
        fontsize=7,
    )


def _logarithmic(axes: Axes, smallest: float, largest: float) -> None:
    """Shards far beyond chance leave no room for the others unless the axis is logarithmic."""
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
    """Names of the shards in a column left of them, moved down where they would overlap; many of them on top."""
    if len(shards) > _MOST_NAMED:
        gravest = ", ".join(map(str, shards[:_MOST_NAMED]))
        axes.set_title(
            f"{len(shards)} shards above the line, the gravest: {gravest}", fontsize=7.5, weight="normal"
        )
        return
    if len(shards) == 0:
        return
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

    Parameters
    ----------
    posterior
        What `fit` returned.
    """
    shards = posterior.shards
    rows = [
        ("acceptance", np.asarray(shards.acceptance, float), None),
        ("smallest ESS", worst_of(shards.ess, np.fmin), None),
        ("largest R-hat", worst_of(shards.r_hat, np.fmax), _GOOD_R_HAT),
    ]
    figure = SharedFigure((4.0, 3.1))
    for k, (name, values, limit) in enumerate(rows):
        axes = figure.add_axes((0.18, 0.735 - 0.305 * k, 0.78, 0.22))
        _draw_chain_row(axes, values, limit)
        axes.set_ylabel(name)
        if k < 2:
            axes.tick_params(axis="x", labelbottom=False)
        axes.yaxis.set_label_coords(-0.175, 0.5)
    figure.axes[-1].set_xlabel("shard")
    if np.isfinite(rows[0][1]).any():
        figure.axes[0].set_ylim(0, 1.05)
    return figure


def worst_of(table: np.ndarray, reduce: np.ufunc) -> np.ndarray:
    """One number per shard of a (shard, dim) table; NaN where it holds none."""
    return reduce.reduce(np.asarray(table, float), axis=1)


def _draw_chain_row(axes: Axes, values: np.ndarray, limit: float | None) -> None:
    shard = np.arange(len(values))
    beyond = np.zeros(len(values), bool) if limit is None else values > limit
    _dots(axes, shard[~beyond], values[~beyond], "combined", "o")
    _dots(axes, shard[beyond], values[beyond], "alarm", "D")
    if limit is not None:
        axes.axhline(limit, color=COLORS["alarm"], linewidth=0.9, linestyle=(0, (4, 3)))
    finite = values[np.isfinite(values)]
    if len(finite):
        middle = float(np.median(finite))
        axes.axhline(middle, color=COLORS["rule"], linewidth=0.9, zorder=0)
        low, high = float(finite.min()), max(float(finite.max()), limit or -np.inf)
        room = 0.12 * (high - low) or 0.05 * abs(middle) or 1.0
        axes.set_ylim(low - room, high + room)
    margin = max(0.5, 0.02 * len(values))
    axes.set_xlim(-margin, len(values) - 1 + margin)
    tidy_axis(axes, "x", 6)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    tidy_axis(axes, "y", 3)
    axes.yaxis.set_major_formatter(TickLabels())
