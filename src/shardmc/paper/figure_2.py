"""Example 4, Figure 2: the Gaussian mixture regression by Gibbs sampling with multiplicities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmc.combine.recenter import Recenter
from shardmc.fit import fit
from shardmc.paper.curves import density_curve
from shardmc.paper.mixture import TRUE, gibbs, model, simulate
from shardmc.paper.prose import prose
from shardmc.paper.result import Call, Claim, Figure, Result, Table
from shardmc.paper.style import BLACK, BLUE, ORANGE, RED, canvas, legend_above
from shardmc.posterior import Posterior
from shardmc.types import ShardDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

NAME = "figure-2"
NUM_SHARDS = 50
DATA_SETS = 1
AR, MODES, SUMMED = "AR (Gibbs)", "shardmc (Gibbs)", "shardmc (labels summed out)"

_LINES: dict[str, dict[str, Any]] = {
    "all rows (Gibbs)": {"color": BLACK, "linestyle": "-", "linewidth": 2.2},
    AR: {"color": RED, "linestyle": (0, (4, 2)), "linewidth": 1.6},
    MODES: {"color": BLUE, "linestyle": (0, (1, 1)), "linewidth": 1.8},
    SUMMED: {"color": ORANGE, "linestyle": (0, (6, 2, 1, 2)), "linewidth": 1.6},
}
_SYMBOLS = {
    "alpha": r"$\alpha$",
    "beta": r"$\beta$",
    "variance": r"$\sigma^2$",
    "outlier_variance": r"$\psi^2$",
    "p": "$p$",
}
_CAPTION = (
    "Marginal posterior densities of the five parameters. Vertical lines mark the values from which the rows were "
    "generated."
)

Draws = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Run:
    """One data set: draws on the natural scale from Gibbs on all rows, and from each combination."""

    reference: Draws
    effective: Draws  # effective number of draws of the reference, one number for each parameter
    combined: Mapping[str, Draws]

    def mean_error(self, method: str, name: str) -> float:
        """Error of the mean in posterior standard deviations."""
        exact = self.reference[name]
        return float((self.combined[method][name].mean() - exact.mean()) / exact.std())

    def sd_ratio(self, method: str, name: str) -> float:
        return float(self.combined[method][name].std() / self.reference[name].std())


def reproduce(call: Call) -> Result:
    """Gibbs on all rows, Gibbs on shards recentred in two ways, and the default path on the summed-out likelihood."""
    runs = []
    for number in range(DATA_SETS):
        call.tell(3 * number, 3 * DATA_SETS)
        runs.append(_run(call, number))
    call.tell(3 * DATA_SETS, 3 * DATA_SETS)
    return Result(
        NAME,
        "Example 4, Figure 2: Gaussian mixture regression with latent labels",
        prose(NAME),
        (_table(runs),),
        (Figure(NAME, _CAPTION, lambda: _draw(runs[0])),),
        # The small version's own Monte Carlo error is as large as the full version's bounds.
        tuple(_claim(runs, method, *call.choose((0.1, 0.05), (0.3, 0.15))) for method in _METHODS),
        {
            "rows": call.choose(10**6, 10**5),
            "shards": NUM_SHARDS,
            "data_sets": [_numbers(run) for run in runs],
        },
    )


_METHODS = (AR, MODES, SUMMED)


def _run(call: Call, number: int) -> _Run:
    rows = simulate(call.choose(10**6, 10**5), np.random.default_rng([call.seed, 7, number]))
    options: dict[str, Any] = {"seed": call.seed + number, "check": False}
    full = fit(model(), rows, shards=1, sampler=gibbs(200), draws=call.choose(6_000, 1_000), **options)
    call.tell(3 * number + 1, 3 * DATA_SETS)
    draws = NUM_SHARDS * call.choose(300, 80)
    shards = fit(
        model(), rows, shards=NUM_SHARDS, sampler=gibbs(call.choose(100, 50)), draws=draws, **options
    )
    call.tell(3 * number + 2, 3 * DATA_SETS)
    summed = fit(model(), rows, shards=NUM_SHARDS, draws=draws, **options)
    combined = {AR: _algorithm_1(shards), MODES: shards.draws, SUMMED: summed.draws}
    return _Run(full.draws, _effective(full.draws), combined)


def _algorithm_1(posterior: Posterior) -> dict[str, np.ndarray]:
    """The shards' own draws, recentred by their means on the natural scale as the paper does it."""
    natural = [model().natural_vector(values) for values in posterior.shards.draws]
    values = Recenter.algorithm_1()(ShardDraws.of(natural), None, np.random.default_rng(0)).values
    return dict(zip(TRUE, values.T, strict=True))


