"""Parquet and CSV files: folders, URLs, partitions, schemas, and files that cannot be read."""

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmc.data import Partition, as_source
from shardmc.errors import DataError

from .conftest import columns, make_source, shards_of


def numbers(blocks, name="row"):
    return sorted(
        number
        for shard, (rows, _) in shards_of(blocks).items()
        for number in rows[name][: blocks.sizes[shard]].tolist()
    )


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_any_fsspec_filesystem(name, tmp_path):
    make_source("parquet" if name.endswith("parquet") else "csv", tmp_path)
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/somewhere/{name}", (tmp_path / name).read_bytes())
    source = as_source(f"memory://somewhere/{name}", columns=["row"])
    assert numbers(source.split(Partition(3), 0)) == list(range(1003))
    assert len(source.fingerprint) == 64


def test_a_folder_of_any_filesystem_is_streamed(tmp_path):
    make_source("folder", tmp_path)
    for part in (tmp_path / "parts").iterdir():
        fsspec.filesystem("memory").pipe_file(f"/elsewhere/parts/{part.name}", part.read_bytes())
    for location in ("memory://elsewhere/parts", (tmp_path / "parts").as_uri()):
        blocks = as_source(location, columns=["row"], memory=0).split(Partition(3), 0)
        assert blocks.portable
        assert numbers(blocks) == list(range(1003))


def test_a_file_url(tmp_path):
    make_source("parquet", tmp_path)
    assert as_source((tmp_path / "rows.parquet").as_uri()).num_rows == 1003


def test_keys_that_fit_no_whole_number_are_text(tmp_path):
    for key in ("7", "99999999999999999999"):
        (tmp_path / f"batch={key}").mkdir()
        pq.write_table(pa.table({"row": np.arange(2)}), tmp_path / f"batch={key}" / "part.parquet")
    pieces = as_source(tmp_path).tables(["batch"])
    assert [piece.column("batch")[0].as_py() for piece in pieces] == ["7", "99999999999999999999"]


def test_a_folder_with_keys_in_its_names(tmp_path):
    for year, region in ((2020, "north"), (2021, "south%20east")):
        folder = tmp_path / f"year={year}" / f"region={region}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"row": np.arange(3) + 3 * (year - 2020)}), folder / "part.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden.parquet").touch()
    source = as_source(tmp_path)
    assert set(source.column_names) == {"row", "year", "region"}
    rows = source.split(Partition(1, shuffle=False), 0).rows
    assert rows["year"].tolist() == [2020] * 3 + [2021] * 3
    assert numbers(source.split(Partition(2, stratify="region"), 0)) == list(range(6))
    (piece, *_) = list(source.tables(["region"]))[1:]
    assert piece.column("region").to_pylist() == ["south east"] * 3


