"""What the draws cost beside their matrix products: a logistic regression written in several ways.

    python benchmarks/kernels.py [--quick]

500,000 rows, 14 coefficients; compiled. For every front end the seconds of the stage that samples, and those of the
matrix products alone: the same rows in the same shards times as many points, by the same engine. Then the seconds of a
pass that computes gradient and curvature, by linear predictors and along every parameter. Prints and writes
docs/benchmarks/kernels.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from datasets import logistic_model
from jax import lax
from provenance import header, publish, table

import shardmc
from shardmc.data import Blocks, Partition, as_source
from shardmc.engine import DensityProgram, Local
from shardmc.locate.terms import SubposteriorTerms, expanded
from shardmc.model.faster import log1p_of_part
from shardmc.pipeline import open_rows
from shardmc.target import DeviceFrame, Target
from shardmc.types import Frame

DIM = 14
REPEATS = 11


@dataclass(frozen=True)
class Products:
    """Program: one shard's rows times all points, and nothing else."""

    def __call__(self, rows: Any, weights: jax.Array, shard: None, points: jax.Array) -> jax.Array:
        # Behind the barrier no product is left out, though only one row of them comes back.
        return lax.optimization_barrier(rows[0] @ points.T)[0]


@dataclass(frozen=True)
class Softplus:
    """Program: sums of log(1 + exp(-|x @ beta|)) over one shard's rows at all points."""

    log1p: Callable[[Any], jax.Array]

    def __call__(self, rows: Any, weights: jax.Array, shard: None, points: jax.Array) -> jax.Array:
        return jnp.sum(self.log1p(jnp.exp(-jnp.abs(points @ rows[0].T))) * weights, axis=1)


@dataclass(frozen=True)
class AlongEveryParameter(DensityProgram[Any]):
    """Program: value, gradient and curvature of a shard by JAX's derivatives along every parameter."""

    runs_a_few_times: ClassVar = True  # compiled as shardmc's own program is

    def __call__(self, rows: Any, weights: jax.Array, u: jax.Array, frame: DeviceFrame) -> Any:
        return expanded(Target(self.model, rows, weights, frame).log_density, u)


def simulate(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, DIM)).astype(np.float32)
    x[:, 0] = 1.0
    y = rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.linspace(-1, 1, DIM)))
    return x, y.astype(np.float32)


