"""Single and double precision, likelihood by likelihood: rounding measured, precision chosen, verdict and time.

    python benchmarks/hard_precision.py [--quick] [--rows 1000000] [--draws 10000] [--only NAME ...]
        [--precisions auto double]

Every likelihood is a NumPyro model of an intercept, two slopes and its own further parameters, fitted with
precision="single", "auto" and "double", each once to compile and once for the time; where rounding matters, single
precision once only. Prints a table; `measured` gives its rows. Runs on whatever device JAX finds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from provenance import machine, table

import shardmc
from shardmc.data import Partition
from shardmc.engine import Local
from shardmc.errors import ShardmcError
from shardmc.locate import near_mode
from shardmc.locate.precision import Noise, measure_noise
from shardmc.pipeline import open_rows

QUICK_ROWS = 50_000
PRECISIONS = ("single", "auto", "double")
COLUMNS = (
    "likelihood",
    "noise of log density",
    "noise of gradient, sd",
    "chosen",
    "single: verdict",
    "single: s",
    "auto: verdict",
    "auto: s",
    "double: verdict",
    "double: s",
)
SLOPES = (0.4, -0.3)


@dataclass(frozen=True)
class Likelihood:
    """A response given a linear predictor: how it is drawn, and its NumPyro distribution."""

    draw: Callable[[jax.Array, jax.Array], jax.Array]  # (key, eta) -> response
    density: Callable[[jax.Array], dist.Distribution]  # eta -> distribution; may sample further parameters
    intercept: float = 0.5


def _positive(name: str, rate: float = 1.0) -> Any:
    return numpyro.sample(name, dist.Exponential(rate))


def _student_t(key: jax.Array, eta: jax.Array) -> jax.Array:
    return eta + 1.5 * jax.random.t(key, 30.0, eta.shape)


def _gamma(shape: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return lambda key, eta: jnp.maximum(jax.random.gamma(key, shape, eta.shape) / shape * jnp.exp(eta), 1e-30)


def _negative_binomial(key: jax.Array, eta: jax.Array) -> jax.Array:
    rate, count = jax.random.split(key)
    return jax.random.poisson(count, _gamma(2.0)(rate, eta))


def _zero_inflated(key: jax.Array, eta: jax.Array) -> jax.Array:
    gate, count = jax.random.split(key)
    return jnp.where(jax.random.uniform(gate, eta.shape) < 0.3, 0, jax.random.poisson(count, jnp.exp(eta)))


def _beta(concentration: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    def draw(key: jax.Array, eta: jax.Array) -> jax.Array:
        values = jax.random.beta(key, *_of_mean(eta, concentration))
        return jnp.clip(values, 1e-6, 1 - 1e-6)

    return draw


def _beta_binomial(key: jax.Array, eta: jax.Array) -> jax.Array:
    first, second = jax.random.split(key)
    chance = _beta(200.0)(first, eta)
    return jnp.sum(jax.random.uniform(second, (10, *eta.shape)) < chance, axis=0)


def _ordinal(key: jax.Array, eta: jax.Array) -> jax.Array:
    noisy = eta - 0.5 + jax.random.logistic(key, eta.shape)
    return jnp.searchsorted(jnp.array([-1.0, 0.5, 2.0]), noisy)


def _cutpoints() -> Any:
    base = dist.Normal(0.0, 3.0).expand([3])
    return numpyro.sample("cut", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))


def _of_mean(eta: jax.Array, concentration: Any) -> tuple[jax.Array, jax.Array]:
    mean = jax.nn.sigmoid(eta)
    return mean * concentration, (1 - mean) * concentration


LIKELIHOODS: dict[str, Likelihood] = {
    "logistic": Likelihood(
        lambda key, eta: jax.random.bernoulli(key, jax.nn.sigmoid(eta)).astype(jnp.int32),
        lambda eta: dist.Bernoulli(logits=eta),
    ),
    "Poisson": Likelihood(
        lambda key, eta: jax.random.poisson(key, jnp.exp(eta)), lambda eta: dist.Poisson(jnp.exp(eta))
    ),
    "ordinal": Likelihood(_ordinal, lambda eta: dist.OrderedLogistic(eta, _cutpoints()), 0.0),
    "zero-inflated Poisson": Likelihood(
        _zero_inflated,
        lambda eta: dist.ZeroInflatedPoisson(numpyro.sample("gate", dist.Beta(1, 1)), jnp.exp(eta)),
    ),
    "Weibull": Likelihood(
        lambda key, eta: jnp.maximum(jax.random.weibull_min(key, 1.0, 1.5, eta.shape), 1e-6) * jnp.exp(eta),
        lambda eta: dist.Weibull(jnp.exp(eta), _positive("shape")),
    ),
    "Normal": Likelihood(
        lambda key, eta: eta + 1.5 * jax.random.normal(key, eta.shape),
        lambda eta: dist.Normal(eta, _positive("sigma")),
    ),
    "Normal, offset 1000": Likelihood(
        lambda key, eta: eta + 1.5 * jax.random.normal(key, eta.shape),
        lambda eta: dist.Normal(eta, _positive("sigma")),
        1000.0,
    ),
    "Gamma": Likelihood(_gamma(2.0), lambda eta: _gamma_density(eta, 1.0)),
    "Gamma, shape 50": Likelihood(_gamma(50.0), lambda eta: _gamma_density(eta, 0.05)),
    "negative binomial": Likelihood(
        _negative_binomial, lambda eta: dist.NegativeBinomial2(jnp.exp(eta), _positive("size"))
    ),
    "Student t": Likelihood(
        _student_t,
        lambda eta: dist.StudentT(numpyro.sample("nu", dist.Gamma(2, 0.1)), eta, _positive("sigma")),
    ),
    "Beta": Likelihood(_beta(20.0), lambda eta: dist.Beta(*_of_mean(eta, _positive("concentration", 0.05)))),
    "Beta, concentration 1000": Likelihood(
        _beta(1000.0), lambda eta: dist.Beta(*_of_mean(eta, _positive("concentration", 0.001)))
    ),
    "beta-binomial": Likelihood(
        _beta_binomial, lambda eta: dist.BetaBinomial(*_of_mean(eta, _positive("concentration", 0.01)), 10)
    ),
}


def _gamma_density(eta: jax.Array, rate: float) -> dist.Distribution:
    shape = _positive("shape", rate)
    return dist.Gamma(shape, shape / jnp.exp(eta))


def make(name: str, num_rows: int) -> tuple[Any, dict[str, np.ndarray]]:
    """A model and its rows, drawn on the device, in single precision and in memory of the host."""
    likelihood = LIKELIHOODS[name]

    def model(x: jax.Array, y: jax.Array) -> None:
        width = 10.0 * max(1.0, abs(likelihood.intercept))
        # Cutpoints take the place of the intercept.
        intercept = 0.0 if name == "ordinal" else numpyro.sample("intercept", dist.Normal(0.0, width))
        slopes = numpyro.sample("slope", dist.Normal(0.0, 5.0).expand([len(SLOPES)]))
        numpyro.sample("y", likelihood.density(intercept + x @ slopes), obs=y)

    @jax.jit
    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        columns, response = jax.random.split(key)
        x = jax.random.normal(columns, (num_rows, len(SLOPES)))
        return x, likelihood.draw(response, likelihood.intercept + x @ jnp.array(SLOPES))

    # Apart from the seed of the fit; XLA draws 10^7 numbers in a second or two.
    x, y = (np.asarray(a) for a in draw(jax.random.key(20_240)))
    return shardmc.from_numpyro(model), {"x": x, "y": y}


def noise_of(model: Any, data: Any) -> Noise | None:
    """What rounding in single precision does, as the fit measures it."""
    source, bound = open_rows(model, data, 0)
    blocks = source.split(Partition(max(1, source.num_rows // 10_000)), 0)
    frame = near_mode(bound, blocks, Local()).frame
    return None if frame is None else measure_noise(bound, blocks, frame)


def measured(name: str, num_rows: int, draws: int, precisions: Sequence[str] = PRECISIONS) -> list[object]:
    """One row of the table; precisions that are not asked for are left out of it as dashes."""
    model, data = make(name, num_rows)
    noise = noise_of(model, data)
    row: list[object] = [
        name,
        *(("?", "?") if noise is None else (f"{noise.log_density:.2g}", f"{noise.gradient:.2g}")),
    ]
    results = {precision: ("–", float("nan"), "–") for precision in PRECISIONS}
    for precision in precisions:
        # Where rounding matters single precision takes minutes, of which compilation is the least.
        warm = precision != "single" or (noise is not None and not noise.matters)
        results[precision] = _timed(model, data, draws, precision, warm)
    row.append(results["auto"][2])
    for verdict, seconds, _ in results.values():
        row += [verdict, f"{seconds:.1f}"]
    return row


def _timed(model: Any, data: Any, draws: int, precision: str, warm: bool) -> tuple[str, float, str]:
    """Verdict, seconds (of a second call, in which nothing is compiled), and the precision that was used."""
    try:
        if warm:
            shardmc.fit(model, data, draws=draws, precision=precision, seed=1)
        begun = time.perf_counter()
        posterior = shardmc.fit(model, data, draws=draws, precision=precision, seed=1)
    except ShardmcError as error:
        return f"no fit ({type(error).__name__})", float("nan"), "none"
    certificate = posterior.certificate
    verdict = "not certified" if certificate is None else certificate.verdict
    return verdict, time.perf_counter() - begun, str(posterior.plan.precision)


def all_rows(
    num_rows: int, draws: int, only: Sequence[str] | None = None, precisions: Sequence[str] = PRECISIONS
) -> Iterator[list[object]]:
    """The rows of the table, one after another."""
    for name in only or LIKELIHOODS:
        yield measured(name, num_rows, draws, precisions)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", choices=list(LIKELIHOODS))
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=PRECISIONS)
    options = parser.parse_args()
    num_rows = QUICK_ROWS if options.quick else options.rows
    rows = []
    for row in all_rows(num_rows, options.draws, options.only, options.precisions):
        rows.append(row)
        print(*row, sep=" | ", flush=True)
    print(f"\n{num_rows:,} rows, {options.draws:,} draws. {machine()}\n")
    print(table(COLUMNS, rows))


if __name__ == "__main__":
    main()