def _effective(draws: Draws) -> dict[str, np.ndarray]:
    from arviz_stats.base.array import array_stats

    return {
        name: np.asarray(array_stats.ess(values[None], chain_axis=0, draw_axis=1))
        for name, values in draws.items()
    }


def _table(runs: list[_Run]) -> Table:
    rows = []
    for number, run in enumerate(runs):
        for name, true in TRUE.items():
            exact = run.reference[name]
            columns = [f"{run.mean_error(m, name):+.3f} / {run.sd_ratio(m, name):.3f}" for m in _METHODS]
            size = f"{float(run.effective[name]):,.0f}"
            rows.append(
                (
                    str(number + 1),
                    name,
                    f"{true:g}",
                    f"{exact.mean():.5g}",
                    f"{exact.std():.3g}",
                    size,
                    *columns,
                )
            )
    title = "Error of the mean in posterior standard deviations / ratio of standard deviations to Gibbs on all rows"
    columns = (
        "data set",
        "parameter",
        "true",
        "mean, all rows",
        "sd, all rows",
        "effective draws",
        *_METHODS,
    )
    return Table(title, columns, tuple(rows))


def _claim(runs: list[_Run], method: str, mean_bound: float, sd_bound: float) -> Claim:
    means = max(abs(run.mean_error(method, name)) for run in runs for name in TRUE)
    sds = max(abs(run.sd_ratio(method, name) - 1) for run in runs for name in TRUE)
    text = (
        f"{method}: every mean within {mean_bound:g} sd of Gibbs on all rows (largest error {means:.3f}), "
        f"every sd within {100 * sd_bound:g} % (largest error {100 * sds:.1f} %)."
    )
    return Claim(text, means <= mean_bound and sds <= sd_bound)


def _numbers(run: _Run) -> dict[str, Any]:
    return {
        name: {
            "mean": float(run.reference[name].mean()),
            "sd": float(run.reference[name].std()),
            "effective_draws": float(run.effective[name]),
            "mean_error": {m: run.mean_error(m, name) for m in _METHODS},
            "sd_ratio": {m: run.sd_ratio(m, name) for m in _METHODS},
        }
        for name in TRUE
    }


def _draw(run: _Run) -> Canvas:
    figure, axes = canvas(2, 3)
    curves = {"all rows (Gibbs)": run.reference, **run.combined}
    for axis, (name, true) in zip(axes.flat, TRUE.items(), strict=False):
        exact = run.reference[name]
        mean, sd = float(exact.mean()), float(exact.std())
        points = np.linspace(mean - 4.5 * sd, mean + 4.5 * sd, 301)
        for label, draws in curves.items():
            axis.plot(points, density_curve(draws[name], points, sd), label=label, **_LINES[label])
        axis.axvline(true, color="0.5", linewidth=1, label="true value")
        axis.set_xlabel(_SYMBOLS[name])
        axis.set_ylim(bottom=0)
        axis.locator_params(axis="x", nbins=4)
        axis.locator_params(axis="y", nbins=4)
    for row in axes:
        row[0].set_ylabel("density")
    axes[1, 2].set_visible(False)
    legend_above(figure, axes[0, 0], columns=3)
    return figure
