"""Tables in memory: types, columns that are not numbers, missing values, computed rows."""

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from shardmc.data import Partition, as_source
from shardmc.errors import DataError, OptionError

from .conftest import columns, make_source, shards_of


def rows_of(data, **options):
    return as_source(data, **options).split(Partition(1, shuffle=False), seed=0).rows


def test_pandas_types():
    frame = pd.DataFrame(
        {
            "nullable": pd.array([1, 2, 3], dtype="Int64"),
            "flag": pd.array([True, False, True], dtype="boolean"),
            "arrow": pd.Series([1.5, 2.5, 3.5], dtype="float64[pyarrow]"),
            "codes": pd.Categorical([10, 20, 10]),
            "small": np.array([1, 2, 3], dtype=np.uint8),
            "truth": [True, False, True],
            "decimal": [decimal.Decimal("1.25")] * 3,
        }
    )
    rows = rows_of(frame)
    assert {name: str(column.dtype) for name, column in rows.items()} == {
        "nullable": "int32",
        "flag": "bool",
        "arrow": "float32",
        "codes": "int32",
        "small": "uint8",
        "truth": "bool",
        "decimal": "float32",
    }
    assert rows["codes"].tolist() == [10, 20, 10]
    assert rows["flag"].tolist() == [True, False, True]


def test_polars_and_arrow_types():
    frame = pl.DataFrame(
        {
            "decimal": pl.Series([decimal.Decimal("1.25"), decimal.Decimal("2.5")]),
            "unsigned": pl.Series([1, 2], dtype=pl.UInt64),
            "vector": pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float64, 2)),
        }
    )
    for data in (frame, frame.to_arrow()):
        rows = rows_of(data)
        assert rows["decimal"].tolist() == [1.25, 2.5]
        assert str(rows["unsigned"].dtype) == "int32"
        assert rows["vector"].tolist() == [[1, 2], [3, 4]]


def test_columns_that_are_not_numbers_are_left_out_unless_named():
    data = {
        "x": [1.0, 2.0],
        "name": ["a", None],
        "day": [datetime.date(2020, 1, 1)] * 2,
        "mixed": pd.Series([1, "a"], dtype=object),
        "level": pd.Categorical(["u", "v"]),
    }
    frame = pd.DataFrame(data)
    source = as_source(frame)
    assert source.column_names == tuple(data)
    assert list(source.sample(2, 0)) == ["x"]
    for name, message in {
        "name": "Column 'name' holds text .*encode its levels as integers",
        "day": "Column 'day' holds dates .*days since some date",
        "mixed": "Column 'mixed' holds",
        "level": "Column 'level' holds categories .*encode its levels as integers",
    }.items():
        with pytest.raises(DataError, match=message):
            source.select([name]).split(Partition(1), 0)


def test_numbers_that_turn_out_to_be_text_later():
    frame = pd.DataFrame({"x": pd.Series([1] * 2000 + ["a"], dtype=object)})
    with pytest.raises(DataError, match=r"Column 'x' mixes types .*convert 'a'"):
        as_source(frame).split(Partition(1), 0)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"x": [1.0, np.nan, np.nan], "n": pd.array([1, 2, 3], dtype="Int64")}),
        pd.DataFrame({"x": pd.array([1, None, None], dtype="Int64"), "n": [1, 2, 3]}),
        pd.DataFrame({"x": pd.array([True, None, None], dtype="boolean"), "n": [1, 2, 3]}),
        pl.DataFrame({"x": [1, None, None], "n": [1, 2, 3]}),
        pl.DataFrame({"x": [1.0, None, float("nan")], "n": [1, 2, 3]}),
        pa.table({"x": pa.chunked_array([[1], [None, None]]), "n": [1, 2, 3]}),
    ],
)
def test_missing_values_are_counted(frame):
    source = as_source(frame)
    with pytest.raises(
        DataError, match=r"Column 'x' has 2 missing values. Drop or impute .* as_source\(data, columns"
    ):
        source.split(Partition(1), 0)
    with pytest.raises(DataError, match=r"does not guess\.$"):
        source.select(["x"]).split(Partition(1), 0)
    assert source.select(["n"]).split(Partition(1), 0).num_rows == 3
    assert len(source.sample(3, 0)["x"]) == 1
    complete = source.drop_missing()
    assert complete.num_rows == 1
    assert complete.split(Partition(1), 0).rows["n"].tolist() == [1]


def test_dropping_rows_keeps_columns_together(kind, tmp_path):
    table = columns()
    table["x"] = np.where(np.arange(len(table["x"])) % 5 == 0, np.nan, table["x"])
    if kind == "csv":
        table["x"] = table["x"].round(6)
    source = make_source(kind, tmp_path, table).select(["row", "x"]).drop_missing()
    assert source.num_rows == int((~np.isnan(table["x"])).sum())
    blocks = source.split(Partition(4, weights="weight", stratify="label"), 0)
    for shard, (rows, weights) in shards_of(blocks).items():
        own = np.arange(blocks.sizes[shard])
        np.testing.assert_allclose(rows["x"][own], table["x"][rows["row"][own]].astype(np.float32))
        expected = table["weight"][rows["row"][own]] / blocks.shares[shard]
        np.testing.assert_allclose(weights[own], expected, rtol=1e-6)


def test_dropping_every_row_is_an_error():
    with pytest.raises(DataError, match="Every row has a missing value in one of the columns x"):
        as_source(pd.DataFrame({"x": [np.nan, np.nan]})).drop_missing()


