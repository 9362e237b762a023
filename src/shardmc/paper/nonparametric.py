"""The paper's non-parametric claim: the density of a Dirichlet-process mixture, recentred on a grid."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.combiners.recenter import Recenter
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.model import Model
from shardmc.paper.result import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    Call,
    Claim,
    Figure,
    Line,
    Reproduction,
    Table,
    canvas,
    legend_above,
    prose,
)
from shardmc.sample import Gibbs, multinomial_labels, sample
from shardmc.types import ShardDraws

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


WEIGHTS, MEANS, SDS = (0.45, 0.35, 0.2), (-1.5, 0.8, 2.8), (0.5, 0.8, 0.6)
"""The true mixture of normals."""

_CONCENTRATION = 1.0
_MEAN_VARIANCE = 9.0  # of the normal prior of a component's mean, around 0
_SHAPE, _SCALE = 3.0, 1.0  # of the inverse gamma prior of its variance

State = dict[str, jax.Array]


def simulate(num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of the mixture."""
    label = rng.choice(len(WEIGHTS), size=num_rows, p=WEIGHTS)
    return (np.array(MEANS)[label] + np.array(SDS)[label] * rng.standard_normal(num_rows)).astype(np.float32)


def true_density(y: np.ndarray) -> np.ndarray:
    z = (np.asarray(y)[:, None] - np.array(MEANS)) / np.array(SDS)
    return (np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / np.array(SDS)) @ np.array(WEIGHTS)


@dataclass(frozen=True)
class StickBreaking:
    """Blocked Gibbs updates for a mixture of `components` normals whose weights come from a broken stick.

    v_h ~ Beta(1, concentration), weight_h = v_h prod_{l < h} (1 - v_l), v_last = 1; mean_h is normal, variance_h
    inverse gamma. The w_j copies of row j fall into components as Multinomial(w_j, p_j.); counts, sums and sums of
    squares are over copies. The output is the log density at `grid`, not the labelled components.
    """

    components: int
    grid: tuple[float, ...]

    def gibbs(self, warmup: int, thin: int) -> Gibbs:
        return Gibbs(self.step, self.init, self.observe, warmup=warmup, thin=thin)

    def init(self, key: jax.Array, y: jax.Array, weights: jax.Array) -> State:
        """Components at random rows, weights all equal."""
        chosen = jax.random.choice(key, len(y), (self.components,), p=weights / weights.sum())
        equal = jnp.full(self.components, -jnp.log(self.components))
        return {"log_weights": equal, "mean": y[chosen], "variance": jnp.ones(self.components)}

    def step(self, key: jax.Array, state: State, y: jax.Array, weights: jax.Array) -> State:
        """Draw labels, stick, means and variances, each given the others."""
        keys = jax.random.split(key, 4)
        log_terms = _log_terms(state, y)
        z = multinomial_labels(keys[0], weights, jnp.exp(log_terms - log_terms.max(axis=1, keepdims=True)))
        count, total = z.sum(axis=0), y @ z
        precision = count / state["variance"] + 1 / _MEAN_VARIANCE
        mean = total / state["variance"] / precision
        mean = mean + jax.random.normal(keys[1], count.shape) / jnp.sqrt(precision)
        squares = jnp.sum(z * (y[:, None] - mean) ** 2, axis=0)
        variance = (_SCALE + squares / 2) / jax.random.gamma(keys[2], _SHAPE + count / 2)
        return {"log_weights": _stick(keys[3], count), "mean": mean, "variance": variance}

    def observe(self, state: State) -> State:
        return {"log_density": jax.nn.logsumexp(_log_terms(state, jnp.asarray(self.grid)), axis=1)}


def _log_terms(state: State, y: jax.Array) -> jax.Array:
    """log(weight_h) + log N(y; mean_h, variance_h), (point, component)."""
    z2 = (y[:, None] - state["mean"]) ** 2 / state["variance"]
    return state["log_weights"] - 0.5 * (z2 + jnp.log(2 * jnp.pi * state["variance"]))