def generic_model(x, y):
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([DIM]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def fits(x: np.ndarray, y: np.ndarray, draws: int) -> dict[str, Callable[[], shardmc.Posterior]]:
    """The same posterior by three front ends, and by hand less well; each keeps its compiled programs."""
    from shardmc.formulas.families import Bernoulli
    from shardmc.formulas.linear_model import model_of
    from shardmc.formulas.preparing import prepare

    columns = {f"x{k}": x[:, k] for k in range(1, DIM)}
    rows = as_source({**columns, "y": y})
    nothing = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
    prepared = prepare(f"y ~ {' + '.join(columns)}", rows, Bernoulli(), None, **nothing)

    def by_hand(log_likelihood):
        return shardmc.Model(log_likelihood, lambda p: -0.005 * jnp.sum(p["beta"] ** 2), {"beta": DIM})

    def added_afterwards(params, rows):
        x, y = rows
        eta = x[:, 1:] @ params["beta"][1:] + params["beta"][0]
        return y * eta - (jnp.maximum(eta, 0) + jnp.log1p(jnp.exp(-jnp.abs(eta))))

    def with_log1p(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - (jnp.maximum(eta, 0) + jnp.log1p(jnp.exp(-jnp.abs(eta))))

    def general_softplus(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - jax.nn.softplus(eta)

    model = {
        "built-in family (`glm`, bernoulli)": (model_of(prepared), prepared.source),
        "plain JAX, written by hand": (logistic_model(DIM), (x, y)),
        "the same, with `jnp.log1p`": (by_hand(with_log1p), (x, y)),
        "the same, the intercept added to the product": (by_hand(added_afterwards), (x, y)),
        "the same, with `jax.nn.softplus`": (by_hand(general_softplus), (x, y)),
        "NumPyro model": (shardmc.from_numpyro(generic_model), {"x": x, "y": y}),
    }
    return {
        name: partial(shardmc.fit, *given, draws=draws, seed=1, check=False) for name, given in model.items()
    }


def seconds_of(program: Any, blocks: Blocks, per_shard: Any, shared: Any, repeats: int) -> float:
    """The median of several passes over all shards, once compiled."""
    engine, times = Local(), []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        for _ in engine.map(program, blocks, per_shard, shared):
            pass
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def measure_curvature(num_rows: int, repeats: int) -> list[list[object]]:
    """Seconds of a pass with second derivatives, of models written by hand and in NumPyro."""
    x, y = simulate(num_rows)
    numpyro_model = shardmc.from_numpyro(generic_model)
    found = []
    for name, recipe, rows in (
        ("plain JAX, written by hand", logistic_model(DIM), (x, y)),
        ("NumPyro model", numpyro_model, {"x": x, "y": y}),
    ):
        source, model = open_rows(recipe, rows, 0)
        blocks = source.split(Partition(max(2, num_rows // 6_000)), 0)
        frame = DeviceFrame.of(Frame(np.linspace(-1, 1, DIM), 0.01 * np.eye(DIM)))
        at = np.zeros((blocks.num_shards, DIM), np.float32)
        ours, plain = (
            seconds_of(program, blocks, at, frame, repeats)
            for program in (SubposteriorTerms(model), AlongEveryParameter(model))
        )
        each = 1e9 / num_rows
        found += [[name, f"{ours * each:.0f}", f"{plain * each:.0f}", f"{plain / ours:.1f}"]]
    return found


def measure(num_rows: int, draws: int, repeats: int, every: int) -> list[list[object]]:
    x, y = simulate(num_rows)
    runs = dict(list(fits(x, y, draws).items())[::every])
    found: dict[str, list[float]] = {name: [] for name in runs}
    posterior = None
    for repeat in range(repeats + 1):
        for name, run in runs.items():  # in turn, so that a busy moment of the machine meets all of them
            posterior = run()
            if repeat:
                found[name].append(posterior.seconds["sample"])
    assert posterior is not None
    evaluations = round(posterior.passes["sample"])
    blocks = as_source((x, y)).split(Partition(posterior.plan.shards), 0)
    points = jax.random.normal(jax.random.key(0), (evaluations, DIM))
    products = seconds_of(Products(), blocks, None, points, repeats)
    logarithms = {
        "products and log(1 + exp(-abs(eta))), by a polynomial": log1p_of_part,
        "products and log(1 + exp(-abs(eta))), JAX's": jnp.log1p,
    }
    alone = {name: seconds_of(Softplus(f), blocks, None, points, repeats) for name, f in logarithms.items()}
    medians = {name: float(np.median(times)) for name, times in found.items()}
    fastest = min(medians.values())
    each = 1e9 / (num_rows * evaluations)
    rows: list[list[object]] = [
        [name, f"{s:.4f}", f"{s * each:.2f}", f"{s / products:.1f}", ""]
        for name, s in {"matrix products alone": products, **alone}.items()
    ]
    rows += [
        [name, f"{s:.4f}", f"{s * each:.2f}", f"{s / products:.1f}", f"{s / fastest:.1f}"]
        for name, s in medians.items()
    ]
    return [[f"{draws:,}", *row] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few rows, every second front end; nothing is written"
    )
    quick = parser.parse_args().quick
    num_rows, wanted, repeats, every = (
        (2_000, (200,), 1, 2) if quick else (500_000, (10_000, 100_000), REPEATS, 1)
    )
    rows = [row for draws in wanted for row in measure(num_rows, draws, repeats, every)]
    columns = ("draws", "what", "seconds", "ns a row and point", "times the products", "times the fastest")
    text = "# Cost of sampling, compared with its matrix products\n\n" + header("kernels.py")
    curvature = table(
        ("model", "ns a row, by linear predictors", "along every parameter", "ratio"),
        measure_curvature(num_rows, repeats),
    )
    text += f"""
Logistic regression, {DIM} coefficients, 500,000 rows; seconds of the stage that samples, medians of {REPEATS} compiled
runs, all taken in turn. The products are those of the same rows in the same shards with as many points.

With jaxlib 0.10.2 shardmc does without some of XLA's fused kernels, because they return wrong numbers in some programs
(`programs/compiled.py`). It computes log(1 + x) by polynomials of its own there (`model/faster.py`).

{table(columns, rows)}
## Curvature

A pass over the same rows with value, gradient and curvature: second derivatives of every row along its linear predictor
and one matrix product, as shardmc computes it (`model/predictors.py`), and JAX's derivatives along every parameter.

{curvature}"""
    publish("kernels.md", text, quick)


if __name__ == "__main__":
    main()
