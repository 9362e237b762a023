"""Memory: compiled programs are forgotten with their models, and what a table needs is said before it is read."""

import gc
import logging
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.data.batch import Blocks
from shardmc.data.gathered import shards_at_a_time
from shardmc.engine import local
from shardmc.engine.local import Local, compiled_batch
from shardmc.locate import gradient_sums, precision
from shardmc.programs import compiled as compiled_functions
from shardmc.programs.compiled import CompiledFor

MEASURES_PRECISION = True  # by programs that must be forgotten, too


def number_of_programs() -> int:
    """Compiled programs that are alive in this process, whoever holds them."""
    import jax

    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def new_model(power: int = 2) -> shardmc.Model:
    """Models of equal steps share their programs, and the first is kept for all. Other powers are other steps."""
    return shardmc.Model(
        lambda params, rows: -0.5 * (rows - params["mu"]) ** power,
        lambda params: -0.5 * params["mu"] ** power / 100,
        {"mu": ()},
    )


@pytest.mark.slow
def test_the_programs_of_old_models_are_forgotten(monkeypatch):
    from shardmc.model.validation import _values

    for kept in (
        compiled_batch,
        precision._in_single,
        precision._in_double,
        gradient_sums._prior_gradients,
        _values,
    ):
        assert isinstance(kept, CompiledFor)
        monkeypatch.setattr(kept, "_most", 8 if kept is compiled_batch else 1)
    rows = np.random.default_rng(0).normal(2.0, 1.0, 600).astype(np.float32)
    models, counts = [], []
    for number in range(4):
        model = new_model(2 + 2 * number)
        models.append(weakref.ref(model))
        shardmc.fit(model, rows, shards=2, draws=40)
        del model
        counts.append(number_of_programs())
    assert models[0]() is None, "a model that nobody uses is still held"
    # Other powers need one or two more small programs of JAX itself. A model has six or more of its own.
    assert counts[3] < counts[1] + 6, "every model leaves programs behind"


@pytest.mark.slow
def test_the_programs_of_other_shapes_are_forgotten(monkeypatch):
    monkeypatch.setattr(compiled_batch, "_most", 8)
    model, generator = new_model(), np.random.default_rng(0)
    for count in (500, 520, 540, 560):
        shardmc.fit(model, generator.normal(2.0, 1.0, count).astype(np.float32), shards=2, draws=40)
        assert len(compiled_batch) <= 8


def test_memory_of_dropped_programs_is_returned_about_once_a_fit(monkeypatch):
    returned = []
    monkeypatch.setattr(compiled_functions, "return_freed_memory", lambda: returned.append(1))
    compiled = CompiledFor(lambda exponent, x: x**exponent, static=1, most=1)
    for exponent in range(1 + 2 * compiled_functions._TRIMMED_AFTER):
        compiled(exponent, 2.0)
    assert len(returned) == 2


def test_the_last_programs_are_used_again():
    traced = []

    def power(exponent, x):
        traced.append(exponent)
        return x**exponent

    compiled = CompiledFor(power, static=1, most=2)
    assert [float(compiled(e, 2.0)) for e in (2, 3, 2, 3)] == [4, 8, 4, 8]
    assert traced == [2, 3]
    assert [float(compiled(e, 2.0)) for e in (4, 2)] == [16, 4]  # the first pushed out 2, the second 3
    assert traced == [2, 3, 4, 2]
    assert len(compiled) == 2


@pytest.fixture
def rows_on_disk(tmp_path):
    """4,800 kB of rows."""
    pq.write_table(pa.table({"x": np.zeros(1_200_000, np.float32)}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_what_a_limit_of_memory_leaves_out_is_said_before_rows_are_read(rows_on_disk, caplog):
    with caplog.at_level(logging.WARNING, "shardmc"):
        blocks = as_source(rows_on_disk, memory=1_000_000).split(Partition(1_000), 0)
    assert [record.getMessage() for record in caplog.records] == [
        "shardmc holds up to 0.001 GB of rows in memory, as memory= allows. The process needs about 1 GB besides."
    ]
    assert blocks.most_in_memory == 1_000_000 // 4_800
    assert Local(workers=2)._sizes(lambda *_: None, blocks)[1] <= blocks.most_in_memory // 4


def test_shards_too_large_for_a_limit_of_memory_are_said(rows_on_disk, caplog):
    at_a_time = shards_at_a_time()
    with caplog.at_level(logging.WARNING, "shardmc"):
        blocks = as_source(rows_on_disk, memory=1_000_000).split(Partition(10), 0)
    said = caplog.records[0].getMessage()
    assert said.startswith(f"shardmc holds {at_a_time} shards in memory at a time")
    assert said.endswith(f"Use at least {-(-at_a_time * 4_800_000 // 1_000_000)} shards.")
    assert Local(workers=2)._sizes(lambda *_: None, blocks)[1] == 1


def test_nothing_is_said_where_nothing_was_asked(rows_on_disk, caplog):
    with caplog.at_level(logging.WARNING, "shardmc"):
        as_source(rows_on_disk).split(Partition(2), 0)
        as_source(rows_on_disk, memory=0).split(Partition(2), 0)
    assert not caplog.records


def partitions() -> int:
    """Partitions of rows that are in memory, whoever holds them."""
    return sum(issubclass(type(each), Blocks) for each in gc.get_objects())


def test_the_rows_of_a_fit_are_freed_when_it_ends():
    """Not when Python next looks for objects that hold each other: on an accelerator rows take gigabytes."""
    rows = np.random.default_rng(0).normal(2.0, 1.0, 600).astype(np.float32)
    model = new_model()
    gc.collect()
    before = partitions()
    shardmc.fit(model, rows, shards=2, draws=40)
    gc.collect()
    gc.disable()
    try:
        fitted = shardmc.fit(model, rows, shards=2, draws=40, seed=1)
        local._compiler().submit(lambda: None).result()  # what was compiled ahead had the rows, too
        assert partitions() == before
        assert len(fitted.theta) >= 40
    finally:
        gc.enable()
