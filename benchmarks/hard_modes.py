"""Fifty posteriors with a known outcome: a mode to be found, or none, and then the right parameters to be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import shardmc
from shardmc.data import Partition
from shardmc.engine import Local
from shardmc.errors import ModelError
from shardmc.locate import choose_precision, locate
from shardmc.model.precision import double_precision
from shardmc.pipeline import open_rows

CLOSE = 0.05
"""A mode counts as found within so many posterior standard deviations of the exact one."""

Built = tuple[Any, Any]


@dataclass(frozen=True)
class Case:
    """A posterior, and what must come of it."""

    name: str
    build: Callable[[], Built]
    improper: tuple[str, ...] = ()
    """Parameters that the refusal must name; without any the posterior has a mode."""
    cheap: bool = False
    """Whether the tests run it too."""
    shards: int = 4


@dataclass(frozen=True)
class Outcome:
    case: Case
    right: bool
    what: str


def normal_prior(sd: float | None) -> Callable[[Any], jax.Array] | None:
    return None if sd is None else lambda p: -0.5 * sum(jnp.sum((v / sd) ** 2) for v in p.values())


def logistic(x: np.ndarray, eta: np.ndarray, sd: float | None, seed: int = 0) -> Built:
    y = np.random.default_rng(seed).random(len(x)) < 1 / (1 + np.exp(-eta))
    return _logistic(x, y, sd)


def _logistic(x: np.ndarray, y: np.ndarray, sd: float | None) -> Built:
    def log_likelihood(p: Any, rows: Any) -> jax.Array:
        eta = rows[0] @ p["beta"]
        return rows[1] * eta - jax.nn.softplus(eta)

    model = shardmc.Model(log_likelihood, normal_prior(sd), {"beta": x.shape[1]})
    return model, (x.astype(np.float32), y.astype(np.float32))


def poisson(x: np.ndarray, eta: np.ndarray, sd: float | None, seed: int = 0) -> Built:
    y = np.random.default_rng(seed).poisson(np.exp(eta))
    model = shardmc.Model(
        lambda p, rows: rows[1] * (rows[0] @ p["beta"]) - jnp.exp(rows[0] @ p["beta"]),
        normal_prior(sd),
        {"beta": x.shape[1]},
    )
    return model, (x.astype(np.float32), y.astype(np.float32))


def gaussian(x: np.ndarray, mean: np.ndarray, sd: float | None, noise: float = 1.0, seed: int = 0) -> Built:
    y = mean + noise * np.random.default_rng(seed).normal(size=len(x))
    model = shardmc.Model(
        lambda p, rows: -0.5 * ((rows[1] - rows[0] @ p["beta"]) / noise) ** 2,
        normal_prior(sd),
        {"beta": x.shape[1]},
    )
    return model, (x.astype(np.float32), y.astype(np.float32))


def columns(*parts: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(parts[0])), *parts])


def pair(correlation: float, count: int = 10_000) -> np.ndarray:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, count))
    return columns(a, correlation * a + np.sqrt(1 - correlation**2) * b)


def of_scales(*scales: float, count: int = 10_000) -> tuple[np.ndarray, np.ndarray]:
    """Columns of these scales, each of an effect of half a unit for one sd."""
    z = np.random.default_rng(2).normal(size=(count, len(scales)))
    return columns(z * np.array(scales)), 0.3 + z.sum(axis=1) / 2 / len(scales)


def correlated_logistic(r: float) -> Built:
    x = pair(r)
    return logistic(x, x @ [0.2, 0.5, -0.3], 10.0)


def correlated_poisson(r: float) -> Built:
    x = pair(r)
    return poisson(x, x @ [0.2, 0.2, 0.1], 10.0)


def scaled(family: Callable[..., Built], *scales: float) -> Built:
    x, eta = of_scales(*scales)
    return family(x, eta, 10.0 / min(scales))


def rare_level(rows_of_level: int, ones: bool | None, sd: float | None) -> Built:
    """A level of few rows; all of them ones where `ones` is True, all zeros where it is False."""
    rng = np.random.default_rng(3)
    level = np.arange(5_000) < rows_of_level
    x = columns(rng.normal(size=5_000), level)
    y = rng.random(5_000) < 0.4
    if ones is not None:
        y[level] = ones
    return _logistic(x, y, sd)


def no_events(sd: float) -> Built:
    rng = np.random.default_rng(4)
    level = np.arange(5_000) < 40
    x = columns(rng.normal(size=5_000), level)
    return poisson(x, np.where(level, -30.0, 0.5), sd)


def years(family: Callable[..., Built]) -> Built:
    """Powers of a year that is not centred: nearly collinear and of very different scales."""
    t = np.random.default_rng(5).integers(1990, 2021, 10_000).astype(float)
    x = columns(t, t**2, t**3)
    return family(x, 0.05 * (t - 2005), 1e4)


def forty() -> Built:
    rng = np.random.default_rng(6)
    common = rng.normal(size=(10_000, 1))
    x = columns(np.sqrt(0.99) * common + 0.1 * rng.normal(size=(10_000, 39)))
    return logistic(x, x @ rng.normal(size=40) / 6, 10.0)


def collinear(sd: float | None, *, total: bool = False) -> Built:
    rng = np.random.default_rng(7)
    a, b = np.round(rng.normal(size=(2, 5_000)), 2)
    x = columns(a, b, a + b) if total else columns(a, b, 2 * a)
    return logistic(x.astype(np.float32).astype(float), 0.5 * a - 0.3 * b, sd)


def dummies(sd: float | None) -> Built:
    """An intercept and a flag for every one of three levels, which sum to it."""
    level = np.random.default_rng(8).integers(0, 3, 5_000)
    x = columns(*(level == k for k in range(3)))
    return logistic(x, 0.3 * level, sd)


def log_scale(sigma: float, prior: Callable[[Any], jax.Array] | None = None) -> Built:
    """Mean and sd of a sample, whose sd is far from 1."""
    y = sigma * (2 + np.random.default_rng(9).normal(size=5_000))
    model = shardmc.Model(
        lambda p, y: -0.5 * ((y - p["mu"]) / p["sigma"]) ** 2 - jnp.log(p["sigma"]),
        prior or (lambda p: -0.5 * (p["mu"] / sigma / 100) ** 2 - p["sigma"] / sigma / 100),
        {"mu": (), "sigma": "positive"},
    )
    return model, y.astype(np.float32)


def effects(num_groups: int, sd: float) -> Built:
    """Non-centred effects of groups: the curvature at the starting point is indefinite."""
    rng = np.random.default_rng(10)
    group = rng.integers(0, num_groups, 20_000)
    x = rng.normal(size=20_000)
    y = 1 + 0.5 * x + (sd * rng.normal(size=num_groups))[group] + 0.7 * rng.normal(size=20_000)

    def model(x, g, y=None):
        a = numpyro.sample("a", dist.Normal(0, 5))
        b = numpyro.sample("b", dist.Normal(0, 5))
        s = numpyro.sample("s", dist.HalfNormal(2))
        t = numpyro.sample("t", dist.HalfNormal(2))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([num_groups]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(a + b * x + s * z[g], t), obs=y)

    return shardmc.from_numpyro(model), {"x": x, "g": group, "y": y}


def student(outlier: float, df: float | None = None, noise: float = 1.0) -> Built:
    rng = np.random.default_rng(11)
    x = rng.normal(size=10_000)
    y = 1 + 2 * x + noise * rng.standard_t(4, size=10_000)
    y[0] += outlier

    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 10))
        b = numpyro.sample("b", dist.Normal(0, 10))
        s = numpyro.sample("s", dist.HalfNormal(10 * noise))
        nu = df or numpyro.sample("nu", dist.Gamma(2, 0.1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.StudentT(nu, a + b * x, s), obs=y)

    return shardmc.from_numpyro(model), {"x": x, "y": y}


def mixture(weight: float) -> Built:
    rng = np.random.default_rng(12)
    first = rng.random(10_000) < weight
    y = np.where(first, -1.0, 2.0) + np.where(first, 0.5, 1.0) * rng.normal(size=10_000)

    def log_likelihood(p: Any, y: Any) -> jax.Array:
        each = -0.5 * ((y[:, None] - p["mu"]) / p["sigma"]) ** 2 - jnp.log(p["sigma"])
        return jax.nn.logsumexp(each + jnp.log(p["weights"]), axis=1)

    model = shardmc.Model(
        log_likelihood,
        lambda p: -0.5 * jnp.sum(p["mu"] ** 2) / 25 - jnp.sum(p["sigma"]) - 1e-3 * jnp.sum(1 / p["sigma"]),
        {
            "mu": shardmc.Parameter(2, "ordered"),
            "sigma": shardmc.Parameter(2, "positive"),
            "weights": shardmc.Parameter(2, "simplex"),
        },
    )
    return model, y.astype(np.float32)


def of_distribution(
    make: Callable[..., Any], sample: Callable[[np.random.Generator, np.ndarray], np.ndarray]
) -> Built:
    """A regression of a NumPyro distribution with one further positive parameter, `shape`."""
    rng = np.random.default_rng(13)
    x = rng.normal(size=10_000)
    y = sample(rng, 0.5 + 0.3 * x)

    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 5))
        b = numpyro.sample("b", dist.Normal(0, 5))
        shape = numpyro.sample("shape", dist.Gamma(2, 0.05))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", make(a + b * x, shape), obs=y)

    return shardmc.from_numpyro(model), {"x": x, "y": y}


def covariance() -> Built:
    rng = np.random.default_rng(14)
    y = rng.normal(size=(4_000, 3)) @ np.array([[1.0, 0, 0], [0.5, 1, 0], [0.2, 0.4, 1]]).T * [1, 20, 0.05]

    def model(y=None):
        m = numpyro.sample("m", dist.Normal(0, 5).expand([3]).to_event(1))
        s = numpyro.sample("s", dist.HalfCauchy(2).expand([3]).to_event(1))
        factor = numpyro.sample("L", dist.LKJCholesky(3, 2))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.MultivariateNormal(m, scale_tril=s[:, None] * factor), obs=y)

    return shardmc.from_numpyro(model), {"y": y}


def prior_alone(sd: float | None) -> Built:
    """A parameter that no row informs."""
    x = columns(np.random.default_rng(15).normal(size=5_000), np.zeros(5_000))
    return logistic(x, x @ [0.5, 1.0, 0.0], sd)


def sum_of_two(sd: float | None) -> Built:
    y = np.random.default_rng(16).normal(3.0, 1.0, 5_000).astype(np.float32)
    return shardmc.Model(
        lambda p, y: -0.5 * (y - p["a"] - p["b"]) ** 2, normal_prior(sd), {"a": (), "b": ()}
    ), y


def product_of_two() -> Built:
    """a b is known and a / b is not, but for the prior: a curved ridge."""
    y = np.random.default_rng(17).normal(6.0, 1.0, 5_000).astype(np.float32)
    model = shardmc.Model(
        lambda p, y: -0.5 * (y - p["a"] * p["b"]) ** 2,
        lambda p: -0.5 * ((p["a"] - 1) ** 2 + (p["b"] - 1) ** 2),
        {"a": "positive", "b": "positive"},
    )
    return model, y


def banana() -> Built:
    """Rosenbrock's valley with its bottom at (1, 1)."""
    y = np.zeros(400, np.float32)
    model = shardmc.Model(
        lambda p, y: -((1 - p["a"]) ** 2) - 100 * (p["b"] - p["a"] ** 2) ** 2 + 0 * y,
        normal_prior(100.0),
        {"a": (), "b": ()},
    )
    return model, y


