"""Two Dask workers against one, with rows that are sent and rows that workers read, and what a large job would cost.

    python benchmarks/dask_scaling.py [--quick]

Each worker has a core of its own. Prints and writes docs/benchmarks/dask_scaling.md. The parts of the cost (a row's
evaluation, a shard's trip to a worker and back, reading) are measured; the cost of a job of 10^12 rows on 100 workers
is computed from them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster
from provenance import header, publish, table

import shardmc
from shardmc.data import Partition, as_source

DIM = 20
WORKERS = (1, 2)
FORMULA = "y ~ " + " + ".join(f"x{k}" for k in range(DIM))
LARGE_ROWS, LARGE_WORKERS, LARGE_CORES, LARGE_SHARD = 10**12, 100, 16, 10**7


def columns(num_rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, DIM)).astype(np.float32)
    y = (rng.random(num_rows) < 1 / (1 + np.exp(-x @ np.linspace(-0.5, 0.5, DIM)))).astype(np.float32)
    return {"y": y, **{f"x{k}": x[:, k] for k in range(DIM)}}


def timed_fit(source, client: Client, shards: int, draws: int) -> tuple[float, shardmc.Posterior]:
    """Seconds of a fit on workers that have compiled already, and its posterior."""

    def fit() -> shardmc.Posterior:
        return shardmc.glm(
            FORMULA,
            source,
            "bernoulli",
            shards=shards,
            draws=draws,
            engine=shardmc.Dask(client),
            predictive=False,
        )

    fit()
    start = time.perf_counter()
    posterior = fit()
    return time.perf_counter() - start, posterior


def trip(client: Client, shards: int = 64) -> float:
    """Seconds between sending a shard of no work to a worker and having its result, when one follows another."""
    blocks = as_source(np.zeros(shards, np.float32)).split(Partition(shards), 0)
    engine = shardmc.Dask(client, batch=1)

    def run() -> float:
        start = time.perf_counter()
        list(engine.map(_nothing, blocks, None, None))
        return (time.perf_counter() - start) / shards

    run()
    return min(run() for _ in range(3))


def _nothing(rows, weights: jax.Array, own: None, shared: None) -> jax.Array:
    return jnp.sum(weights)


def reading(source, shards: int) -> float:
    """Bytes a second of a worker that reads shards and does nothing with them."""
    blocks = source.split(Partition(shards), 0)
    start, size = time.perf_counter(), 0
    for _, batch in blocks.batches(range(shards), 1):
        size += sum(leaf.nbytes for leaf in jax.tree.leaves(batch.rows))
    return size / (time.perf_counter() - start)


def large_job(
    passes: Mapping[str, float], rate: float, each_trip: float, bytes_a_second: float
) -> list[list[str]]:
    """The parts of the cost of the large job, in words and hours."""
    evaluations = sum(passes.values()) * LARGE_ROWS
    # Every stage but the search for the mode reads all rows once; that one about three times.
    sweeps = len(passes) - 1 + 3
    size = 4 * (DIM + 1) * LARGE_ROWS
    shards = LARGE_ROWS // LARGE_SHARD
    return [
        [
            "evaluating rows",
            f"{sum(passes.values()):.0f} passes, {rate:.2g} rows a second and core",
            f"{evaluations / rate / LARGE_WORKERS / LARGE_CORES / 3600:.1f}",
        ],
        [
            "reading rows",
            f"{sweeps} times {size / 1e12:.0f} TB, {bytes_a_second / 1e9:.1f} GB a second and worker",
            f"{sweeps * size / bytes_a_second / LARGE_WORKERS / 3600:.1f}",
        ],
        [
            "communication",
            f"{sweeps} times {shards:,} shards, {1e3 * each_trip:.1f} ms each, one after another",
            f"{sweeps * shards * each_trip / 3600:.1f}",
        ],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small job; nothing is written")
    parser.add_argument("--remark", default="", help="a sentence about the machine, for the table")
    options = parser.parse_args()
    num_rows, shards, draws = (4_000, 4, 200) if options.quick else (4_000_000, 64, 50_000)
    data, rows, draws_of = columns(num_rows), [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        pq.write_table(pa.table(data), path)
        read = as_source(os.fspath(path), memory=0, scratch=Path(folder) / "scratch")
        found = {}
        for workers in WORKERS:
            with (
                LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
                Client(cluster, set_as_default=False) as client,
            ):
                for name, source in (("sent once", data), ("read by the workers", read)):
                    seconds, posterior = timed_fit(source, client, shards, draws)
                    found[name, workers] = seconds, posterior
                    draws_of.append(posterior.theta)
                each_trip = trip(client)
        bytes_a_second = reading(read, shards)
    for name in ("sent once", "read by the workers"):
        one, two = (found[name, workers][0] for workers in WORKERS)
        rows.append([name, f"{one:.1f}", f"{two:.1f}", f"{two / one:.2f}"])
    seconds, posterior = found["read by the workers", 1]
    computing = sum(posterior.seconds[stage] for stage in posterior.passes)
    rate = sum(posterior.passes.values()) * num_rows / computing
    same = all(np.array_equal(draws_of[0], other) for other in draws_of)
    text = (
        f"# Dask workers\n\n{header('dask_scaling.py', options.remark)}\n"
        f"Logistic regression, {num_rows:,} rows, {DIM + 1} parameters, {shards} shards, {draws:,} draws; workers of "
        "one thread that have compiled before. The time includes splitting the rows, and sending them where they are "
        "sent.\n\n"
        + table(("rows are", "one worker, seconds", "two workers, seconds", "ratio"), rows)
        + f"\nThe draws of all four are {'the same to the last bit' if same else 'not the same'}.\n\n"
        f"## {LARGE_ROWS:.0e} rows on {LARGE_WORKERS} workers of {LARGE_CORES} cores, estimated\n\n"
        f"Shards of {LARGE_SHARD:.0e} rows, which stay on disks that the workers see. The parts add up if nothing "
        "overlaps.\n\n"
        + table(("part", "measured", "hours"), large_job(posterior.passes, rate, each_trip, bytes_a_second))
    )
    publish("dask_scaling.md", text, options.quick)


if __name__ == "__main__":
    main()
