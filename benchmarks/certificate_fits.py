"""Verdicts of whole fits, compared with the truth: Covertype with soil types, census-like data, Weibull, a mixture.

    python benchmarks/certificate_fits.py [--quick] [--only NAME ...]

The truth is a long run of NUTS over all rows. Each case is fitted as a user would, and once wrongly on purpose. Prints
and writes docs/benchmarks/certificate_fits.md. The full version wants a GPU: NUTS over all rows of Covertype.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from datasets import covertype, logistic_model
from provenance import header, publish, table

import shardmc

COLUMNS = (
    "case",
    "fit",
    "largest error of a mean, sd",
    "largest error of an sd, %",
    "of the reference",
    "verdict",
    "gradients",
    "check, s",
    "fit, s",
)


@dataclass(frozen=True)
class Case:
    """A model with its rows, and the ways to fit it; the last one is meant to be wrong."""

    name: str
    make: Callable[[int], tuple[shardmc.Model, Any] | None]
    rows: int
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)


def census(num_rows: int) -> tuple[shardmc.Model, Any]:
    """Logistic regression on six numbers and two dozen rare levels, of 5 to 500 rows where there are 200,000."""
    rng = np.random.default_rng(11)
    numbers = np.column_stack([np.ones(num_rows), rng.normal(size=(num_rows, 6))])
    sizes = np.geomspace(5, 500, 24) * num_rows / 200_000
    level = rng.choice(25, num_rows, p=np.append(sizes, num_rows - sizes.sum()) / num_rows)
    x = np.column_stack([numbers, level[:, None] == np.arange(24)]).astype(np.float32)
    beta = np.concatenate([[-2.0], 0.5 * rng.normal(size=6), 1.5 * rng.normal(size=24)])
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ beta))).astype(np.float32)
    return logistic_model(x.shape[1], prior_sd=5.0), (x, y)


def weibull(num_rows: int) -> tuple[shardmc.Model, Any]:
    """Weibull regression with a rare level and an unknown shape."""
    rng = np.random.default_rng(12)
    x = np.column_stack([np.ones(num_rows), rng.normal(size=(num_rows, 4)), np.arange(num_rows) < 4])
    scale = np.exp(x @ np.array([0.5, 0.4, -0.3, 0.2, 0.0, 1.0]))
    y = np.maximum(scale * rng.weibull(1.5, num_rows), 1e-6)

    def log_likelihood(params, rows):
        x, log_y = rows
        shape = params["shape"]
        log_ratio = log_y - x @ params["beta"]
        return jnp.log(shape) - log_y + shape * log_ratio - jnp.exp(shape * log_ratio)

    def log_prior(params):
        return -0.5 * jnp.sum(params["beta"] ** 2) / 25 - params["shape"]

    model = shardmc.Model(log_likelihood, log_prior, {"beta": 6, "shape": "positive"})
    return model, (x.astype(np.float32), np.log(y).astype(np.float32))


def mixture(num_rows: int) -> tuple[shardmc.Model, Any]:
    """Two normal distributions whose means are ordered, with unknown sds and weights."""
    rng = np.random.default_rng(13)
    second = rng.random(num_rows) < 0.3
    y = np.where(second, rng.normal(2.0, 0.7, num_rows), rng.normal(0.0, 1.0, num_rows))

    def log_likelihood(params, y):
        means = jnp.stack([params["low"], params["low"] + params["gap"]])
        log_sd = jnp.log(params["sd"])
        each = -0.5 * ((y[:, None] - means) / params["sd"]) ** 2 - log_sd
        weights = jnp.log(jnp.stack([1 - params["part"], params["part"]]))
        return jax.scipy.special.logsumexp(each + weights, axis=1)

    def log_prior(params):
        return -0.5 * (params["low"] / 5) ** 2 - params["gap"] / 5 - jnp.sum(params["sd"])

    parameters = {
        "low": (),
        "gap": "positive",
        "sd": shardmc.Parameter(2, "positive"),
        "part": ("interval", 0, 1),
    }
    return shardmc.Model(log_likelihood, log_prior, parameters), y.astype(np.float32)


def soil(num_rows: int) -> tuple[shardmc.Model, Any] | None:
    """Covertype with its soil types: 53 columns, three of them separated, one level of a single row."""
    rows = covertype(53, num_rows)
    return None if rows is None else (logistic_model(53), rows)


SEEDS: dict[str, dict[str, Any]] = {f"seed {seed}": {"seed": seed} for seed in range(3)}
TWENTY = {name: {"shards": 20, **way} for name, way in SEEDS.items()}
SHIFTED = {"keep": None, "shards": 100, "combiner": shardmc.Recenter("newton", "none")}
CASES = (
    Case(
        "Covertype, soil types", soil, 500_000, {**TWENTY, "wrong: keep=None": {"shards": 20, "keep": None}}
    ),
    Case("census-like", census, 200_000, {**SEEDS, "wrong: shifted only": SHIFTED}),
    Case("Weibull regression", weibull, 100_000, {**SEEDS, "wrong: shifted only": SHIFTED}),
    Case(
        "mixture of two normals",
        mixture,
        50_000,
        {**SEEDS, "wrong: shifted only": {**SHIFTED, "shards": 500}},
    ),
)


def rows_of(case: Case, quick: bool) -> Iterator[list[object]]:
    """A row of the table per way to fit."""
    made = case.make(case.rows // 100 if quick else case.rows)
    if made is None:
        return
    model, data = made
    draws = 200 if quick else 20_000
    reference = shardmc.fit(model, data, shards=1, draws=draws, sampler="nuts", seed=5, certify=False)
    ess = reference.shards.ess.sum(axis=0)
    noise = f"{1 / np.sqrt(ess.min()):.3f} sd, {100 / np.sqrt(2 * ess.min()):.1f} %"
    mean, sd = reference.theta.mean(axis=0), reference.theta.std(axis=0)
    ways = list(case.ways.items())
    for name, way in (ways[0], ways[-1]) if quick else ways:
        begun = time.perf_counter()
        posterior = shardmc.fit(model, data, draws=draws // 2, **way)
        seconds = time.perf_counter() - begun
        certificate = posterior.certificate
        assert certificate is not None
        theta = posterior.theta
        yield [
            case.name,
            name,
            f"{np.abs((theta.mean(axis=0) - mean) / sd).max():.3f}",
            f"{100 * np.abs(theta.std(axis=0) / sd - 1).max():.1f}",
            noise,
            certificate.verdict,
            certificate.num_gradients,
            f"{posterior.seconds['check']:.1f}",
            f"{seconds:.1f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=[case.name for case in CASES])
    options = parser.parse_args()
    found = []
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        for row in rows_of(case, options.quick):
            print(*row, sep=" | ", flush=True)
            found.append(row)
    made_by = header("certificate_fits.py", f"Device: {jax.devices()[0].device_kind}.")
    publish(
        "certificate_fits.md",
        f"# The certificate of whole fits, compared with the truth\n\n{made_by}\n"
        "Errors are the largest over all unconstrained parameters, against NUTS over all rows, whose own noise stands "
        "beside them. Within bounds means 0.1 sd and 10 %; errors between 5 and 20 % may get any verdict. Seconds of a "
        f"first fit include its compilation.\n\n{table(COLUMNS, found)}",
        options.quick,
    )


if __name__ == "__main__":
    main()
