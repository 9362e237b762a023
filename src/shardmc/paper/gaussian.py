"""Example 1, Table 1: the Gaussian model with unknown mean and variance."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from scipy import stats

from shardmc.combiners.density import Distribution
from shardmc.combiners.distance import joint_l2, marginal_l2
from shardmc.combiners.recenter import Recenter
from shardmc.model import Model
from shardmc.paper.comparison import (
    OURS,
    TABLE_1,
    LocatedShards,
    MethodComparison,
    default_draws,
    default_is_closest,
    distance_table,
    mapped,
    ranking_table,
    record,
    rival_draws,
    thinned,
)
from shardmc.paper.result import Call, Reproduction, prose
from shardmc.types import Located, Mode, Params, Scaling, ShardDraws

if TYPE_CHECKING:
    import jax

SHARDS = (20, 50, 100)
VARIANCE = 10.0
_REFERENCE_DRAWS = 400_000
_NOISE_SETS = 2
_WS_REASON = (
    "WS keeps pairs of draws that are close together, and uses the same draw in many pairs. Its draws are therefore "
    "worth fewer than the same number of draws of the other methods."
)


@cache
def model() -> Model:
    """Normal rows. p(mu, log sigma) is constant, so the prior density of (mu, sigma^2) is 1 / sigma^2."""
    import jax.numpy as jnp

    def log_likelihood(params: Params, y: jax.Array) -> jax.Array:
        return -0.5 * ((y - params["mu"]) ** 2 / params["variance"] + jnp.log(params["variance"]))

    def log_prior(params: Params) -> jax.Array:
        return -jnp.log(params["variance"])

    return Model(
        log_likelihood, log_prior, {"mu": (), "variance": "positive"}, initial={"variance": VARIANCE}
    )


@dataclass(frozen=True)
class NormalInverseGamma:
    """Posteriors of (mu, sigma^2), one per shard: likelihood * prior^power, with a weighted number of rows n.

    sigma^2 is inverse gamma with shape (n - 1) / 2 + power - 1; its scale is half the sum of squares. Given sigma^2, mu
    is normal around the mean of the rows with variance sigma^2 / n.
    """

    count: float  # n, weights included
    mean: np.ndarray  # (shard,)
    squares: np.ndarray  # (shard,) weighted sums of squares about the mean
    power: float = 1.0

    @property
    def shape(self) -> float:
        return (self.count - 1) / 2 + self.power - 1

    @staticmethod
    def of(y: np.ndarray, num_shards: int, scaling: Scaling) -> NormalInverseGamma:
        """Subposteriors of shards of equal size. Rows are independent, so shards are consecutive rows."""
        rows = y.reshape(num_shards, -1)
        squares = ((rows - rows.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        if scaling == "fractional":
            return NormalInverseGamma(rows.shape[1], rows.mean(axis=1), squares, 1 / num_shards)
        return NormalInverseGamma(y.size, rows.mean(axis=1), num_shards * squares)

    def draws(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """(shard, draw, 2) draws of (mu, sigma^2)."""
        shape = (len(self.mean), count)
        variance = self.squares[:, None] / 2 / rng.standard_gamma(self.shape, shape)
        mu = self.mean[:, None] + np.sqrt(variance / self.count) * rng.standard_normal(shape)
        return np.stack([mu, variance], axis=-1)

    def marginals(self) -> list[Distribution]:
        """Exact marginal distributions of mu and sigma^2 of the first shard."""
        scale = np.sqrt(self.squares[0] / (2 * self.shape) / self.count)
        mu = stats.t(2 * self.shape, self.mean[0], scale)
        variance = stats.invgamma(self.shape, scale=self.squares[0] / 2)
        return cast(list[Distribution], [mu, variance])

    def modes(self) -> tuple[np.ndarray, np.ndarray]:
        """Modes (shard, 2) of (mu, log sigma^2) with power 1, and the curvatures there, (shard, 2, 2)."""
        variance = self.squares / self.count
        zero = np.zeros_like(variance)
        curvature = [[self.count / variance, zero], [zero, np.full_like(variance, self.count / 2)]]
        return np.stack([self.mean, np.log(variance)], axis=1), np.moveaxis(np.array(curvature), -1, 0)


def located(y: np.ndarray, num_shards: int) -> Located:
    """Modes and curvatures of (mu, log sigma^2), in closed form."""
    modes, curvatures = NormalInverseGamma.of(y, num_shards, "rescaled").modes()
    (mode,), (curvature,) = NormalInverseGamma.of(y, 1, "rescaled").modes()
    found = np.ones(num_shards, dtype=bool)
    return Located(Mode(mode, curvature, 0.0, 0.0), modes, curvatures, found)


def _log_variance(values: np.ndarray) -> np.ndarray:
    return np.stack([values[:, 0], np.log(values[:, 1])], axis=1)


def _variance(values: np.ndarray) -> np.ndarray:
    return np.stack([values[:, 0], np.exp(values[:, 1])], axis=1)


def exact_methods(y: np.ndarray, num_shards: int, count: int, seed: int) -> dict[str, np.ndarray]:
    """`count` draws of every method from exact draws of the subposteriors."""
    rng = np.random.default_rng([seed, 1])
    kinds: tuple[Scaling, Scaling] = ("rescaled", "fractional")
    rescaled, fractional = (
        ShardDraws.of(NormalInverseGamma.of(y, num_shards, kind).draws(count, rng), scaling=kind)
        for kind in kinds
    )
    found = rival_draws(rescaled, fractional, count, rng)
    moved = Recenter()(mapped(rescaled, _log_variance), located(y, num_shards), rng)
    return {**found, OURS: _variance(thinned(moved.values, count))}


def sampled_methods(y: np.ndarray, num_shards: int, count: int, seed: int) -> dict[str, np.ndarray]:
    """`count` draws of every method from MCMC draws of the subposteriors."""
    rng = np.random.default_rng([seed, 2])
    rows = y.astype(np.float32)
    shards = LocatedShards.of(model(), rows, num_shards, seed)
    rescaled, fractional = (
        mapped(shards.draws(kind, count, seed), _variance) for kind in ("rescaled", "fractional")
    )
    found = rival_draws(rescaled, fractional, count, rng)
    return {**found, OURS: default_draws(model(), rows, num_shards, count, seed)}


def table_1(call: Call) -> Reproduction:
    """Joint and marginal distances for exact draws and for MCMC draws."""
    joint, marginal = [], []
    runs = (
        ("exact draws", exact_methods, SHARDS, call.choose(50_000, 10_000), call.choose(10, 2), 2),
        (
            "MCMC",
            sampled_methods,
            call.choose(SHARDS, SHARDS[:1]),
            call.choose(5_000, 2_000),
            call.choose(2, 1),
            1,
        ),
    )
    total = sum(len(shards) for _, _, shards, _, _, _ in runs)
    for kind, methods, shards, count, data_sets, workers in runs:
        for num_shards in shards:
            call.tell(len(joint), total)

            def one(number: int, methods=methods, num_shards=num_shards, count=count) -> _Found:
                y = _rows(call, number)
                return _distances(
                    y, methods(y, num_shards, count, call.seed + number), count, call.seed + number
                )

            with ThreadPoolExecutor(workers) as pool:
                found = list(pool.map(one, range(data_sets)))
            label = f"K = {num_shards}, {kind}"
            joint.append(_comparison(label, found, 0, num_shards))
            marginal.append(_comparison(label, found, 1, None))
    call.tell(total, total)
    unit = "in units of the posterior's standard deviations, mean ± sd over data sets"
    return Reproduction(
        "table-1",
        "Example 1, Table 1: Gaussian model",
        prose("table-1"),
        (
            distance_table(f"L2 distances of the joint densities {unit}", joint),
            ranking_table("Order of the methods", joint),
            distance_table(f"Mean L2 distance of the two marginal densities {unit}", marginal),
        ),
        claims=(
            default_is_closest(joint, "Example 1, joint"),
            default_is_closest(marginal, "Example 1, marginals"),
        ),
        numbers={
            "joint": record(joint),
            "marginal": record(marginal),
            "rows": call.choose(10**6, 10**5),
            "draws": {kind: count for kind, _, _, count, _, _ in runs},
        },
    )


def _rows(call: Call, number: int) -> np.ndarray:
    rng = np.random.default_rng([call.seed, 6, number])
    return np.sqrt(VARIANCE) * rng.standard_normal(call.choose(10**6, 10**5))


_Distances = tuple[float, float]
"""The distance of the joint density, and the mean distance of the marginal ones."""


class _Found(NamedTuple):
    """Distances from the posterior in one data set."""

    methods: dict[str, _Distances]
    floor: list[_Distances]  # of as many exact draws


def _distances(y: np.ndarray, methods: dict[str, np.ndarray], count: int, seed: int) -> _Found:
    posterior = NormalInverseGamma.of(y, 1, "rescaled")
    rng = np.random.default_rng([seed, 3])
    reference = posterior.draws(_REFERENCE_DRAWS, rng)[0]
    marginals = posterior.marginals()

    def both(values: np.ndarray) -> _Distances:
        return joint_l2(values, reference), marginal_l2(values, marginals)

    found = {name: both(values) for name, values in methods.items()}
    return _Found(found, [both(posterior.draws(count, rng)[0]) for _ in range(_NOISE_SETS)])


def _comparison(label: str, found: list[_Found], which: int, num_shards: int | None) -> MethodComparison:
    distances = {name: np.array([f.methods[name][which] for f in found]) for name in found[0].methods}
    printed = {} if num_shards is None else TABLE_1[num_shards]
    floor = np.array([values[which] for f in found for values in f.floor])
    reasons = {("WS", other): _WS_REASON for other in ("CMC", "AR")}
    return MethodComparison(label, distances, floor, printed, reasons)