def test_rows_computed_from_columns(kind, tmp_path):
    table = {**columns(), "region": np.array(["north", "south", "east"])[columns()["label"]]}

    def design(piece: pa.Table):
        names = np.asarray(piece.column("region").to_pylist())
        x = piece.column("x").to_numpy()
        return {
            "row": piece.column("row").to_numpy(),
            "design": np.stack([x, x**2, names == "south"], axis=1),
        }

    if kind == "jax":
        table.pop("region")
        pytest.skip("JAX has no text")
    source = make_source(kind, tmp_path, table).transform(design, ["row", "x", "region"], "south")
    assert not source.is_table
    assert source.select(["x"]) is source
    assert source.sample(5, 0)["design"].shape == (5, 3)
    blocks = source.split(Partition(4, weights="weight", stratify="region"), seed=0)
    for shard, (rows, _) in shards_of(blocks).items():
        number = rows["row"][: blocks.sizes[shard]]
        expected = np.stack([table["x"], table["x"] ** 2, table["region"] == "south"], axis=1)[number]
        np.testing.assert_allclose(rows["design"][: len(number)], expected, rtol=1e-5)


def test_a_computed_column_is_checked():
    source = as_source({"x": np.array([1.0, 0.0, 2.0])})
    with np.errstate(divide="ignore"):
        computed = source.transform(lambda t: {"log x": np.log(t.column("x").to_numpy())}, ["x"], "log")
        with pytest.raises(DataError, match=r"Column 'log x \(computed\)' has 1 infinite value"):
            computed.split(Partition(1), 0)
    assert computed.fingerprint != source.fingerprint


def test_pieces_of_a_table_come_as_they_are(kind, tmp_path):
    source = make_source(kind, tmp_path)
    pieces = list(source.tables(["x", "row"], count=100))
    assert [name for name in pieces[0].column_names] == ["x", "row"]
    assert max(map(len, pieces)) <= 100
    assert np.array_equal(pa.concat_tables(pieces).column("row").to_numpy(), columns()["row"])


def test_without_names_nothing_can_be_computed():
    with pytest.raises(OptionError, match="no column names"):
        as_source((np.zeros(3),)).transform(lambda table: table, ["x"], "")


def test_tables_that_cannot_be_rows():
    with pytest.raises(DataError, match="empty"):
        as_source(pd.DataFrame({"x": []}))
    with pytest.raises(DataError, match=r"Call its collect\(\)"):
        as_source(pl.LazyFrame({"x": [1]}))
    with pytest.raises(DataError, match="None of the columns holds numbers; the columns are name"):
        as_source(pd.DataFrame({"name": ["a"]}))
    with pytest.raises(OptionError, match="Unknown column 'z'"):
        as_source(pd.DataFrame({"x": [1]}), columns=["z"])
    with pytest.raises(DataError, match=r"Column names must differ.* 'x' 2 times"):
        as_source(pd.DataFrame([[1, 2]], columns=["x", "x"]))


def test_fingerprint_of_a_table():
    frame = pd.DataFrame({"x": np.arange(5.0), "name": list("abcde")})
    changed = frame.assign(x=[0, 1, 2, 3, 5.0])
    assert as_source(frame).fingerprint == as_source(frame.copy()).fingerprint
    assert as_source(frame).fingerprint != as_source(changed).fingerprint
    for text in (list("abced"), [*"abcd", None], [*"abcd", "None"], pd.Categorical(list("abced"))):
        assert as_source(frame).fingerprint != as_source(frame.assign(name=text)).fingerprint
    categories = frame.assign(name=pd.Categorical(list("abcde")))
    permuted = frame.assign(name=pd.Categorical(list("abced")))
    assert as_source(categories).fingerprint != as_source(permuted).fingerprint
    unusable = frame.assign(name=[1, "b", [2], None, 3.0])
    assert as_source(unusable).fingerprint == as_source(unusable.copy()).fingerprint


def test_series_and_frames_inside_a_pytree():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3, 4]})
    rows = rows_of((frame[["a", "b"]], pd.Series([0, 1], dtype="Int64")))
    assert rows[0].tolist() == [[1, 3], [2, 4]]
    assert rows[1].tolist() == [0, 1]


def test_columns_named_by_numbers():
    source = as_source(pd.DataFrame(np.arange(6.0).reshape(3, 2)))
    assert source.column_names == ("0", "1")
    assert source.split(Partition(1, shuffle=False, weights="1"), 0).rows["0"].tolist() == [0, 2, 4]


def test_what_is_computed_must_have_one_shape_type_and_length():
    source = as_source({"x": np.arange(100.0)})

    def computed(function):
        return source.transform(lambda table: function(table.column("x").to_numpy()), ["x"], "")

    with pytest.raises(
        DataError, match=r"'data \(computed\)' has shape \(2,\) in some rows and \(3,\) in others"
    ):
        computed(lambda x: np.zeros((len(x), 2 if len(x) < 50 else 3))).split(Partition(2), 0)
    with pytest.raises(
        DataError, match=r"'data \(computed\)' holds integers in its first rows and fractions"
    ):
        computed(lambda x: np.arange(len(x)) if len(x) < 50 else x / 2).split(Partition(2), 0)
    with pytest.raises(DataError, match=r"Column 'b \(computed\)' has 1 entries for 100 rows"):
        computed(lambda x: {"a": x, "b": x[:1]}).split(Partition(2), 0)
