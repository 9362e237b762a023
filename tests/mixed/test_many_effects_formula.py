"""Formulas with many effects in each group: correlated effects, weights, files, a cluster."""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.combiners import Recenter
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.formulas.families import named_family
from shardmc.formulas.linear_model import model_of
from shardmc.formulas.preparing import prepare
from shardmc.model.precision import double_precision
from shardmc.pipeline.counts import Nodes
from shardmc.pipeline.grouping import recentered
from shardmc.pipeline.stage import Job
from shardmc.sample import Auto

NONE = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}
COLUMNS = ["x1", "x2", "x3"]
SIZES = np.array([1, 2, 3, 3, 4, 4, 5, 5])
SDS = np.array([0.9, 0.7, 0.5, 0.6])
SIMULATED = 400_000


def binary() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    count = int(SIZES.sum())
    data = pd.DataFrame(rng.normal(size=(count, 3)), columns=COLUMNS)
    return data.assign(
        g=np.repeat(np.arange(len(SIZES)), SIZES),
        y=rng.integers(0, 2, count),
        w=rng.integers(1, 4, count).astype(float),
    )


def root() -> np.ndarray:
    """A Cholesky factor of a correlation matrix with large entries."""
    lower = np.array([[1, 0, 0, 0], [0.6, 1, 0, 0], [-0.5, 0.4, 1, 0], [0.3, -0.6, 0.5, 1.0]])
    return lower / np.linalg.norm(lower, axis=1, keepdims=True)


def simulated(data: pd.DataFrame, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihoods of the groups by simulated effects, and their standard errors."""
    effects = np.random.default_rng(0).normal(size=(SIMULATED, 4)) @ factor.T
    logs, errors = [], []
    for _, part in data.groupby("g"):
        columns = np.column_stack([np.ones(len(part)), part[COLUMNS]])
        eta = 0.2 + 0.3 * part["x1"].to_numpy() + effects @ columns.T
        sign = 2 * part["y"].to_numpy() - 1
        values = np.exp(-(np.logaddexp(0.0, -sign * eta) @ part["w"].to_numpy()))
        logs.append(np.log(values.mean()))
        errors.append(values.std() / values.mean() / np.sqrt(SIMULATED))
    return np.array(logs), np.array(errors)


@pytest.mark.slow
def test_correlated_effects_and_weights_against_simulation() -> None:
    """Within five standard errors (a false alarm in 2e-6 of such tests of eight groups) and the method's own error."""
    data = binary()
    formula = f"y ~ x1 + (1 + {' + '.join(COLUMNS)} | g)"
    with double_precision():
        prepared = prepare(formula, as_source(data), named_family("bernoulli"), None, **NONE, taken=["w"])
        model = model_of(prepared)
        blocks = prepared.source.split(Partition(1, weights=data["w"].to_numpy()), seed=0)
        values = {"Intercept": 0.2, "coefficients": [0.3], "sd_g": SDS, "cor_g": root()}
        theta = np.asarray(model.unconstrain(values))
        job = Job(model, blocks, Local(workers=1), 0, Recenter(), Auto())
        centred = recentered(job, blocks, theta, Nodes(0, 0, 0))
        _, batch = next(iter(centred.batches([0], 1)))
        found = np.asarray(jax.jit(model.log_likelihood)(theta, batch.take(0)[0]))[: len(SIZES)]
    order = centred.layout.order
    logs, errors = simulated(data, SDS[:, None] * root())
    gap = np.abs(found - logs[order])
    assert (gap < 5 * errors[order] + 0.01).all()
    without, _ = simulated(data, np.diag(SDS))  # the same sds, no correlation
    assert np.abs(found - without[order]).max() > 0.1


@pytest.mark.slow
@pytest.mark.cluster
def test_a_file_on_a_cluster_gives_the_draws_of_a_table(tmp_path) -> None:
    distributed = pytest.importorskip("distributed")
    rng = np.random.default_rng(3)
    data = pd.DataFrame(rng.normal(size=(320, 3)), columns=COLUMNS).assign(g=rng.integers(0, 80, 320))
    data["y"] = rng.poisson(np.exp(0.5 * rng.normal(size=80)[data["g"]]))
    data.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    formula = "y ~ x1 + (1 + x1 + x2 + x3 || g)"
    options = {"family": "poisson", "draws": 64, "shards": 2, "check": False, "precision": "single"}
    table = shardmc.glm(formula, data, **options)
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        file = shardmc.glm(formula, str(tmp_path / "rows.parquet"), **options, engine=shardmc.Dask(client))
    for name, draws in table.draws.items():
        np.testing.assert_array_equal(draws, file.draws[name])
    assert table.effects("g").equals(file.effects("g"))