def constant_response() -> Built:
    """All responses equal: the scale shrinks to zero, and a flat prior lets it."""
    model = shardmc.Model(
        lambda p, y: -0.5 * ((y - p["mu"]) / p["sigma"]) ** 2 - jnp.log(p["sigma"]),
        lambda p: -0.5 * p["mu"] ** 2,
        {"mu": (), "sigma": "positive"},
    )
    return model, np.zeros(2_000, np.float32)


def _nb(mean: Any, shape: Any) -> Any:
    return dist.NegativeBinomial2(jnp.exp(mean), shape)


def _draw_nb(concentration: float) -> Callable[[np.random.Generator, np.ndarray], np.ndarray]:
    return lambda rng, eta: rng.poisson(rng.gamma(concentration, np.exp(eta) / concentration))


CASES = (
    *(
        Case(f"logistic, correlation {r}", lambda r=r: correlated_logistic(r), cheap=r > 0.999)
        for r in (0.9, 0.99, 0.999, 0.9999)
    ),
    *(Case(f"Poisson, correlation {r}", lambda r=r: correlated_poisson(r)) for r in (0.99, 0.9999)),
    *(
        Case(
            f"Gaussian, a column of scale {s:g}", lambda s=s: scaled(gaussian, s, 1.0), cheap=s in (1e-6, 1e6)
        )
        for s in (1e-6, 1e-3, 1e3, 1e6)
    ),
    Case("logistic, columns of scale 1e-6 and 1e6", lambda: scaled(logistic, 1e-6, 1e6), cheap=True),
    Case("Poisson, columns of scale 1e-6 and 1e6", lambda: scaled(poisson, 1e-6, 1e6)),
    Case("logistic, a level of one row", lambda: rare_level(1, None, 10.0)),
    Case("logistic, a level of three rows", lambda: rare_level(3, None, 10.0)),
    Case("Poisson, a level without an event", lambda: no_events(10.0)),
    *(
        Case(
            f"logistic, separated level, prior sd {sd:g}",
            lambda sd=sd: rare_level(50, True, sd),
            cheap=sd == 100.0,
        )
        for sd in (1.0, 10.0, 100.0)
    ),
    Case("logistic, separated level of zeros, prior sd 1000", lambda: rare_level(50, False, 1e3)),
    Case("logistic, doubled column, prior sd 10", lambda: collinear(10.0), cheap=True),
    Case("logistic, a column that is a sum, prior sd 10", lambda: collinear(10.0, total=True)),
    Case("logistic, flags that sum to the intercept, prior sd 10", lambda: dummies(10.0)),
    Case("Gaussian, powers of years", lambda: years(gaussian), cheap=True),
    Case("logistic, powers of years", lambda: years(logistic)),
    Case("Gaussian, mean of a million", lambda: gaussian(columns(np.zeros(5_000)), np.full(5_000, 1e6), 1e7)),
    Case("Poisson, counts of 10^5", lambda: poisson(pair(0.5), np.full(10_000, np.log(1e5)), 10.0)),
    Case("logistic, 39 columns of correlation 0.99", forty),
    Case("a parameter that only the prior holds", lambda: prior_alone(10.0)),
    Case("two parameters of which the rows know the sum", lambda: sum_of_two(10.0)),
    Case("product of two parameters", product_of_two),
    Case("a curved valley", banana, shards=1, cheap=True),
    Case("non-centred effects, 5 groups", lambda: effects(5, 1.0), cheap=True),
    Case("non-centred effects, 8 groups of little spread", lambda: effects(8, 0.05)),
    Case("Student t", lambda: student(0.0)),
    Case("Student t, an outlier of 1,000 sd", lambda: student(1e3), cheap=True),
    Case("Student t of 2 degrees of freedom, an outlier of 10^5 sd", lambda: student(1e5, df=2.0)),
    Case("Student t, scale 1e-3", lambda: student(0.0, noise=1e-3)),
    Case("mixture with ordered means", lambda: mixture(0.5)),
    Case("mixture with ordered means, one of 3 %", lambda: mixture(0.03)),
    *(
        Case(f"mean and sd, sd {s:g}", lambda s=s: log_scale(s), cheap=s == 1e6)
        for s in (1e-6, 1e-3, 1e3, 1e6)
    ),
    Case("negative binomial, concentration 50", lambda: of_distribution(_nb, _draw_nb(50.0))),
    Case(
        "beta regression",
        lambda: of_distribution(
            lambda eta, shape: dist.BetaProportion(jax.nn.sigmoid(eta), shape),
            lambda rng, eta: rng.beta(20 / (1 + np.exp(-eta)), 20 / (1 + np.exp(eta))),
        ),
    ),
    Case(
        "Weibull, shape 8",
        lambda: of_distribution(
            lambda eta, shape: dist.Weibull(jnp.exp(eta), shape),
            lambda rng, eta: np.exp(eta) * rng.weibull(8, len(eta)),
        ),
    ),
    Case("covariance matrix, scales 0.05 to 20", covariance),
    Case("flat prior, doubled column", lambda: collinear(None), ("'beta[1]'", "'beta[3]'"), cheap=True),
    Case("flat prior, a column of zeros", lambda: prior_alone(None), ("'beta[2]'",), cheap=True),
    Case("flat prior, separated level", lambda: rare_level(50, True, None), ("'beta[2]'",), cheap=True),
    Case("flat prior, flags that sum to the intercept", lambda: dummies(None), ("'beta[0]'",)),
    Case(
        "flat prior, two parameters of which the rows know the sum", lambda: sum_of_two(None), ("'a'", "'b'")
    ),
    Case("flat prior, a scale that shrinks to zero", constant_response, ("'sigma'",)),
)


