"""Example 3, Table 3 and Figure 1: the Beta-Bernoulli model, whose subposteriors can be drawn exactly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from scipy import stats

from shardmc.combiners.density import Distribution, bandwidth_of, density_at
from shardmc.combiners.distance import marginal_l2
from shardmc.locate import KEEP
from shardmc.model import Model
from shardmc.paper.beta import Beta, affine_density, shifted_density
from shardmc.paper.comparison import (
    OURS,
    PAPER_METHODS,
    TABLE_3,
    MethodComparison,
    default_draws,
    default_is_closest,
    distance_table,
    ranking_table,
    record,
    rival_draws,
)
from shardmc.paper.result import (
    METHODS,
    Call,
    Claim,
    Figure,
    Reproduction,
    Table,
    canvas,
    few_ticks,
    legend_above,
    prose,
    scientific,
)
from shardmc.types import Params, ShardDraws

if TYPE_CHECKING:
    import jax
    from matplotlib.figure import Figure as Canvas


PROPORTIONS = (0.1, 0.01, 0.001)
SHARDS = (50, 100)
PRIOR = 0.01
"""Both parameters of the Beta prior."""

_MP_REASON = (
    "MP does not move the subposteriors. Their means scatter by about K^(1/2) posterior standard deviations, so MP "
    "cannot reach a distance as small as the printed one."
)
_EMPTY_REASON = (
    "At p = 0.001 many shards have no success (a third of them if K = 100). Their subposteriors are spikes at 0, and "
    "remain spikes after AR moves them."
)


@cache
def model() -> Model:
    """Bernoulli rows with a Beta(0.01, 0.01) prior, for the default path."""
    import jax.numpy as jnp

    def log_likelihood(params: Params, y: jax.Array) -> jax.Array:
        return y * jnp.log(params["p"]) + (1 - y) * jnp.log1p(-params["p"])

    def log_prior(params: Params) -> jax.Array:
        return (PRIOR - 1) * (jnp.log(params["p"]) + jnp.log1p(-params["p"]))

    return Model(log_likelihood, log_prior, {"p": "unit_interval"})


@dataclass(frozen=True)
class DataSet:
    """Bernoulli rows, by the number of successes in each of K shards of equal size."""

    rows: np.ndarray  # (row,) 0 or 1
    num_shards: int

    @staticmethod
    def simulate(p: float, num_rows: int, num_shards: int, seed: tuple[int, ...]) -> DataSet:
        """Simulate rows. They do not depend on the number of shards."""
        rows = np.random.default_rng([*seed, round(1e6 * p)]).random(num_rows) < p
        return DataSet(rows.astype(np.float32), num_shards)

    @property
    def successes(self) -> np.ndarray:
        """Successes in each shard. Rows are independent, so a shard may be a block of consecutive rows."""
        return self.rows.reshape(self.num_shards, -1).sum(axis=1, dtype=np.float64)

    @property
    def failures(self) -> np.ndarray:
        return len(self.rows) / self.num_shards - self.successes

    @property
    def full(self) -> Beta:
        """The posterior."""
        return Beta(PRIOR + self.successes.sum(keepdims=True), PRIOR + self.failures.sum(keepdims=True))

    @property
    def rescaled(self) -> Beta:
        """Rescaled subposteriors: every row counts K times."""
        return Beta(PRIOR + self.num_shards * self.successes, PRIOR + self.num_shards * self.failures)

    @property
    def fractional(self) -> Beta:
        """Fractional subposteriors: the prior to the power 1 / K."""
        prior = (PRIOR - 1) / self.num_shards + 1
        return Beta(prior + self.successes, prior + self.failures)

    @property
    def kept(self) -> Beta:
        """Rescaled subposteriors of the default: successes of high leverage are in every shard, once."""
        p, curvature = self.full.mean[0], self.full.logit_curvature[0]
        if (1 - p) ** 2 / curvature <= KEEP / self.num_shards:
            return self.rescaled
        every = np.full(self.num_shards, self.full.a[0])
        return Beta(every, PRIOR + self.num_shards * self.failures)

    @property
    def posterior(self) -> Distribution:
        """The posterior as a SciPy distribution."""
        return cast(Distribution, stats.beta(self.full.a[0], self.full.b[0]))


def method_draws(data: DataSet, count: int, seed: int) -> dict[str, np.ndarray]:
    """`count` draws (draw, 1) of the paper's methods, from exact draws of each shard, and of the default."""
    rng = np.random.default_rng([seed, 1])
    rescaled, fractional = (
        ShardDraws.of(_beta_draws(data.rescaled, count, rng), scaling="rescaled"),
        ShardDraws.of(_beta_draws(data.fractional, count, rng), scaling="fractional"),
    )
    found = rival_draws(rescaled, fractional, count, rng)
    return {**found, OURS: default_draws(model(), data.rows, data.num_shards, count, seed)}


