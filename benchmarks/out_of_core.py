"""Memory and speed of a fit larger than memory: 4 and 40 million rows in Parquet, streamed from shard files.

    python benchmarks/out_of_core.py [--quick]

Each size runs in a process of its own, whose peak resident memory is read when it ends. Prints and writes
docs/benchmarks/out_of_core.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from provenance import header, publish, table

COLUMNS = 8  # seven predictors and the response, float32
PIECE = 1_000_000
STAGES = ("split", "locate", "keep", "locate shards", "sample", "check")


def write_rows(path: Path, num_rows: int) -> None:
    """Logistic rows, sorted by the response within each piece: the worst order for shards taken as they come."""
    beta = np.linspace(-0.5, 0.5, COLUMNS - 1)
    names = [*(f"x{i}" for i in range(COLUMNS - 1)), "y"]
    writer = None
    for number, start in enumerate(range(0, num_rows, PIECE)):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(min(PIECE, num_rows - start), COLUMNS - 1)).astype(np.float32)
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ beta))).astype(np.float32)
        order = np.argsort(y, kind="stable")
        piece = pa.table([*(x[order, i] for i in range(COLUMNS - 1)), y[order]], names=names)
        writer = writer or pq.ParquetWriter(path, piece.schema)
        writer.write_table(piece, row_group_size=250_000)
    assert writer is not None
    writer.close()


def fit(path: str, scratch: str, shards: int) -> dict[str, object]:
    """Fit in this process; seconds and passes of each stage, and the peak of its memory in bytes."""
    import jax.numpy as jnp

    import shardmc
    from shardmc.data import as_source

    def log_likelihood(params, rows):
        eta = params["alpha"] + sum(params["beta"][i] * rows[f"x{i}"] for i in range(COLUMNS - 1))
        return rows["y"] * eta - jnp.logaddexp(0.0, eta)

    def log_prior(params):
        return -0.5 * (params["alpha"] ** 2 + jnp.sum(params["beta"] ** 2)) / 25

    model = shardmc.Model(log_likelihood, log_prior, {"alpha": (), "beta": COLUMNS - 1})
    source = as_source(path, memory=0, scratch=scratch)
    posterior = shardmc.fit(model, source, shards=shards, draws=10 * shards, sampler="independence", seed=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    assert posterior.certificate is not None
    return {
        "rows": source.num_rows,
        "peak": peak,
        "seconds": dict(posterior.seconds),
        "passes": dict(posterior.passes),
        "verdict": posterior.certificate.sentence,
    }


def measure(num_rows: int, shards: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="shardmc-bench-") as folder:
        path = Path(folder) / "rows.parquet"
        write_rows(path, num_rows)
        command = [sys.executable, __file__, "--one", str(path), folder, str(shards)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout
        return json.loads(shown.splitlines()[-1])


def report(results: list[dict]) -> str:
    small, large = results[0], results[-1]
    ratio = large["peak"] / small["peak"]
    memory = table(
        ("rows", "rows as float32", "peak resident memory", "certificate"),
        [
            (
                f"{r['rows']:,}",
                f"{r['rows'] * COLUMNS * 4 / 1e9:.2f} GB",
                f"{r['peak'] / 1e9:.2f} GB",
                r["verdict"],
            )
            for r in results
        ],
    )
    speed = table(
        ("stage", *(f"{r['rows']:,} rows: seconds" for r in results), "million rows read a second"),
        [
            (
                stage,
                *(f"{r['seconds'].get(stage, 0):.1f}" for r in results),
                f"{large['rows'] * _passes(large, stage) / large['seconds'][stage] / 1e6:.1f}",
            )
            for stage in STAGES
            if stage in large["seconds"]
        ],
    )
    return (
        "# Rows that do not fit in memory\n\n"
        + header("out_of_core.py")
        + "\nLogistic regression, 8 parameters, 8 float32 columns in Parquet sorted by the response within every\n"
        "million rows, written to shard files on disk and read from there. Each size in a process of its own.\n\n"
        + memory
        + f"\nPeak memory with {large['rows']:,} rows is {ratio:.2f} times that with {small['rows']:,}.\n\n"
        + speed
        + "\nSeconds include compilation. What is counted is reading: the search for the mode of all rows reads them\n"
        "once a Newton step, every other stage once, however often it evaluates a row that is in memory.\n"
    )


def _passes(result: dict, stage: str) -> float:
    """How often a stage reads all rows from disk: Newton once per pass, the others once."""
    return result["passes"].get(stage, 1.0) if stage == "locate" else 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows; nothing is written")
    parser.add_argument("--one", nargs=3, metavar=("FILE", "SCRATCH", "SHARDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        path, scratch, shards = arguments.one
        print(json.dumps(fit(path, scratch, int(shards))))
        return
    # Shards of the same size, so that what differs is the number of rows alone.
    sizes = (400_000, 4_000_000) if arguments.quick else (4_000_000, 40_000_000)
    per_shard = 10_000 if arguments.quick else 40_000
    publish("out_of_core.md", report([measure(n, n // per_shard) for n in sizes]), arguments.quick)


if __name__ == "__main__":
    main()