def outcome(case: Case) -> Outcome:
    """What the search makes of a posterior, checked by derivatives of all rows in double precision."""
    model, rows = case.build()
    source, model = open_rows(model, rows, 0)
    blocks = source.split(Partition(case.shards), 0)
    engine = Local()
    try:
        choice = choose_precision("auto", model, blocks, engine)
        with choice.applied():
            mode = locate(model, blocks, engine, start=choice.start)
    except ModelError as error:
        named = all(name in str(error) for name in case.improper)
        right = bool(case.improper) and named
        return Outcome(case, right, str(error).split(". ")[0])
    distance = distance_to_mode(model, rows, mode.theta)
    right = not case.improper and distance < CLOSE
    what = f"mode found, {distance:.1g} sd off, in {mode.passes:.0f} passes, {choice.name} precision"
    return Outcome(case, right, what)


def distance_to_mode(model: Any, rows: Any, theta: np.ndarray) -> float:
    """Newton decrement of the log posterior of all rows in double precision; infinite at a point that is no mode."""
    wide = jax.tree.map(
        lambda a: np.asarray(a, np.float32).astype(np.float64) if a.dtype.kind == "f" else a, rows
    )

    def log_posterior(t: jax.Array, rows: Any) -> jax.Array:
        return model.log_prior(t) + jnp.sum(model.log_likelihood(t, rows))

    @jax.jit
    def derivatives(t: jax.Array, rows: Any) -> tuple[jax.Array, jax.Array]:
        return jax.grad(log_posterior)(t, rows), jax.hessian(log_posterior)(t, rows)

    with double_precision():
        gradient, hessian = derivatives(np.asarray(theta, np.float64), wide)
    gradient, curvature = np.asarray(gradient), -np.asarray(hessian)
    if not (np.diag(curvature) > 0).all():
        return np.inf
    scale = 1 / np.sqrt(np.diag(curvature))
    values, vectors = np.linalg.eigh(scale[:, None] * curvature * scale)
    if values[0] <= 0:
        return np.inf
    return float(np.linalg.norm(vectors.T @ (scale * gradient) / np.sqrt(values)))


def table(quick: bool = False) -> tuple[str, int]:
    """The table as Markdown, and how many outcomes are wrong."""
    outcomes = [outcome(case) for case in CASES if case.cheap or not quick]
    lines = ["| posterior | outcome | |", "|---|---|---|"]
    lines += [f"| {o.case.name} | {o.what} | {'right' if o.right else '**wrong**'} |" for o in outcomes]
    return "\n".join(lines), sum(not o.right for o in outcomes)