def test_sample_reaches_all_row_groups(tmp_path):
    pq.write_table(pa.table({"x": np.arange(10_000)}), tmp_path / "rows.parquet", row_group_size=1000)
    sample = as_source(tmp_path / "rows.parquet").sample(50, seed=1)["x"]
    assert len(sample) == 50
    assert np.array_equal(np.unique(sample // 1000), np.arange(10))
    everything = as_source(tmp_path / "rows.parquet").sample(20_000, seed=1)["x"]
    assert np.array_equal(everything, np.arange(10_000))


def test_column_names_with_dots_and_blanks(tmp_path):
    pq.write_table(pa.table({"a.b": [1, 2], "a": [3, 4], "c d": [5, 6]}), tmp_path / "rows.parquet")
    rows = as_source(tmp_path / "rows.parquet").split(Partition(1, shuffle=False), 0).rows
    assert {name: column.tolist() for name, column in rows.items()} == {
        "a.b": [1, 2],
        "a": [3, 4],
        "c d": [5, 6],
    }


def test_compressed_csv(tmp_path):
    with fsspec.open(tmp_path / "rows.csv.gz", "wt", compression="gzip") as file:
        file.write("x,name\n1,a\n2,b\n")
    source = as_source(tmp_path / "rows.csv.gz")
    assert source.num_rows == 2
    assert source.sample(2, 0)["x"].tolist() == [1, 2]


def test_types_of_a_csv_fit_all_rows(tmp_path):
    lines = [f"{i},{i},{i}" for i in range(700_000)] + ["0.5,1,n"]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c", *lines]))
    source = as_source(tmp_path / "rows.csv")
    rows = source.split(Partition(1, shuffle=False), 0).rows
    assert {name: str(column.dtype) for name, column in rows.items()} == {"a": "float32", "b": "int32"}
    assert rows["a"][-1] == 0.5


def test_missing_values_of_a_csv(tmp_path):
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n,3\nNA,4\n")
    with pytest.raises(DataError, match="Column 'x' has 2 missing values"):
        as_source(tmp_path / "rows.csv").split(Partition(1), 0)


def cut(path, keep):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


@pytest.mark.parametrize("keep", [0, 0.001, 0.5, 0.99])
def test_a_truncated_parquet_file(keep, tmp_path):
    make_source("parquet", tmp_path)
    cut(tmp_path / "rows.parquet", keep)
    with pytest.raises(
        DataError, match=r"Parquet file 'rows.parquet' cannot be read .*Write or copy it again"
    ):
        as_source(tmp_path / "rows.parquet")


def test_a_damaged_page_is_told_when_it_is_read(tmp_path):
    make_source("parquet", tmp_path)
    path = tmp_path / "rows.parquet"
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)
    path.write_bytes(data)
    source = as_source(path, columns=["row"], memory=0)
    with pytest.raises(DataError, match=r"Parquet file 'rows.parquet' cannot be read"):
        source.split(Partition(3), 0)


def test_a_part_that_goes_missing(tmp_path):
    source = make_source("folder", tmp_path)
    (tmp_path / "parts" / "part-1.parquet").unlink()
    with pytest.raises(DataError, match=r"Parquet file 'part-1.parquet' cannot be read"):
        source.split(Partition(3), 0)


def test_locations_without_rows(tmp_path):
    with pytest.raises(DataError, match=r"There is no file or folder '.*nowhere.parquet'"):
        as_source(tmp_path / "nowhere.parquet")
    with pytest.raises(DataError, match=r"There is no file or folder '.*nowhere.csv'"):
        as_source(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match=r"Folder '.*' holds no .parquet"):
        as_source(tmp_path)
    with pytest.raises(DataError, match="cannot be opened"):
        as_source("nosuchscheme://somewhere/rows.parquet")
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match="is empty: it has no rows"):
        as_source(tmp_path / "empty.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read: Empty CSV file"),
        ("x,y\n", "is empty: it has no rows"),
        ("x,y\n1,2\n3\n", "cannot be read: .*Expected 2 columns, got 1"),
    ],
)
def test_csv_files_that_are_none(text, message, tmp_path):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        as_source(tmp_path / "rows.csv")


def test_parts_with_different_schemas(tmp_path):
    pq.write_table(pa.table({"x": [1.0], "y": [1], "z": [0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["1"], "y": [1]}), tmp_path / "b.parquet")
    source = as_source(tmp_path)
    with pytest.raises(
        DataError, match=r"Column 'x' is double in 'a.parquet' but string in 'b.parquet'; write all"
    ):
        source.select(["x"]).split(Partition(1), 0)
    with pytest.raises(DataError, match=r"Column 'z' is int64 in 'a.parquet' but absent in 'b.parquet'"):
        source.select(["z"]).split(Partition(1), 0)
    assert source.select(["y"]).split(Partition(1), 0).num_rows == 2


def test_fingerprint_follows_the_content_not_the_place(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, same = make_source("parquet", tmp_path / "a"), make_source("parquet", tmp_path / "b")
    assert first.fingerprint == same.fingerprint
    table = columns()
    table["x"][500] += 1
    assert make_source("parquet", tmp_path / "b", table).fingerprint != first.fingerprint


@pytest.mark.parametrize("count", [10, 2000])
def test_a_file_that_changes_between_opening_and_reading(count, tmp_path):
    source = make_source("parquet", tmp_path)
    pq.write_table(
        pa.table({name: np.resize(column, count) for name, column in columns().items()}),
        tmp_path / "rows.parquet",
    )
    with pytest.raises(DataError, match=f"had 1003 rows when it was opened and {count} when it was read"):
        source.split(Partition(3), 0)
