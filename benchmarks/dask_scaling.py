"""How much faster two Dask workers are than one: the same fit of about a minute, each worker on a core of its own.

    python benchmarks/dask_scaling.py [--quick]

Prints and writes docs/benchmarks/dask_scaling.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from distributed import Client, LocalCluster
from provenance import header, publish, table

import shardmc

DIM = 20
SHARDS = 64


def problem(num_rows: int):
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, DIM)).astype(np.float32)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.linspace(-0.5, 0.5, DIM)))).astype(np.float32)

    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - jnp.logaddexp(0.0, eta)

    def log_prior(params):
        return -0.5 * jnp.sum(params["beta"] ** 2) / 25

    return shardmc.Model(log_likelihood, log_prior, {"beta": DIM}), (x, y)


def seconds(workers: int, num_rows: int, draws: int) -> tuple[float, np.ndarray]:
    """Time of one fit on so many workers that have compiled already, and its draws."""
    model, rows = problem(num_rows)
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        engine = shardmc.Dask(client, batch=2)

        def fit():
            return shardmc.fit(
                model, rows, shards=SHARDS, draws=draws, sampler="independence", engine=engine, check=False
            )

        fit()  # compiles; the rows, new arrays every time, are sent with each fit
        start = time.perf_counter()
        posterior = fit()
        return time.perf_counter() - start, posterior.theta


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a small job; nothing is written")
    quick = parser.parse_args().quick
    num_rows, draws = (100_000, 2_000) if quick else (4_000_000, 150_000)
    runs = {workers: seconds(workers, num_rows, draws) for workers in (1, 2)}
    one, two = runs[1][0], runs[2][0]
    same = np.array_equal(runs[1][1], runs[2][1])
    text = (
        "# Two workers against one\n\n"
        + header("dask_scaling.py")
        + f"\nLogistic regression, {num_rows:,} rows, {DIM} parameters, {SHARDS} shards, {draws:,} draws; workers of "
        "one thread, compiled before; the time includes sending the rows to the workers.\n\n"
        + table(("workers", "seconds", "of one worker's time"), [(1, one, 1.0), (2, two, two / one)])
        + f"\nThe draws of both are {'the same to the last bit' if same else 'not the same'}.\n"
    )
    publish("dask_scaling.md", text, quick)


if __name__ == "__main__":
    main()
