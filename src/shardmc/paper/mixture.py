"""Example 4, Figure 2: a regression with outliers, by Gibbs sampling and with the labels summed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.combiners.density import bandwidth_of, density_at
from shardmc.combiners.recenter import Recenter
from shardmc.model import Model
from shardmc.paper.result import (
    BLACK,
    BLUE,
    ORANGE,
    RED,
    Call,
    Claim,
    Figure,
    Reproduction,
    Table,
    WideLine,
    canvas,
    few_ticks,
    legend_above,
    prose,
)
from shardmc.pipeline import fit
from shardmc.posterior import Posterior
from shardmc.sample import Gibbs, binomial_labels
from shardmc.types import Params, ShardDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


TRUE = {"alpha": 2.0, "beta": 5.0, "variance": 1.0, "outlier_variance": 10.0, "p": 0.05}
"""The true parameters: alpha, beta, sigma^2, psi^2 and p of the paper."""

_SLOPE_VARIANCE = 100.0  # of the normal priors of alpha and beta, which have mean 0
_SHAPE, _SCALE = 2.0, 1.0  # of the inverse gamma priors of the variances
_SUCCESSES, _FAILURES = 1.0, 1.0  # of the Beta prior of p

State = dict[str, jax.Array]
Rows = dict[str, jax.Array]


def simulate(num_rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows of the mixture. The paper does not give the distribution of x; here it is standard normal."""
    x = rng.standard_normal((2, num_rows))
    outlier = rng.random(num_rows) < TRUE["p"]
    regular = (
        TRUE["alpha"] * x[0] + TRUE["beta"] * x[1] + np.sqrt(TRUE["variance"]) * rng.standard_normal(num_rows)
    )
    other = np.sqrt(TRUE["outlier_variance"]) * rng.standard_normal(num_rows)
    y = np.where(outlier, other, regular)
    return {"x1": x[0].astype(np.float32), "x2": x[1].astype(np.float32), "y": y.astype(np.float32)}


def residuals(state: Params, rows: Rows) -> jax.Array:
    """y - alpha x1 - beta x2 of every row."""
    return rows["y"] - state["alpha"] * rows["x1"] - state["beta"] * rows["x2"]


def outlier_log_odds(state: Params, rows: Rows) -> jax.Array:
    """Log odds, given the parameters, that a row is an outlier."""
    return (
        jnp.log(state["p"])
        - jnp.log1p(-state["p"])
        + _log_normal(rows["y"], state["outlier_variance"])
        - _log_normal(residuals(state, rows), state["variance"])
    )


def _log_normal(x: jax.Array, variance: jax.Array) -> jax.Array:
    return -0.5 * (x**2 / variance + jnp.log(2 * jnp.pi * variance))


def step(key: jax.Array, state: State, rows: Rows, weights: jax.Array) -> State:
    """One sweep over the paper's conditionals: z_j ~ Binomial(w_j, p_j*), and (w_j - z_j) replaces (1 - z_j)."""
    keys = jax.random.split(key, 6)
    z = binomial_labels(keys[0], weights, jax.nn.sigmoid(outlier_log_odds(state, rows)))
    regular = weights - z
    for name, column, key in (("alpha", "x1", keys[1]), ("beta", "x2", keys[2])):
        state = {**state, name: _slope(key, state, rows, regular, name, column)}
    squares = regular @ residuals(state, rows) ** 2
    return {
        **state,
        "variance": _variance(keys[3], regular.sum(), squares),
        "outlier_variance": _variance(keys[4], z.sum(), z @ rows["y"] ** 2),
        "p": jax.random.beta(keys[5], _SUCCESSES + z.sum(), _FAILURES + regular.sum()),
    }


def _slope(key: jax.Array, state: State, rows: Rows, regular: jax.Array, name: str, column: str) -> jax.Array:
    """A draw of one slope given everything else."""
    x = rows[column]
    precision = regular @ x**2 / state["variance"] + 1 / _SLOPE_VARIANCE
    # The paper's mean as a step from the present value. Its sums are small, so float32 is precise enough.
    pull = regular @ (x * residuals(state, rows)) / state["variance"] - state[name] / _SLOPE_VARIANCE
    return state[name] + pull / precision + jax.random.normal(key) / jnp.sqrt(precision)


def _variance(key: jax.Array, count: jax.Array, squares: jax.Array) -> jax.Array:
    """A draw of a variance given the number of its rows and the sum of their squares."""
    return (_SCALE + squares / 2) / jax.random.gamma(key, _SHAPE + count / 2)


