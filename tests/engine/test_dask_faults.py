"""Workers that die: what they were at is run again elsewhere, and what always kills them is said."""

import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmc.data import Partition, as_source
from shardmc.engine import Dask, Local
from shardmc.errors import DataError, SamplingError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX's."),
]

NUM_SHARDS = 16


def slow_sum():
    """A program that takes long enough to be interrupted."""

    def program(rows, weights, shard, shared):
        start = jnp.sum(weights * rows["x"])
        return jax.lax.fori_loop(0, shared, lambda _, value: jnp.cos(value), start)

    return program


def kill_a_busy_worker(client, processes):
    """SIGKILL the process of a worker that has a task in hand."""
    while True:
        busy = [address for address, tasks in client.processing().items() if tasks]
        if busy:
            break
        time.sleep(0.01)
    victim = processes()[busy[0]]
    os.kill(victim, signal.SIGKILL)
    return victim


@pytest.fixture(params=["arrays", "files"])
def blocks(request, tmp_path):
    table = {"x": np.random.default_rng(0).normal(size=20 * NUM_SHARDS).astype(np.float32)}
    if request.param == "arrays":
        return as_source(table).split(Partition(NUM_SHARDS), seed=0)
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    return as_source(tmp_path / "rows.parquet", memory=0, scratch=tmp_path).split(Partition(NUM_SHARDS), 0)


def test_a_worker_killed_in_mid_shard_changes_nothing(client, processes, blocks):
    program, steps = slow_sum(), np.int32(1_000_000)
    before = set(processes().values())
    killed = []

    def on_done(shard):
        if not killed:
            killed.append(kill_a_busy_worker(client, processes))

    results = list(Dask(client, batch=1).map(program, blocks, None, steps, on_done=on_done))
    assert killed[0] in before
    assert killed[0] not in processes().values()
    assert sorted(shard for shard, _ in results) == list(range(NUM_SHARDS))
    alone = dict(Local().map(program, blocks, None, steps))
    np.testing.assert_array_equal([v for _, v in sorted(results)], [alone[i] for i in range(NUM_SHARDS)])


def test_rows_lost_between_two_maps_are_sent_again(client, processes, blocks):
    engine, program = Dask(client, batch=2), slow_sum()
    first = dict(engine.map(program, blocks, None, np.int32(1)))
    os.kill(next(iter(processes().values())), signal.SIGKILL)
    second = dict(engine.map(program, blocks, None, np.int32(1)))
    assert {i: float(v) for i, v in first.items()} == {i: float(v) for i, v in second.items()}


def test_a_shard_that_kills_every_worker_is_named(client, processes, blocks, monkeypatch):
    def deadly(rows, weights, shard, shared):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr("shardmc.engine.dask._ATTEMPTS", 2)
    processes()
    client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 1))
    try:
        with pytest.raises(SamplingError, match=r"Shard 3 could not be computed"):
            list(Dask(client, batch=1).map(deadly, blocks, None, None, [3]))
    finally:
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 3))
        processes()


def test_rows_that_a_worker_cannot_read_are_said_in_a_sentence(client, tmp_path):
    pq.write_table(pa.table({"x": np.ones(40, np.float32)}), tmp_path / "rows.parquet")
    blocks = as_source(tmp_path / "rows.parquet", memory=0, scratch=tmp_path).split(Partition(4), 0)
    blocks.scratch.discard()
    with pytest.raises(DataError, match="can no longer be read"):
        list(Dask(client).map(slow_sum(), blocks, None, np.int32(1)))
