"""Faults of the machine become sentences: a full disk, and memory that is exhausted."""

import errno
import os

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.errors import RunError, ShardmcError
from shardmc.formulas import predict_file
from shardmc.guards.limits import needed_memory


@pytest.fixture(scope="module")
def line():
    x = np.random.default_rng(0).normal(size=1_000)
    y = x + np.random.default_rng(1).normal(size=1_000)
    return shardmc.glm("y ~ x", {"x": x, "y": y}, draws=50, shards=1, check=False, precision="single")


def full(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("method", ["write_table", "close"])
def test_a_prediction_on_a_full_disk_is_a_sentence(line, tmp_path, monkeypatch, method):
    target = tmp_path / "predicted.parquet"
    target.write_text("the old table")
    monkeypatch.setattr(pq.ParquetWriter, method, full)
    with pytest.raises(RunError, match=r"The disk is full: .*predicted\.parquet could not be written"):
        predict_file(line, {"x": np.arange(5.0)}, target)
    assert [path.name for path in tmp_path.iterdir()] == ["predicted.parquet"]
    assert target.read_text() == "the old table"


def test_a_prediction_does_not_follow_a_link(line, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "predicted.parquet").symlink_to(tmp_path / "precious")
    assert predict_file(line, {"x": np.arange(5.0)}, tmp_path / "predicted.parquet").rows == 5
    assert (tmp_path / "precious").read_text() == "mine"


def test_rows_that_cannot_be_read_are_not_called_a_full_disk(line, tmp_path):
    with pytest.raises(ShardmcError, match="There is no file or folder"):
        predict_file(line, tmp_path / "absent.parquet", tmp_path / "predicted.parquet")


def test_memory_that_is_exhausted_is_a_sentence_with_its_size():
    """A likelihood that sorts 10^12 numbers for every row."""
    model = shardmc.Model(
        lambda params, y: -0.5 * jnp.sort(y[:, None] * jnp.arange(1e12), axis=1)[:, 0] * params["mu"] ** 2,
        None,
        {"mu": ()},
    )
    y = np.random.default_rng(0).normal(size=500).astype(np.float32)
    with pytest.raises(ShardmcError, match=r"The stage .* needs 384\.0 TB of memory.*shards=") as caught:
        shardmc.fit(model, y, shards=2, draws=50)
    assert isinstance(caught.value, MemoryError)


def test_memory_that_numpy_or_arrow_cannot_get_is_a_sentence(monkeypatch):
    y = np.random.default_rng(0).normal(size=500).astype(np.float32)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})

    def greedy_split(*arguments, **options):
        return np.empty(10**16)

    monkeypatch.setattr("shardmc.data.arrays.ArraySource.split", greedy_split)
    with pytest.raises(ShardmcError, match=r"needs 80,.* TB of memory"):
        shardmc.fit(model, y, shards=2, draws=50)


@pytest.mark.parametrize(
    ("error", "size"),
    [
        (MemoryError("Unable to allocate 7.45 GiB for an array with shape (10,)"), 7.45 * 2**30),
        (pa.ArrowMemoryError("malloc of size 8000 failed"), 8000),
        (MemoryError(), 0),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4000 bytes."), 4000),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.5KiB."), 4608),
        (RuntimeError("something else"), None),
    ],
)
def test_the_size_is_read_from_what_the_libraries_say(error, size):
    assert needed_memory(error) == size


def test_combining_and_loading_say_it_too(monkeypatch, tmp_path):
    def greedy(*arguments, **options):
        return np.empty(10**16)

    monkeypatch.setattr("shardmc.combiners.combining.read_shards", greedy)
    with pytest.raises(ShardmcError, match=r"Combining the draws needs 80,.* TB"):
        shardmc.combine([np.ones((5, 1))])
    monkeypatch.setattr("shardmc.store.files.load_tree", greedy)
    with pytest.raises(ShardmcError, match=r"Reading the result needs 80,.* TB"):
        shardmc.load(tmp_path / "posterior.nc")