def init(key: jax.Array, rows: Rows, weights: jax.Array) -> State:
    """Least squares for the slopes; a tenth of the rows are outliers."""
    del key
    x = jnp.stack([rows["x1"], rows["x2"]], axis=1)
    slopes = jnp.linalg.solve(x.T @ (weights[:, None] * x), x.T @ (weights * rows["y"]))
    state = {"alpha": slopes[0], "beta": slopes[1]}
    mean_square = weights @ residuals(state, rows) ** 2 / weights.sum()
    outlier_variance = weights @ rows["y"] ** 2 / weights.sum()
    return {**state, "variance": mean_square, "outlier_variance": outlier_variance, "p": jnp.asarray(0.1)}


def observe(state: State) -> State:
    """The whole state consists of parameters."""
    return state


def gibbs(warmup: int = 100) -> Gibbs:
    """The Gibbs sampler of the example, for one shard or for all rows."""
    return Gibbs(step, init, observe, warmup=warmup)


def log_likelihood(params: Params, rows: Rows) -> jax.Array:
    """Log density of every row, labels summed out."""
    regular = jnp.log1p(-params["p"]) + _log_normal(residuals(params, rows), params["variance"])
    other = jnp.log(params["p"]) + _log_normal(rows["y"], params["outlier_variance"])
    return jnp.logaddexp(regular, other)


def log_prior(params: Params) -> jax.Array:
    """Log density of the paper's conjugate priors, up to a constant."""
    slopes = -(params["alpha"] ** 2 + params["beta"] ** 2) / (2 * _SLOPE_VARIANCE)
    variances = sum(
        -(_SHAPE + 1) * jnp.log(params[name]) - _SCALE / params[name]
        for name in ("variance", "outlier_variance")
    )
    proportion = (_SUCCESSES - 1) * jnp.log(params["p"]) + (_FAILURES - 1) * jnp.log1p(-params["p"])
    return slopes + variances + proportion


@cache
def model() -> Model:
    """The same posterior with the labels summed out."""
    parameters = {
        "alpha": (),
        "beta": (),
        "variance": "positive",
        "outlier_variance": "positive",
        "p": "unit_interval",
    }
    start = {"alpha": 1.0, "beta": 1.0, "variance": 4.0, "outlier_variance": 30.0, "p": 0.1}
    return Model(log_likelihood, log_prior, parameters, initial=start)


NUM_SHARDS = 50
DATA_SETS = 1
AR, MODES, SUMMED = "AR (Gibbs)", "shardmc (Gibbs)", "shardmc (labels summed out)"

_LINES: dict[str, WideLine] = {
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


def figure_2(call: Call) -> Reproduction:
    """Gibbs on all rows, Gibbs on shards recentred in two ways, and the default path with labels summed out."""
    runs = []
    for number in range(DATA_SETS):
        call.tell(3 * number, 3 * DATA_SETS)
        runs.append(_run(call, number))
    call.tell(3 * DATA_SETS, 3 * DATA_SETS)
    return Reproduction(
        "figure-2",
        "Example 4, Figure 2: Gaussian mixture regression with latent labels",
        prose("figure-2"),
        (_table(runs),),
        (Figure("figure-2", _CAPTION, lambda: _draw(runs[0])),),
        # The Monte Carlo error of the quick version is as large as the bounds of the full version.
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
    run = partial(fit, model(), rows, seed=call.seed + number, check=False)
    full = run(shards=1, sampler=gibbs(200), draws=call.choose(6_000, 1_000))
    call.tell(3 * number + 1, 3 * DATA_SETS)
    draws = NUM_SHARDS * call.choose(300, 80)
    shards = run(shards=NUM_SHARDS, sampler=gibbs(call.choose(100, 50)), draws=draws)
    call.tell(3 * number + 2, 3 * DATA_SETS)
    summed = run(shards=NUM_SHARDS, draws=draws)
    combined = {AR: _algorithm_1(shards), MODES: shards.draws, SUMMED: summed.draws}
    return _Run(full.draws, _effective(full.draws), combined)


def _algorithm_1(posterior: Posterior) -> dict[str, np.ndarray]:
    """The shards' draws, recentred by their means on the natural scale, as in the paper."""
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


def _numbers(run: _Run) -> dict[str, object]:
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
            axis.plot(
                points,
                density_at(draws[name], points, bandwidth_of(sd, len(draws[name]))),
                label=label,
                **_LINES[label],
            )
        axis.axvline(true, color="0.5", linewidth=1, label="true value")
        axis.set_xlabel(_SYMBOLS[name])
        axis.set_ylim(bottom=0)
        few_ticks(axis)
    for row in axes:
        row[0].set_ylabel("density")
    axes[1, 2].set_visible(False)
    legend_above(figure, axes[0, 0], columns=3)
    return figure
