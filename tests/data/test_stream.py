"""Rows beyond memory: files of shards, their reuse, their removal, and what may go wrong with them."""

import gc
import os
import pickle
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmc.data import Partition, as_source
from shardmc.data.arrow import as_numpy
from shardmc.data.blocks import StreamBlocks
from shardmc.errors import DataError
from shardmc.model.precision import double_precision

from .conftest import columns, make_source, shards_of, total_weights


@pytest.fixture
def file(tmp_path) -> Path:
    make_source("parquet", tmp_path)
    return tmp_path / "rows.parquet"


def split(file, scratch=None, seed=0, **options) -> StreamBlocks:
    blocks = as_source(file, memory=0, scratch=scratch).split(Partition(7, **options), seed)
    assert isinstance(blocks, StreamBlocks)
    return blocks


def test_memory_decides(file):
    needed = 1003 * 4 * 4
    assert isinstance(as_source(file, memory=needed - 1).split(Partition(7), 0), StreamBlocks)
    assert not isinstance(as_source(file, memory=needed).split(Partition(7), 0), StreamBlocks)


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dict"])
def test_a_table_in_memory_goes_to_files_above_a_limit(kind, tmp_path):
    """By default it is copied. A dictionary of arrays is a table if a function computes the rows, as for formulas."""
    data = {"dict": columns(), "pandas": pd.DataFrame(columns()), "polars": pl.DataFrame(columns())}
    table = data.get(kind, pa.table(columns()))

    def split_with(memory):
        source = as_source(table, memory=memory, scratch=tmp_path)
        made = source.transform(
            lambda t: {n: as_numpy(t.column(n)) for n in ("row", "x")}, ["row", "x"], "same"
        )
        return made.split(Partition(7, weights="weight"), seed=2)

    copied, streamed = split_with(None), split_with(1)
    assert not isinstance(copied, StreamBlocks)
    assert isinstance(streamed, StreamBlocks)
    assert streamed.scratch.path.parent == tmp_path
    for shard, (rows, weights) in shards_of(streamed).items():
        count = int(streamed.sizes[shard])
        expected, expected_weights = shards_of(copied)[shard]
        np.testing.assert_array_equal(rows["row"][:count], expected["row"][:count])
        np.testing.assert_array_equal(rows["x"][:count], expected["x"][:count])
        np.testing.assert_array_equal(weights, expected_weights)


@pytest.mark.slow
def test_a_temporary_folder_goes_with_its_shards(file):
    blocks = split(file)
    folder = blocks.scratch.path
    assert folder.is_dir()
    kept = blocks.keep([[0]] + [[]] * 6)
    del blocks
    gc.collect()
    assert shards_of(kept)
    del kept
    gc.collect()
    assert not folder.exists()


@pytest.mark.slow
def test_a_copy_in_another_process_reads_but_does_not_remove(file):
    blocks = split(file, weights="weight").keep([[0]] + [[]] * 6)
    data = pickle.dumps(blocks)
    assert len(data) < 20_000
    copy = pickle.loads(data)
    np.testing.assert_array_equal(total_weights(copy), total_weights(blocks))
    del copy
    gc.collect()
    assert blocks.scratch.path.is_dir()


def test_a_named_folder_stays_and_is_used_again(file, tmp_path):
    scratch = tmp_path / "rows"
    first = split(file, scratch)
    stamps = [path.stat().st_mtime_ns for path in sorted(first.scratch.path.iterdir())]
    again = split(file, scratch)
    assert [path.stat().st_mtime_ns for path in sorted(again.scratch.path.iterdir())] == stamps
    np.testing.assert_array_equal(total_weights(again), total_weights(first))
    others = [
        split(file, scratch, **other) for other in ({"seed": 1}, {"stratify": "label"}, {"weights": "weight"})
    ]
    assert len({blocks.scratch.path for blocks in (first, *others)}) == 4
    first.scratch.discard()
    assert not first.scratch.path.exists()


def test_a_pass_that_was_cut_short_is_made_again(file, tmp_path):
    scratch = tmp_path / "rows"
    first = split(file, scratch)
    (first.scratch.path / "complete.json").unlink()
    first.scratch.column_file(0).write_bytes(b"half")
    np.testing.assert_allclose(total_weights(split(file, scratch)), 1, rtol=1e-6)


