"""Checksums of the draws of one small fit of each front end, to see whether a change alters any draw.

    python benchmarks/checksums.py > before.txt
    ... change the code ...
    python benchmarks/checksums.py | diff before.txt -

Prints one line per front end: its name and the first 16 digits of the SHA-256 of its draws, on the unconstrained and
on the natural scale. The draws depend on the machine and on the versions of the packages, so compare two outputs of
one machine only. Takes about a minute and writes nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shardmc
from shardmc.data import as_source

ROWS, SHARDS, DRAWS = 20_000, 6, 1_200
OPTIONS = {"shards": SHARDS, "draws": DRAWS, "seed": 3}


class Stopped(Exception):
    """Raised by a progress callback, to stop a run half way."""


def table() -> dict[str, np.ndarray]:
    """Rows of a logistic regression with two predictors."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(2, ROWS))
    y = rng.random(ROWS) < 1 / (1 + np.exp(1 - 0.8 * x + 0.5 * z))
    return {"x": x.astype(np.float32), "z": z.astype(np.float32), "y": y.astype(np.float32)}


def log_likelihood(params, rows):
    eta = params["alpha"] + params["beta"][0] * rows["x"] + params["beta"][1] * rows["z"]
    return rows["y"] * eta - jnp.logaddexp(0.0, eta)


def log_prior(params):
    return -0.5 * (params["alpha"] ** 2 + jnp.sum(params["beta"] ** 2)) / 25


MODEL = shardmc.Model(log_likelihood, log_prior, {"alpha": (), "beta": 2})


def plain_jax(folder: Path) -> shardmc.Posterior:
    return shardmc.fit(MODEL, table(), **OPTIONS)


def polished(folder: Path) -> shardmc.Posterior:
    combiner = shardmc.Recenter.algorithm_1()
    return shardmc.fit(MODEL, table(), **{**OPTIONS, "shards": 20}, keep=None, combiner=combiner, polish=True)


def numpyro(folder: Path) -> shardmc.Posterior:
    import numpyro
    import numpyro.distributions as dist

    def model(x, z, y=None):
        alpha = numpyro.sample("alpha", dist.Normal(0, 5))
        beta = numpyro.sample("beta", dist.Normal(0, 5).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=alpha + beta[0] * x + beta[1] * z), obs=y)

    return shardmc.fit(shardmc.from_numpyro(model), table(), **OPTIONS)


def formula(folder: Path) -> shardmc.Posterior:
    return shardmc.glm("y ~ x + z", table(), family="bernoulli", run_dir=folder / "glm", **OPTIONS)


def streamed_parquet(folder: Path) -> shardmc.Posterior:
    pq.write_table(pa.table(table()), folder / "rows.parquet", row_group_size=3_000)
    return shardmc.fit(MODEL, as_source(folder / "rows.parquet", memory=0), **OPTIONS)


def dask(folder: Path) -> shardmc.Posterior:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        return shardmc.fit(MODEL, table(), engine=shardmc.Dask(client), **OPTIONS)


def resumed(folder: Path) -> shardmc.Posterior:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "sample" and total > 1 and done == total // 2:
            raise Stopped

    engine = shardmc.Local(batch=1, workers=1)
    try:
        shardmc.fit(MODEL, table(), run_dir=folder / "run", engine=engine, progress=stop, **OPTIONS)
    except Stopped:
        return shardmc.fit(MODEL, table(), run_dir=folder / "run", engine=engine, **OPTIONS)
    raise AssertionError("The run was not stopped.")


def appended(folder: Path) -> shardmc.Posterior:
    old, new = (
        {name: values[part] for name, values in table().items()}
        for part in (slice(15_000), slice(15_000, None))
    )
    return shardmc.append(shardmc.fit(MODEL, old, **OPTIONS), MODEL, new, old_data=old)


def federated(folder: Path) -> shardmc.Posterior:
    rows = table()
    parts = np.split(np.arange(ROWS), [4_000, 11_000])
    sites = [
        shardmc.sample_shard(
            MODEL,
            {name: values[part] for name, values in rows.items()},
            share=len(part) / ROWS,
            shard=number,
            seed=3,
        )
        for number, part in enumerate(parts)
    ]
    return shardmc.combine_sites(sites)


FRONT_ENDS: tuple[Callable[[Path], shardmc.Posterior], ...] = (
    plain_jax,
    polished,
    numpyro,
    formula,
    streamed_parquet,
    dask,
    resumed,
    appended,
    federated,
)


def checksum(posterior: shardmc.Posterior) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(posterior.theta).tobytes())
    for values in posterior.draws.values():
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    for front_end in FRONT_ENDS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{front_end.__name__:<18}{checksum(front_end(Path(folder)))}", flush=True)


if __name__ == "__main__":
    main()