def _stick(key: jax.Array, count: jax.Array) -> jax.Array:
    """Log weights of a broken stick, given the number of copies in each component."""
    after = jnp.cumsum(count[::-1])[::-1] - count
    # v and 1 - v are gamma variates divided by their sum. Logarithms are used because a piece may underflow float32.
    key_piece, key_rest = jax.random.split(key)
    log_piece = jax.random.loggamma(key_piece, 1 + count)
    log_rest = jax.random.loggamma(key_rest, _CONCENTRATION + after)
    log_sum = jnp.logaddexp(log_piece, log_rest)
    log_v = (log_piece - log_sum).at[-1].set(0.0)
    before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_rest - log_sum)[:-1]])
    return log_v + before


def grid_points(y: np.ndarray, count: int) -> tuple[float, ...]:
    """Equally spaced points between the 0.5 % and 99.5 % quantiles."""
    low, high = np.quantile(y, [0.005, 0.995])
    return tuple(np.linspace(low, high, count).tolist())


AR, POINTWISE, POOLED, AGAIN = (
    "AR",
    "affine from draws, point by point",
    "not recentred",
    "all rows, another run",
)
_CAPTION = (
    "Left: posterior mean of the density. Right: the log density minus the true one, posterior mean (lines) ± two "
    "posterior standard deviations (bands)."
)


@dataclass(frozen=True)
class _Outcome:
    """Draws (draw, point) of the log density on a grid: from all rows, and from each combination."""

    grid: np.ndarray
    reference: np.ndarray
    combined: Mapping[str, np.ndarray]

    def mean_errors(self, name: str) -> np.ndarray:
        """Error of the mean at every point, in posterior standard deviations."""
        return (self.combined[name].mean(axis=0) - self.reference.mean(axis=0)) / self.reference.std(axis=0)

    def sd_ratios(self, name: str) -> np.ndarray:
        return self.combined[name].std(axis=0) / self.reference.std(axis=0)

    def density_error(self, name: str) -> float:
        """Integral of the absolute difference of the mean densities over the grid."""
        gap = np.exp(self.combined[name]).mean(axis=0) - np.exp(self.reference).mean(axis=0)
        return float(np.abs(gap).sum() * (self.grid[1] - self.grid[0]))

    def summary(self, name: str) -> dict[str, float]:
        errors, ratios = self.mean_errors(name), self.sd_ratios(name)
        return {
            "rms_mean_error": float(np.sqrt(np.mean(errors**2))),
            "largest_mean_error": float(np.abs(errors).max()),
            "smallest_sd_ratio": float(ratios.min()),
            "median_sd_ratio": float(np.median(ratios)),
            "largest_sd_ratio": float(ratios.max()),
            "density_error": self.density_error(name),
        }


def nonparametric(call: Call) -> Reproduction:
    """The posterior of a density from all rows, and from shards whose log densities are recentred point by point."""
    outcome = _outcome(call)
    summaries = {name: outcome.summary(name) for name in outcome.combined}
    return Reproduction(
        "nonparametric",
        "The non-parametric claim: a Dirichlet-process mixture",
        prose("nonparametric"),
        (_table(summaries),),
        (Figure("nonparametric", _CAPTION, lambda: _draw(outcome)),),
        _claims(summaries),
        {"rows": call.choose(100_000, 5_000), "shards": call.choose(20, 5), "summaries": summaries},
    )


def _outcome(call: Call) -> _Outcome:
    y = simulate(call.choose(100_000, 5_000), np.random.default_rng([call.seed, 10]))
    sticks = StickBreaking(call.choose(10, 6), grid_points(y, 60))

    def run(shards: int, draws: int, warmup: int, seed: int) -> ShardDraws:
        blocks = as_source(y).split(Partition(shards), seed)
        sampler = sticks.gibbs(warmup, 1)
        sampled = sample(_functional(60), blocks, None, sampler, Local(), num_draws=draws, seed=seed)
        return sampled.draws(blocks.shares)

    call.tell(0, 2)
    draws, warmup = call.choose((2_000, 400), (300, 150))
    with ThreadPoolExecutor(2) as pool:
        pair = [pool.submit(run, 1, draws, warmup, call.seed + number) for number in (0, 1)]
        reference, again = (future.result().values[0] for future in pair)
    call.tell(1, 2)
    num_shards, draws, warmup = call.choose((20, 400, 250), (5, 150, 100))
    shards = run(num_shards, draws, warmup, call.seed)
    call.tell(2, 2)
    combined = {
        AR: Recenter.algorithm_1()(shards, None, np.random.default_rng(0)).values,
        POINTWISE: _point_by_point(shards),
        POOLED: np.concatenate(shards.values),
        AGAIN: again,
    }
    return _Outcome(np.array(sticks.grid), reference, combined)


