"""Seconds and passes over the rows for a logistic regression with up to 500 coefficients.

    python benchmarks/many_parameters.py [--quick] [--dims 500] [--rows 20000 60000]

Each size is fitted twice in one process: the first fit compiles its programs. 10,000 draws, certificate included.
Prints and writes docs/benchmarks/many_parameters.md.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from provenance import header, publish, table

import shardmc

COLUMNS = (
    "parameters",
    "rows",
    "shards",
    "s, first fit",
    "s, second fit",
    "mode",
    "sampling",
    "certificate",
    "other",
    "sampler",
    "passes",
    "smallest ESS",
    "verdict",
)


def simulated(num_rows: int, dim: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, dim)).astype(np.float32)
    x[:, 0] = 1.0
    chance = 1 / (1 + np.exp(-x @ rng.normal(0, 1 / np.sqrt(dim), dim)))
    return {"x": x, "y": (rng.random(num_rows) < chance).astype(np.float32)}


def logistic(dim: int) -> shardmc.Model:
    def log_likelihood(params, rows):
        eta = rows["x"] @ params["beta"]
        return rows["y"] * eta - jax.nn.softplus(eta)

    return shardmc.Model(log_likelihood, lambda params: -0.5 * jnp.sum(params["beta"] ** 2), {"beta": dim})


def measure(dim: int, num_rows: int, draws: int) -> list[object]:
    model, data = logistic(dim), simulated(num_rows, dim)
    seconds = []
    for seed in (1, 2):
        start = time.perf_counter()
        posterior = shardmc.fit(model, data, draws=draws, seed=seed)
        seconds.append(time.perf_counter() - start)
    stages = dict(posterior.seconds)
    named = [sum(stages.pop(name, 0.0) for name in names) for names in STAGES]
    samplers = " and ".join(sorted(set(posterior.shards.sampler)))
    row = [dim, num_rows, posterior.plan.shards, *seconds, *named, sum(stages.values())]
    row += [
        samplers,
        posterior.passes["sample"],
        posterior.summary().ess.min(),
        posterior.certificate.verdict,
    ]
    return [round(cell, 3 if cell < 10 else 1) if isinstance(cell, float) else cell for cell in row]


STAGES = (("precision", "locate", "locate shards"), ("sample",), ("check",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 parameters; nothing is written")
    parser.add_argument("--dims", type=int, nargs="+", default=[50, 200, 500])
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 60_000])
    parser.add_argument("--draws", type=int, default=10_000)
    arguments = parser.parse_args()
    sizes = [(dim, rows) for dim in arguments.dims for rows in arguments.rows]
    rows = []
    for dim, num_rows in [(20, 2_000)] if arguments.quick else sizes:
        rows.append(measure(dim, num_rows, 500 if arguments.quick else arguments.draws))
        print(*rows[-1], flush=True)
    text = f"# Many parameters\n\n{header('many_parameters.py')}\n{table(COLUMNS, rows)}"
    publish("many_parameters.md", text, arguments.quick)


if __name__ == "__main__":
    main()
