"""What every engine promises: each shard once, the program's own result, whatever the batches and the order."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.data.gathered import GatheredBlocks
from shardmc.engine import Dask, Engine, Local, ProgramCall
from shardmc.engine.local import compiled_batch, default_batch
from shardmc.errors import OptionError
from shardmc.model.precision import double_precision

SIZES = (5, 9, 7, 9, 4, 8, 6)


def moments():
    """A program without a model; made here, so that it travels by value."""

    def program(rows, weights, shard, shared):
        offset, index = shard
        value = jnp.sum(weights * (rows["x"] * shared["slope"] + offset))
        return {"value": value, "index": index, "weight": jnp.sum(weights)}

    return program


def expected(blocks, shard, per_shard, shared):
    """The same by NumPy, from the shard's own batch."""
    ((_, batch),) = blocks.batches([shard], 1)
    rows, weights = batch.take(0)
    return float(
        np.sum(np.asarray(weights) * (np.asarray(rows["x"]) * float(shared["slope"]) + per_shard[0][shard]))
    )


@pytest.fixture(scope="module", params=["arrays", "gathered", "files"])
def blocks(request, tmp_path_factory):
    """Unequal shards with row weights and kept rows: in memory, gathered from arrays in another order, or on disk."""
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=sum(SIZES)).astype(np.float32), "w": rng.integers(1, 4, sum(SIZES))}
    data = table
    if request.param == "files":
        data = tmp_path_factory.mktemp("rows") / "rows.parquet"
        pq.write_table(pa.table(table), data)
    source = as_source(data, memory=None if request.param == "arrays" else 0).select(["x"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardmc.data.gathered.shards_at_a_time", lambda: 0)  # so few shards would be copied
        blocks = source.split(Partition(len(SIZES), weights="w", sizes=SIZES), seed=1)
    assert blocks.portable == (request.param == "files")
    assert isinstance(blocks, GatheredBlocks) == (request.param == "gathered")
    return blocks.keep([np.arange(shard % 3) for shard in range(len(SIZES))])


CLUSTERS = [pytest.param(name, marks=pytest.mark.cluster) for name in ("dask", "dask, batches of 3")]


@pytest.fixture(params=["local", "local, small batches", *CLUSTERS])
def engine(request):
    if request.param.startswith("local"):
        return Local() if request.param == "local" else Local(batch=2, workers=1)
    client = request.getfixturevalue("client")
    return Dask(client) if request.param == "dask" else Dask(client, batch=3)


def test_a_program_is_traced_once(blocks):
    """Tracing is a large part of the time before a first result."""
    traced = []

    def program(rows, weights, shard, shared):
        traced.append(shard)
        return jnp.sum(weights)

    assert len(list(Local(batch=2, workers=1).map(program, blocks, None, None))) == len(SIZES)
    assert len(traced) == 1


@pytest.mark.parametrize("shards", [None, [1, 3, 4], [6], []])
def test_every_shard_once_with_its_own_result(engine, blocks, shards):
    count = len(SIZES)
    per_shard = (np.linspace(0, 1, count, dtype=np.float32), np.arange(count, dtype=np.int32))
    shared = {"slope": jnp.float32(2.5)}
    done = []
    results = list(engine.map(moments(), blocks, per_shard, shared, shards, on_done=done.append))
    wanted = list(range(count)) if shards is None else shards
    assert sorted(shard for shard, _ in results) == wanted
    assert sorted(done) == wanted
    for shard, result in results:
        assert int(result["index"]) == shard
        assert result["value"] == pytest.approx(expected(blocks, shard, per_shard, shared), rel=1e-5)


def test_weights_count_every_row_once(engine, blocks):
    """Share-weighted, the shards' weights add up to the rows' own weights: no row is lost, none counts twice."""
    per_shard = (np.zeros(len(SIZES), np.float32), np.zeros(len(SIZES), np.int32))
    results = dict(engine.map(moments(), blocks, per_shard, {"slope": np.float32(0)}))
    total = sum(blocks.shares[shard] * float(result["weight"]) for shard, result in results.items())
    rng = np.random.default_rng(0)
    rng.normal(size=sum(SIZES))
    assert total == pytest.approx(rng.integers(1, 4, sum(SIZES)).sum(), rel=1e-5)


def test_an_engine_can_be_left_early(engine, blocks):
    per_shard = (np.zeros(len(SIZES), np.float32), np.zeros(len(SIZES), np.int32))
    results = engine.map(moments(), blocks, per_shard, {"slope": np.float32(1)})
    shard, _ = next(results)
    results.close()
    assert 0 <= shard < len(SIZES)


def test_an_error_of_the_program_reaches_the_caller(engine, blocks):
    def program(rows, weights, shard, shared):
        raise LookupError("no such column")

    with pytest.raises(LookupError, match="no such column"):
        list(engine.map(program, blocks, None, None))


def test_a_shard_that_fails_is_named_and_the_others_go_on_also_in_its_group(engine, blocks):
    def picky(rows, weights, shard, shared):
        def check(number):
            if number == 5:
                raise ArithmeticError("no such number")
            return np.float32(number)

        return jax.pure_callback(check, jax.ShapeDtypeStruct((), np.float32), shard)

    numbers, failed = np.arange(len(SIZES), dtype=np.int32), {}
    results = dict(engine.map(picky, blocks, numbers, None, on_failure=failed.__setitem__))
    assert {s: float(value) for s, value in results.items()} == {
        s: float(s) for s in range(len(SIZES)) if s != 5
    }
    assert list(failed) == [5]
    assert "no such number" in failed[5]
    with pytest.raises(jax.errors.JaxRuntimeError, match="no such number"):
        list(engine.map(picky, blocks, numbers, None))


@pytest.mark.cluster
@pytest.mark.parametrize("batch", [0, -1, 2.5])
def test_a_batch_that_is_no_number_of_shards_is_refused(client, batch):
    with pytest.raises(OptionError, match="batch of Dask must be a positive whole number"):
        Dask(client, batch=batch)


def test_something_that_is_no_client_is_refused():
    pytest.importorskip("distributed")
    with pytest.raises(OptionError, match=r"a distributed\.Client or the address of a scheduler, not int"):
        Dask(8786)  # type: ignore[arg-type]


@pytest.mark.cluster
def test_an_address_is_enough(client, blocks):
    engine = Dask(client.scheduler.address, batch=4)
    per_shard = (np.zeros(len(SIZES), np.float32), np.zeros(len(SIZES), np.int32))
    try:
        results = dict(engine.map(moments(), blocks, per_shard, {"slope": np.float32(0)}, [2]))
    finally:
        engine.client.close()
    assert list(results) == [2]


@pytest.mark.cluster
def test_resources_that_no_worker_has_are_refused(client, blocks):
    with pytest.raises(
        OptionError, match=r"No worker has the resources \{'GPU': 1\}; the workers offer none"
    ):
        list(Dask(client, resources={"GPU": 1}).map(moments(), blocks, None, None))


@pytest.mark.cluster
def test_only_workers_with_the_resources_are_used(blocks):
    distributed = pytest.importorskip("distributed")
    per_shard = (np.zeros(len(SIZES), np.float32), np.arange(len(SIZES), dtype=np.int32))
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, dashboard_address=":0", resources={"GPU": 1}
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        engine = Dask(client, resources={"GPU": 1})
        results = dict(engine.map(moments(), blocks, per_shard, {"slope": np.float32(1)}))
    assert sorted(results) == list(range(len(SIZES)))


@pytest.mark.cluster
def test_a_worker_compiles_a_program_once(client):
    blocks = as_source({"x": np.ones(60, np.float32)}).split(Partition(12), seed=0)
    engine, program = Dask(client, batch=2), moments()
    per_shard = (np.zeros(12, np.float32), np.zeros(12, np.int32))
    before = client.run(compiled)
    for step in range(3):
        list(engine.map(program, blocks, per_shard, {"slope": np.float32(step)}))
    after = client.run(compiled)
    assert all(after[address] - before[address] <= 1 for address in after)
    assert sum(after.values()) > sum(before.values())


def compiled():
    from shardmc.engine.local import compiled_batch

    return compiled_batch.made


@pytest.mark.cluster
@pytest.mark.parametrize("gathered", [False, True])
def test_rows_in_memory_are_sent_once_and_tasks_are_small(client, monkeypatch, gathered):
    cloudpickle = pytest.importorskip("cloudpickle")
    from distributed import Future

    monkeypatch.setattr("shardmc.data.gathered.shards_at_a_time", lambda: 0)
    rows = {"x": np.ones(400_000, np.float32)}
    blocks = as_source(rows, memory=0 if gathered else None).split(Partition(8, shuffle=not gathered), 0)
    assert isinstance(blocks, GatheredBlocks) == gathered
    kept = blocks.keep([np.arange(3)] * 8)
    engine, program = Dask(client, batch=2), moments()
    per_shard = (np.zeros(8, np.float32), np.zeros(8, np.int32))
    scattered, tasks = [], []
    assert engine.cluster.workers.threads == 2
    scatter, submit = client.scatter, client.submit

    def watched_scatter(data, **options):
        scattered.append(len(cloudpickle.dumps(data)))
        return scatter(data, **options)

    def watched_submit(function, *arguments, **options):
        tasks.append(len(cloudpickle.dumps([a for a in arguments if not isinstance(a, Future)])))
        return submit(function, *arguments, **options)

    monkeypatch.setattr(client, "scatter", watched_scatter)
    monkeypatch.setattr(client, "submit", watched_submit)
    for these in (blocks, kept, blocks):
        list(engine.map(program, these, per_shard, {"slope": np.float32(1)}))
    assert len(tasks) == 12
    assert max(tasks) < 20_000
    assert len(scattered) == 4
    assert sum(scattered) < 1.125 * rows["x"].nbytes  # slices are longer than shards by at most an eighth


@pytest.mark.cluster
def test_rows_leave_the_cluster_with_the_blocks(client):
    blocks = as_source({"x": np.ones(64, np.float32)}).split(Partition(4), seed=0)
    engine = Dask(client, batch=2)
    per_shard = (np.zeros(4, np.float32), np.zeros(4, np.int32))
    list(engine.map(moments(), blocks, per_shard, {"slope": np.float32(1)}))
    assert len(engine._sent) == 1
    del blocks
    assert len(engine._sent) == 0


@pytest.mark.cluster
def test_rows_cut_or_weighted_otherwise_are_sent_again(client):
    """JAX arrays in their own order are the same objects in every partition of them."""
    x, w = jnp.arange(64, dtype=jnp.float32), np.arange(64) % 3 + 1
    engine, program = Dask(client, batch=2), moments()
    for shards, weights in ((4, None), (8, None), (8, w)):
        blocks = as_source({"x": x}).split(Partition(shards, shuffle=False, weights=weights), 0)
        per_shard, shared = (np.zeros(shards, np.float32), np.arange(shards)), {"slope": np.float32(1)}
        for shard, found in engine.map(program, blocks, per_shard, shared):
            assert found["value"] == pytest.approx(expected(blocks, shard, per_shard, shared), rel=1e-6)
    assert len(engine._sent) == 3


@pytest.mark.cluster
def test_rows_shuffled_otherwise_are_sent_again(client, monkeypatch):
    """Shards that gather their rows do so from the same arrays with every seed."""
    monkeypatch.setattr("shardmc.data.gathered.shards_at_a_time", lambda: 0)
    rows = {"x": np.arange(64, dtype=np.float32), "y": np.zeros(64, np.float32)}
    engine, program, shared = Dask(client, batch=2), moments(), {"slope": np.float32(1)}
    per_shard = (np.zeros(4, np.float32), np.arange(4))
    for seed in (0, 1):
        blocks = as_source(rows, memory=0).split(Partition(4), seed)
        assert isinstance(blocks, GatheredBlocks)
        for shard, found in engine.map(program, blocks, per_shard, shared):
            assert found["value"] == pytest.approx(expected(blocks, shard, per_shard, shared), rel=1e-6)
    del blocks
    assert not engine._sent


@pytest.mark.cluster
def test_a_program_with_large_constants_travels_once_per_worker(client, monkeypatch):
    cloudpickle = pytest.importorskip("cloudpickle")
    from distributed import Future

    table = np.arange(50_000, dtype=np.float32)

    def program(rows, weights, shard, shared):
        return jnp.sum(weights) * 0 + table[7]

    blocks = as_source({"x": np.ones(64, np.float32)}).split(Partition(8), seed=0)
    sizes, submit = [], client.submit

    def watched(function, *arguments, **options):
        sizes.append(len(cloudpickle.dumps([a for a in arguments if not isinstance(a, Future)])))
        return submit(function, *arguments, **options)

    monkeypatch.setattr(client, "submit", watched)
    results = dict(Dask(client, batch=1).map(program, blocks, None, None))
    assert {float(value) for value in results.values()} == {7.0}
    assert sum(size > 100_000 for size in sizes) == 1


@pytest.mark.parametrize("kind", ["arrays", "files"])
def test_rows_and_results_have_the_precision_of_the_caller(engine, kind, tmp_path):
    def program(rows, weights, shard, shared):
        return jnp.sum(weights * rows["x"]) + jnp.asarray(2.0**-42) * shared

    data = {"x": 1 + 2.0**-40 * np.arange(16)}  # in single precision all are 1
    if kind == "files":
        pq.write_table(pa.table(data), tmp_path / "rows.parquet")
    with double_precision():
        source = as_source(tmp_path / "rows.parquet" if kind == "files" else data, memory=0)
        blocks = source.split(Partition(3), seed=0).keep([np.array([0])] * 3)
        results = dict(engine.map(program, blocks, None, np.float64(3)))
    total = sum(blocks.shares[shard] * value for shard, value in results.items())
    assert {value.dtype for value in results.values()} == {np.dtype(np.float64)}
    assert total == pytest.approx(data["x"].sum() + 3 * 2.0**-42, abs=1e-14)


@pytest.mark.cluster
def test_xla_has_as_many_threads_as_its_worker():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=3, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        _ = Dask(client).cluster.workers
        assert set(client.run(lambda: os.environ.get("NPROC")).values()) == {"3"}


@pytest.mark.cluster
def test_the_number_of_threads_in_a_workers_environment_stays(client):
    _ = Dask(client).cluster.workers
    assert set(client.run(lambda: os.environ.get("NPROC")).values()) == {str(os.cpu_count())}


def test_what_was_prepared_is_not_compiled_again():
    blocks = as_source({"x": np.arange(40.0)}).split(Partition(5), 0)
    program, per_shard, shared = moments(), (np.ones(5, np.float32), np.arange(5)), {"slope": np.float32(2)}
    engine = Local()
    before = compiled_batch.made
    engine.prepare(ProgramCall(program, blocks, per_shard, shared)).result()
    assert compiled_batch.made == before + 1
    prepared = dict(engine.map(program, blocks, per_shard, shared))
    assert compiled_batch.made == before + 1
    other = moments()
    unprepared = dict(engine.map(other, blocks, per_shard, shared))
    assert compiled_batch.made == before + 2  # the control: without preparation there is one more
    assert {k: float(v["value"]) for k, v in prepared.items()} == {
        k: float(v["value"]) for k, v in unprepared.items()
    }


def test_a_program_that_cannot_be_compiled_says_so_where_it_is_run():
    blocks = as_source({"x": np.arange(40.0)}).split(Partition(5), 0)

    def broken(rows, weights, shard, shared):
        raise ValueError("no such program")

    assert isinstance(Local().prepare(ProgramCall(broken, blocks, None, None)).exception(), ValueError)
    with pytest.raises(ValueError, match="no such program"):
        list(Local().map(broken, blocks, None, None))


@pytest.mark.parametrize("engine", [Local(), Local(batch=8), Local(batch=4, width=4)], ids=repr)
def test_preparing_computes_no_shard(engine):
    blocks = as_source({"x": np.arange(40.0)}).split(Partition(5), 0)
    seen: list[int] = []

    def counted(rows, weights, shard, shared):
        jax.debug.callback(lambda i: seen.append(int(i)), shard)
        return jnp.sum(weights * rows["x"])

    before = compiled_batch.made
    engine.prepare(ProgramCall(counted, blocks, np.arange(5), None)).result()
    jax.effects_barrier()
    assert seen == []
    list(engine.map(counted, blocks, np.arange(5), None))
    jax.effects_barrier()
    assert set(seen) == set(range(5))  # the control: the counter counts
    assert compiled_batch.made == before + 1


def test_an_accelerator_gets_fewer_larger_batches_than_cores_do():
    blocks = as_source({"x": np.arange(6_400.0)}).split(Partition(640), 0)
    assert default_batch(blocks, 2, accelerated=False) == 32
    assert default_batch(blocks, 1, accelerated=True) == 128
    assert default_batch(blocks, 8, accelerated=True) == 20


class LosesShards(Engine):
    """An engine whose workers die at some shards."""

    def __init__(self, lost):
        self.lost = lost

    def map(self, program, blocks, per_shard, shared, shards=None, on_done=None, on_failure=None):
        wanted = range(blocks.num_shards) if shards is None else shards
        left = wanted if on_failure is None else [shard for shard in wanted if shard not in self.lost]
        yield from Local().map(program, blocks, per_shard, shared, left, on_done)
        for shard in set(wanted) - set(left):
            on_failure(shard, "its worker died")


@pytest.mark.slow
def test_shards_that_an_engine_loses_are_named_and_the_others_are_kept(tmp_path):
    rows = np.random.default_rng(0).normal(size=600).astype(np.float32)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    options = {"shards": 6, "draws": 120, "run_dir": tmp_path / "run"}
    posterior = shardmc.fit(model, rows, engine=LosesShards({2, 4}), **options)
    (note,) = [note for note in posterior.notes if "failed" in note]
    assert note == "2 of 6 shards failed and are missing from the result (shard 2: its worker died)"
    assert set(posterior.shard) == {0, 1, 3, 5}
    again = shardmc.fit(model, rows, **options)
    assert "Shard 2 failed before: its worker died" in again.notes
    assert set(again.shard) == set(range(6))
    with pytest.raises(shardmc.ShardmcError, match="No shard could be sampled; shard 0: its worker died"):
        shardmc.fit(model, rows, engine=LosesShards(range(6)), shards=6, draws=120)