def _functional(points: int) -> Model:
    """A model whose parameters are the log density at the points. Gibbs sampling needs no likelihood."""
    return Model(lambda params, y: jnp.zeros_like(y), None, {"log_density": (points,)})


def _point_by_point(shards: ShardDraws) -> np.ndarray:
    """The default without modes, separately at each point of the grid."""
    columns = [
        Recenter()(ShardDraws.of([v[:, [j]] for v in shards.values]), None, np.random.default_rng(0)).values
        for j in range(shards.dim)
    ]
    return np.concatenate(columns, axis=1)


def _table(summaries: Mapping[str, dict[str, float]]) -> Table:
    rows = tuple(
        (
            name,
            f"{s['rms_mean_error']:.2f}",
            f"{s['largest_mean_error']:.2f}",
            f"{s['smallest_sd_ratio']:.2f} / {s['median_sd_ratio']:.2f} / {s['largest_sd_ratio']:.2f}",
            f"{s['density_error']:.1e}",
        )
        for name, s in summaries.items()
    )
    columns = (
        "",
        "error of the mean, rms over the grid (sd)",
        "largest (sd)",
        "ratio of sds, least / median / largest",
        "L1 distance of the mean densities",
    )
    note = "Compared with one run of the sampler on all rows. The last line compares two such runs."
    return Table("The log density on a grid of 60 points", columns, rows, note)


def _claims(summaries: Mapping[str, dict[str, float]]) -> tuple[Claim, ...]:
    recentred, raw, again = summaries[AR], summaries[POOLED], summaries[AGAIN]
    return (
        Claim(
            "Recentring the log density brings it close to its posterior: the mean is off by "
            f"{recentred['rms_mean_error']:.2f} posterior sd (rms over the grid; two runs on all rows differ by "
            f"{again['rms_mean_error']:.2f}), the median ratio of sds is {recentred['median_sd_ratio']:.2f}, against "
            f"{raw['median_sd_ratio']:.1f} without recentring.",
            recentred["rms_mean_error"] < 1 and abs(recentred["median_sd_ratio"] - 1) < 0.3,
        ),
    )


def _draw(outcome: _Outcome) -> Canvas:
    figure, axes = canvas(1, 2, height=3.2)
    truth = true_density(outcome.grid)
    lines: tuple[tuple[str, np.ndarray, Line], ...] = (
        (POOLED, outcome.combined[POOLED], {"color": GREEN, "linestyle": "-."}),
        ("all rows", outcome.reference, {"color": BLACK, "linestyle": "-"}),
        (AR, outcome.combined[AR], {"color": BLUE, "linestyle": (0, (4, 2))}),
        (POINTWISE, outcome.combined[POINTWISE], {"color": ORANGE, "linestyle": (0, (1, 1))}),
    )
    left, right = axes[0]
    left.plot(outcome.grid, truth, color="0.7", linewidth=4, label="true density")
    for label, draws, line in lines:
        left.plot(outcome.grid, np.exp(draws).mean(axis=0), label=label, linewidth=1.4, **line)
        mean, sd = draws.mean(axis=0) - np.log(truth), draws.std(axis=0)
        right.plot(outcome.grid, mean, linewidth=1.4, **line)
        right.fill_between(
            outcome.grid, mean - 2 * sd, mean + 2 * sd, color=line["color"], alpha=0.15, linewidth=0
        )
    right.axhline(0, color="0.7", linewidth=1)
    left.set_ylabel("density")
    right.set_ylabel("log density less the true one")
    for panel in (left, right):
        panel.set_xlabel("$y$")
    legend_above(figure, left, columns=3)
    return figure
