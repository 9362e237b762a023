"""Nothing waits for ever on a cluster: what is waited for is said, and given up after a time that the user sets."""

import logging
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.engine import cluster as cluster_module
from shardmc.errors import DataError, EngineError

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.cluster

NUM_SHARDS = 4


def total(rows, weights, shard, shared):
    return (weights * rows["x"]).sum()


@pytest.fixture
def blocks():
    return as_source({"x": np.arange(40, dtype=np.float32)}).split(Partition(NUM_SHARDS), 0)


def a_cluster(**options):
    return distributed.LocalCluster(processes=False, threads_per_worker=1, dashboard_address=":0", **options)


@pytest.fixture
def empty():
    """A cluster without workers."""
    with a_cluster(n_workers=0) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def test_a_cluster_without_workers_is_said_and_given_up(empty, blocks, monkeypatch, caplog):
    monkeypatch.setattr(cluster_module, "_QUIET", 0.5)
    monkeypatch.setattr(cluster_module, "_BETWEEN_CHECKS", 0.1)
    engine = shardmc.Dask(empty, worker_timeout=1.5)
    with caplog.at_level(logging.WARNING, "shardmc"), pytest.raises(EngineError) as error:
        list(engine.map(total, blocks, None, None))
    (said,) = [record.getMessage() for record in caplog.records if record.name == "shardmc"]
    assert said.startswith("shardmc waits for a worker: the Dask scheduler at ")
    assert said.endswith("has none. It gives up after 1.5 s.")
    assert "has waited 2 s for a worker" in str(error.value)
    assert "repeat the call to continue" in str(error.value)
    assert "worker_timeout" in str(error.value)


def test_a_worker_that_comes_late_is_used(empty, blocks):
    timer = threading.Timer(1.0, lambda: empty.cluster.scale(1))
    timer.start()
    results = dict(shardmc.Dask(empty, worker_timeout=60).map(total, blocks, None, None))
    assert sorted(results) == list(range(NUM_SHARDS))


def test_an_adaptive_cluster_starts_from_nothing(blocks):
    with a_cluster(n_workers=0) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        cluster.adapt(minimum=0, maximum=1, interval="100 ms")
        results = dict(shardmc.Dask(client, worker_timeout=60).map(total, blocks, None, None))
    assert sorted(results) == list(range(NUM_SHARDS))


BARE_WORKER = """
import asyncio, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "shardmc":
            raise ModuleNotFoundError("No module named 'shardmc'")

sys.meta_path.insert(0, Hidden())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "shardmc" else found(name, package)

from distributed import Worker

async def main():
    async with Worker(sys.argv[1], nthreads=1) as worker:
        await worker.finished()

asyncio.run(main())
"""


def test_a_worker_without_shardmc_is_said(blocks):
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        address = cluster.scheduler_address
        worker = subprocess.Popen([sys.executable, "-c", BARE_WORKER, address], stderr=subprocess.DEVNULL)
        try:
            with pytest.raises(EngineError, match=r"1 of 1 workers cannot import shardmc, such as tcp://"):
                list(shardmc.Dask(client, worker_timeout=60).map(total, blocks, None, None))
        finally:
            worker.kill()
            worker.wait()


@pytest.fixture
def client():
    with a_cluster(n_workers=1) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        yield client


def test_a_shard_that_raises_does_not_abort_the_others(client, tmp_path):
    rows = np.random.default_rng(0).normal(2.0, 1.0, 600).astype(np.float32)

    def draw(key, rows, weights, power):
        def refuse(found):
            if found:
                raise DataError("this shard cannot be read")
            return np.float32(0)

        zero = jax.pure_callback(
            refuse, jax.ShapeDtypeStruct((), np.float32), ((rows == marked) & (weights > 0)).any()
        )
        precision = weights.sum()
        return {"mu": zero + (weights * rows).sum() / precision + jax.random.normal(key) / precision**0.5}

    marked = rows[0]
    model = shardmc.Model(lambda params, rows: -0.5 * (rows - params["mu"]) ** 2, None, {"mu": ()})
    posterior = shardmc.fit(
        model,
        rows,
        shards=8,
        draws=80,
        keep=None,
        check=False,
        sampler=shardmc.Exact(draw),
        engine=shardmc.Dask(client, batch=4),
        run_dir=tmp_path / "run",
    )
    (note,) = [note for note in posterior.notes if "failed" in note]
    assert note.startswith("1 of 8 shards failed")
    assert "cannot be read" in note
    assert posterior.shard is not None
    assert len(set(posterior.shard)) == 7


def test_a_closed_client_is_said_with_what_is_kept(client, blocks):
    engine = shardmc.Dask(client, batch=1)
    results = engine.map(total, blocks, None, None)
    next(results)
    client.close()
    with pytest.raises(EngineError, match=r"client was closed.*are kept in the run folder.*new client"):
        list(results)


def test_a_lost_scheduler_is_said_with_what_is_kept(blocks, monkeypatch):
    monkeypatch.setattr(cluster_module, "_BETWEEN_CHECKS", 0.1)

    def slow(rows, weights, shard, shared):
        def wait(value):
            time.sleep(30)
            return value

        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), np.float32), weights.sum())

    main = "import sys; from distributed.cli.dask_{} import main; main()"
    command = [sys.executable, "-c", main.format("scheduler"), "--port", "0", "--dashboard-address", ":0"]
    scheduler = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert scheduler.stderr is not None
    address = next(line.split()[-1] for line in scheduler.stderr if "Scheduler at:" in line)
    command = [sys.executable, "-c", main.format("worker"), address, "--nthreads", "1", "--no-nanny"]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with distributed.Client(address, set_as_default=False, timeout=2) as client:
            engine = shardmc.Dask(client, worker_timeout=60)
            assert engine.cluster.workers.threads == 1
            threading.Timer(1.0, scheduler.kill).start()
            with pytest.raises(EngineError, match=r"lost its scheduler.* are kept in the run folder"):
                list(engine.map(slow, blocks, None, None))
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.communicate()


@pytest.mark.parametrize("given", [0, -1, float("nan")])
def test_a_timeout_that_is_no_time_is_refused(empty, given):
    with pytest.raises(shardmc.ShardmcError, match="worker_timeout of Dask must be a positive number"):
        shardmc.Dask(empty, worker_timeout=given)