def _beta_draws(shards: Beta, count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.beta(shards.a[:, None], shards.b[:, None], (len(shards.a), count))[..., None]


def table_3(call: Call) -> Reproduction:
    """Distances of all methods over data sets: from draws, and from densities where these are known."""
    cells, exact = [], []
    shards = call.choose(SHARDS, SHARDS[:1])
    total = len(PROPORTIONS) * len(shards)
    for p in PROPORTIONS:
        for num_shards in shards:
            call.tell(len(cells), total)
            found = _over_data_sets(p, num_shards, call)
            distances = {name: np.array([f.methods[name] for f in found]) for name in (*PAPER_METHODS, OURS)}
            floor = np.concatenate([f.floor for f in found])
            label = f"p = {p:g}, K = {num_shards}"
            reasons = _reasons(p)
            cells.append(MethodComparison(label, distances, floor, TABLE_3[p, num_shards], reasons))
            exact.append((label, [float(np.mean(v)) for v in zip(*(f.exact for f in found), strict=True)]))
    call.tell(total, total)
    title = "L2 distances in units of the posterior's standard deviation, mean ± sd over data sets"
    note = "The paper's rows for p = 0.001 are next to both p = 0.01 (the paper's text) and p = 0.001 (its table)."
    return Reproduction(
        "table-3",
        "Example 3, Table 3: Beta-Bernoulli model",
        prose("table-3"),
        (
            distance_table(title, cells, note),
            ranking_table("Order of the methods", cells),
            _exact_table(exact),
        ),
        claims=_claims(cells),
        numbers={"cells": record(cells), "settings": asdict(_Settings.of(call))},
    )


_NOISE_SETS = 4


@dataclass(frozen=True)
class _Settings:
    """The size of the computation."""

    rows: int
    draws: int
    data_sets: dict[str, int]  # by the number of shards

    @staticmethod
    def of(call: Call) -> _Settings:
        return _Settings(
            rows=call.choose(100_000, 50_000),
            draws=call.choose(100_000, 10_000),
            data_sets=call.choose({"50": 10, "100": 5}, {"50": 2}),
        )


class _Found(NamedTuple):
    """Distances from the posterior in one data set."""

    methods: dict[str, float]
    floor: list[float]  # of as many exact draws
    exact: list[float]  # of densities that are known


def _over_data_sets(p: float, num_shards: int, call: Call) -> list[_Found]:
    settings = _Settings.of(call)

    def one(number: int) -> _Found:
        data = DataSet.simulate(p, settings.rows, num_shards, (call.seed, 3, number))
        draws = method_draws(data, settings.draws, call.seed + number)
        rng = np.random.default_rng([call.seed, 4, number])
        exact_draws = data.posterior.rvs((_NOISE_SETS, settings.draws, 1), random_state=rng)
        found = {name: marginal_l2(values, data.posterior) for name, values in draws.items()}
        floor = [marginal_l2(values, data.posterior) for values in exact_draws]
        return _Found(found, floor, _exact_distances(data))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(settings.data_sets[str(num_shards)])))


def _exact_distances(data: DataSet) -> list[float]:
    """Relative L2 distances of the known densities: AR, the affine map, and the affine map with kept rows."""
    mean, sd = data.posterior.mean(), data.posterior.std()
    p = np.linspace(mean - 12 * sd, mean + 12 * sd, 2_401)
    truth = data.full.density(p[None])[0]
    densities = (
        shifted_density(data.rescaled, p, float(data.rescaled.mean.mean())),
        affine_density(data.rescaled, data.full, p),
        affine_density(data.kept, data.full, p),
    )
    return [float(((d - truth) ** 2).sum() / (truth**2).sum()) for d in densities]