@pytest.mark.parametrize("content", ["", "[]", '{"key": "another"}', "\x00\x01"])
def test_a_note_that_does_not_fit_is_not_believed(file, tmp_path, content):
    scratch = tmp_path / "rows"
    first = split(file, scratch)
    first.scratch.column_file(0).write_bytes(b"")
    (first.scratch.path / "complete.json").write_text(content)
    np.testing.assert_allclose(total_weights(split(file, scratch)), 1, rtol=1e-6)


def test_a_shard_file_cut_off_or_removed_later(file):
    blocks = split(file)
    os.truncate(blocks.scratch.column_file(0), 100)
    with pytest.raises(DataError, match=r"can no longer be read \(a file has become shorter\)"):
        shards_of(blocks)
    blocks.scratch.discard()
    with pytest.raises(DataError, match="can no longer be read"):
        shards_of(blocks)


def test_faults_are_found_before_the_first_shard_and_leave_nothing(tmp_path):
    pq.write_table(pa.table({"x": [1.0, np.nan, None, 2.0], "n": [1, None, 2, 2]}), tmp_path / "rows.parquet")
    source = as_source(tmp_path / "rows.parquet", memory=0, scratch=tmp_path / "scratch")
    with pytest.raises(DataError, match=r"2 columns have missing values: 'n' \(1\), 'x' \(2\)"):
        source.split(Partition(2), 0)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_full_disk_is_told_before_it_is_full(file, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(
        DataError, match=r"cannot be written to .*they take 0.00 GB and 0.00 GB are free.*scratch= of shardmc"
    ):
        split(file, tmp_path / "rows")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up(file, tmp_path, monkeypatch):
    monkeypatch.setattr("shardmc.data.scratch.Scratch.column_file", lambda *_: Path("/dev/full"))
    with pytest.raises(DataError, match=r"cannot be written to .*No space left on device.* Choose a folder"):
        split(file, tmp_path / "rows")


def test_a_scratch_place_that_is_a_file(file, tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(DataError, match="cannot make a scratch folder in"):
        split(file, tmp_path / "taken")


def test_batches_have_one_shape_whatever_the_shards(file):
    blocks = as_source(file, memory=0).split(Partition(4, sizes=[3, 600, 100, 300]), 0)
    shapes = {batch.rows["x"].shape for size in (3, 3) for _, batch in blocks.batches([2, 0, 3, 1], size)}
    assert shapes == {(3 * blocks.slots + 1,)}  # a row more, so that no slice is the whole array


def test_padding_repeats_real_rows(file):
    blocks = as_source(file, memory=0).split(Partition(4, sizes=[3, 600, 100, 300]), 0)
    ((_, batch),) = blocks.batches([0], 1)
    assert np.unique(np.asarray(batch.rows["row"])).size == 3


def test_the_reading_thread_ends_with_the_batches(file):
    blocks = split(file)
    before = threading.active_count()
    batches = blocks.batches(range(7), 2)
    next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_pieces_of_any_size_give_the_same_shards(file, monkeypatch):
    reference = shards_of(split(file, stratify="label"))
    monkeypatch.setattr("shardmc.data.partition.PIECE_BYTES", 16 * 37)
    shards = shards_of(split(file, stratify="label"))
    for shard, (rows, weights) in reference.items():
        assert np.array_equal(shards[shard][0]["row"][weights > 0], rows["row"][weights > 0])


def test_sixty_four_bits_are_streamed_in_x64(file):
    with double_precision():
        blocks = split(file, weights="weight").keep([[0]] + [[]] * 6)
        ((_, batch), *_) = blocks.batches([0], 1)
        assert batch.rows["x"].dtype == batch.row_weights.dtype == batch.factors.dtype == np.float64
        assert batch.kept_rows["x"].dtype == batch.kept_weights.dtype == np.float64
        assert batch.rows["row"].dtype == np.int64


def peak_bytes(folder: Path, num_rows: int) -> int:
    """Most memory that NumPy held while the rows of a file were split into shards and each was read once."""
    path = folder / f"{num_rows}.parquet"
    pq.write_table(pa.table({"x": np.zeros(num_rows, np.float32)}), path)
    tracemalloc.start()
    blocks = as_source(path, memory=0).split(Partition(num_rows // 5000), seed=0)
    for _ in blocks.batches(range(blocks.num_shards), 2):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("shardmc.data.partition.PIECE_BYTES", 1 << 16)
    peak_bytes(tmp_path, 50_000)  # what is made once, such as compiled functions
    small, large = peak_bytes(tmp_path, 100_000), peak_bytes(tmp_path, 800_000)
    assert large < 1.3 * small
    assert large < 800_000 * 4
