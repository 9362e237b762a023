"""The same seed gives the same draws on this machine, on one worker, on two, and when a worker is killed."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.data import as_source
from shardmc.store.run import status

pytestmark = pytest.mark.cluster

NUM_SHARDS = 12
OPTIONS = {"shards": NUM_SHARDS, "draws": 240, "seed": 5, "sampler": "independence"}


@pytest.fixture(scope="module")
def model():
    def log_likelihood(params, rows):
        eta = params["alpha"] + params["beta"] * rows["x"]
        return rows["y"] * eta - jax.nn.softplus(eta)

    def log_prior(params):
        return -0.5 * (params["alpha"] ** 2 + params["beta"] ** 2) / jnp.float32(25)

    return shardmc.Model(log_likelihood, log_prior, {"alpha": (), "beta": ()})


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2_405)
    return {"x": x.astype(np.float32), "y": (rng.random(len(x)) < 1 / (1 + np.exp(-x))).astype(np.float32)}


@pytest.fixture(scope="module")
def local(model, rows):
    return shardmc.fit(model, rows, **OPTIONS)


def check_equal(posterior, local):
    """To the last bit: on CPUs of one kind, with as many threads each, the compiled bodies are the same."""
    np.testing.assert_array_equal(posterior.mode, local.mode)
    np.testing.assert_array_equal(posterior.shards.draws, local.shards.draws)
    np.testing.assert_array_equal(posterior.theta, local.theta)
    assert posterior.certificate.to_dict() == local.certificate.to_dict()


def test_two_workers_draw_what_this_machine_draws(client, model, rows, local):
    check_equal(shardmc.fit(model, rows, engine=shardmc.Dask(client), **OPTIONS), local)


def test_one_worker_draws_what_this_machine_draws(model, rows, local):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        check_equal(shardmc.fit(model, rows, engine=shardmc.Dask(client, batch=5), **OPTIONS), local)


def test_workers_warp_skewed_parameters_as_this_machine_does(client):
    """Ten levels of a factor without a success: their log odds have long tails on the left."""
    level = np.random.default_rng(1).integers(0, 20, 2_000)
    rows = {"level": level.astype(np.int32), "y": (level >= 10).astype(np.float32) * (np.arange(2_000) % 2)}

    def log_likelihood(params, rows):
        eta = params["log_odds"][rows["level"]]
        return rows["y"] * eta - jax.nn.softplus(eta)

    model = shardmc.Model(
        log_likelihood, lambda params: -0.005 * jnp.sum(params["log_odds"] ** 2), {"log_odds": 20}
    )
    options = {"shards": 5, "draws": 200, "seed": 5, "precision": "single"}
    local = shardmc.fit(model, rows, **options)
    assert set(local.shards.sampler) == {"Warped(Independence)"}
    # All shards in one task: one worker compiles the programs, not both.
    check_equal(shardmc.fit(model, rows, engine=shardmc.Dask(client, batch=5), **options), local)


def test_workers_read_rows_from_files(client, model, rows, local, tmp_path):
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    source = as_source(tmp_path / "rows.parquet", memory=0, scratch=tmp_path / "scratch")
    check_equal(shardmc.fit(model, source, engine=shardmc.Dask(client), **OPTIONS), local)


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's.")
def test_a_killed_worker_and_an_interrupted_driver_lose_nothing(
    client, processes, model, rows, local, tmp_path
):
    class Interruption(Exception):
        pass

    def kill_then_interrupt(stage, done, total):
        if stage == "sample" and done == 2:
            os.kill(next(iter(processes().values())), signal.SIGKILL)
        if stage == "sample" and done == 6:
            raise Interruption

    options = {**OPTIONS, "engine": shardmc.Dask(client, batch=1), "run_dir": tmp_path / "run"}
    with pytest.raises(Interruption):
        shardmc.fit(model, rows, progress=kill_then_interrupt, **options)
    assert 0 < len(status(tmp_path / "run").done) < NUM_SHARDS
    posterior = shardmc.fit(model, rows, **options)
    assert " of 12 shards were already done." in posterior.notes[0]
    check_equal(posterior, local)


@pytest.mark.slow
def test_effects_of_groups_of_an_own_model(client, rows):
    model = shardmc.Model(
        lambda params, rows, effects: -0.5 * (rows["x"] - params["mu"] - effects["u"]) ** 2,
        lambda params: -params["tau"],
        {"mu": (), "tau": "positive"},
        local={"u": "tau"},
        groups="g",
    )
    grouped = rows | {"g": np.arange(2_405) % 300}
    options = {"shards": 2, "draws": 100, "check": False, "nodes": 3}
    here = shardmc.fit(model, grouped, **options)
    there = shardmc.fit(model, grouped, engine=shardmc.Dask(client, batch=2), **options)
    np.testing.assert_array_equal(there.theta, here.theta)