def _exact_table(rows: list[tuple[str, list[float]]]) -> Table:
    shown = tuple((label, *map(scientific, means)) for label, means in rows)
    note = (
        "Computed from the densities, without draws: the integral of (p - q)^2 divided by that of p^2, mean over data "
        "sets."
    )
    columns = ("", "AR", "affine", "affine with kept rows (default)")
    return Table("Relative L2 distances of the exact densities", columns, shown, note)


def _reasons(p: float) -> dict[tuple[str, str], str]:
    others = {("MP", name): _MP_REASON for name in ("CMC", "AR", "WS")}
    return {**others, ("AR", "WS"): _EMPTY_REASON, ("AR", "CMC"): _EMPTY_REASON} if p < 0.005 else others


def _claims(cells: list[MethodComparison]) -> tuple[Claim, ...]:
    ratios = [cell.mean(OURS) / float(cell.floor.mean()) for cell in cells]
    return (
        default_is_closest(cells, "Example 3"),
        Claim(
            "At all three p, the default is at most twice as far from the posterior as exact draws are "
            f"(at most {max(ratios):.2f} times).",
            max(ratios) <= 2,
        ),
    )


_CAPTION = (
    "Densities of the combined draws and of the exact posterior (black), one data set for each p. CMC: consensus Monte "
    "Carlo; AR: the paper's method; WS: Weierstrass sampler; MP: M-posterior; shardmc: the default."
)
_HALF_WIDTH = 5.0  # of a panel, in posterior standard deviations


@dataclass(frozen=True)
class _Panel:
    """The curves of one p and K."""

    p: float
    num_shards: int
    points: np.ndarray
    curves: dict[str, np.ndarray]
    distances: dict[str, float]


def figure_1(call: Call) -> Reproduction:
    """Draws of every method for one data set per cell of Table 3, as curves."""
    cells = [(p, num_shards) for num_shards in call.choose(SHARDS, SHARDS[:1]) for p in PROPORTIONS]
    panels = []
    for p, num_shards in cells:
        call.tell(len(panels), len(cells))
        panels.append(_panel(p, num_shards, call))
    call.tell(len(cells), len(cells))
    names = list(panels[0].distances)
    rows = tuple(
        (f"p = {panel.p:g}, K = {panel.num_shards}", *(scientific(panel.distances[m]) for m in names))
        for panel in panels
    )
    title = "L2 distance of the curves from the posterior, in units of its standard deviation"
    return Reproduction(
        "figure-1",
        "Example 3, Figure 1: densities of the Beta-Bernoulli model",
        prose("figure-1"),
        (Table(title, ("", *names), rows),),
        (Figure("figure-1", _CAPTION, lambda: _draw(panels)),),
        numbers={
            "cells": [{"p": x.p, "shards": x.num_shards, "distances": x.distances} for x in panels],
            "rows": call.choose(100_000, 50_000),
        },
    )


def _panel(p: float, num_shards: int, call: Call) -> _Panel:
    data = DataSet.simulate(p, call.choose(100_000, 50_000), num_shards, (call.seed, 5))
    draws = method_draws(data, call.choose(100_000, 10_000), call.seed)
    posterior = data.posterior
    mean, sd = posterior.mean(), posterior.std()
    points = np.linspace(max(mean - _HALF_WIDTH * sd, 0), mean + _HALF_WIDTH * sd, 401)
    curves = {"posterior": posterior.pdf(points)}
    curves |= {
        name: density_at(values[:, 0], points, bandwidth_of(sd, len(values)))
        for name, values in draws.items()
    }
    distances = {name: marginal_l2(values, posterior) for name, values in draws.items()}
    return _Panel(p, num_shards, points, curves, distances)


def _draw(panels: list[_Panel]) -> Canvas:
    figure, axes = canvas(len(panels) // len(PROPORTIONS), len(PROPORTIONS))
    for axis, panel in zip(axes.flat, panels, strict=True):
        for name, curve in panel.curves.items():
            axis.plot(panel.points, curve, label=name, **METHODS[name])
        axis.set_title(f"$p = {panel.p:g}$, $K = {panel.num_shards}$")
        # A method with all its draws in one place would flatten the other curves.
        axis.set_ylim(0, 1.5 * panel.curves["posterior"].max())
        axis.set_xlim(panel.points[0], panel.points[-1])
        few_ticks(axis)
        axis.set_xlabel("$p$")
    for row in axes:
        row[0].set_ylabel("density")
    legend_above(figure, axes[0, 0])
    return figure
