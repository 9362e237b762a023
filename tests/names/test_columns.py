"""A column of any name is the column that the user gave: the same rows as under an innocent name, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.errors import DataError

ROWS = 60
INNOCENT = "innocent"


def columns(name, swapped=False):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=ROWS).astype(np.float32), rng.normal(size=ROWS).astype(np.float32)
    x, y = (y, x) if swapped else (x, y)
    return {name: x, "other": y, "w": np.linspace(0.5, 2, ROWS), "g": np.arange(ROWS) % 3}


def parquet(table, folder):
    path = folder / "rows.parquet"
    pq.write_table(pa.table(table), path)
    return path


def parquet_folder(table, folder):
    whole = pa.table(table)
    (folder / "parts").mkdir()
    for part, start in enumerate((0, 40)):
        pq.write_table(whole.slice(start, 40 if part == 0 else 20), folder / "parts" / f"{part}.parquet")
    return folder / "parts"


def csv(table, folder):
    pacsv.write_csv(pa.table(table), folder / "rows.csv")
    return folder / "rows.csv"


SOURCES = {
    "numpy": lambda table, _: table,
    "jax": lambda table, _: {name: jnp.asarray(v) for name, v in table.items()},
    "numpy and jax": lambda table, _: {n: v if n == "w" else jnp.asarray(v) for n, v in table.items()},
    "pandas": lambda table, _: pd.DataFrame(table),
    "polars": lambda table, _: pl.DataFrame(table),
    "arrow": lambda table, _: pa.table(table),
    "parquet": parquet,
    "parquet folder": parquet_folder,
    "csv": csv,
    "streamed": lambda table, folder: as_source(parquet(table, folder), memory=0, scratch=folder / "scratch"),
}


def split_by(source, name, options):
    """The rows of both shards, and their weights, by what the column is for."""
    blocks = source.select([name, "other"]).split(Partition(2, **options), seed=3)
    ((_, batch),) = blocks.batches([0, 1], 2)
    taken = [batch.own(i) for i in range(2)]
    rows = [np.asarray(rows[key]) for rows, _ in taken for key in (name, "other")]
    return [*rows, *(np.asarray(weights) for _, weights in taken)]


OPTIONS = {
    "neither": {},
    "arrays": {"weights": np.linspace(0.1, 1, ROWS), "stratify": np.arange(ROWS) % 4},
    "columns": {"weights": "w", "stratify": "g"},
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("given", OPTIONS)
def test_rows_of_a_hostile_column_are_its_own(kind, given, hostile_columns, tmp_path):
    def of(name, folder, swapped=False):
        (tmp_path / folder).mkdir()
        source = as_source(SOURCES[kind](columns(name, swapped), tmp_path / folder))
        return split_by(source, name, OPTIONS[given])

    expected, control = of(INNOCENT, "innocent"), of(INNOCENT, "control", swapped=True)
    assert not np.array_equal(expected[0], control[0])  # the comparison below would see another column
    for number, name in enumerate(hostile_columns):
        for here, there in zip(of(name, str(number)), expected, strict=True):
            np.testing.assert_array_equal(here, there, err_msg=repr(name))


@pytest.mark.parametrize("kind", SOURCES)
def test_weights_and_strata_in_hostile_columns(kind, tmp_path):
    def of(names, folder):
        (tmp_path / folder).mkdir()
        renamed = dict(zip(columns("x"), ("x", "other", *names), strict=True))
        table = {renamed[name]: values for name, values in columns("x").items()}
        source = as_source(SOURCES[kind](table, tmp_path / folder))
        return split_by(source, "x", {"weights": names[0], "stratify": names[1]})

    expected = of(("w", "g"), "innocent")
    for here, there in zip(of(("row weights", "strata of rows"), "own"), expected, strict=True):
        np.testing.assert_array_equal(here, there)
    for here, there in zip(of(("strata of rows", "row weights"), "crossed"), expected, strict=True):
        np.testing.assert_array_equal(here, there)


def test_arrays_inside_others_whose_names_are_alike():
    first, second, third = np.arange(8.0), 10 + np.arange(8.0), 20 + np.arange(8.0)
    source = as_source({"a": (first, second), "a[0]": third, "a['b']": first})
    rows = source.split(Partition(1, shuffle=False), 0).rows  # pyright: ignore
    np.testing.assert_array_equal(rows["a"][0], first)
    np.testing.assert_array_equal(rows["a"][1], second)
    np.testing.assert_array_equal(rows["a[0]"], third)
    weighted = source.split(Partition(1, shuffle=False, weights="a[0]"), 0)
    np.testing.assert_array_equal(weighted.row_weights, third)  # pyright: ignore
    with pytest.raises(DataError, match="2 columns are called 'a\\[0\\]'"):
        next(source.tables(["a[0]"]))


def test_numbers_and_texts_that_name_columns_alike_are_refused():
    with pytest.raises(DataError, match="2 columns are called '1'"):
        as_source(pd.DataFrame({1: [1.0, 2.0], "1": [3.0, 4.0]}))


@pytest.mark.slow
def test_draws_of_a_model_do_not_depend_on_its_columns_names():
    def fitted(name, swapped=False):
        model = shardmc.Model(
            lambda p, rows: -0.5 * (rows["other"] - p["b"] * rows[name]) ** 2,
            lambda p: -0.5 * p["b"] ** 2,
            {"b": ()},
        )
        table = columns(name, swapped)
        table["other"] = jnp.asarray(table["other"])  # rows on a device are put in order by their numbers
        options = OPTIONS["arrays"] | {"shards": 2, "draws": 40, "check": False, "precision": "single"}
        return shardmc.fit(model, table, **options).draws["b"]

    expected = fitted(INNOCENT)
    assert not np.array_equal(fitted(INNOCENT, swapped=True), expected)
    for name in ("row number", "row weights", "strata of rows", "", "\x00"):
        np.testing.assert_array_equal(fitted(name), expected, err_msg=repr(name))


def test_rows_keep_their_structure():
    leaves = jax.tree.leaves(as_source((np.arange(4.0), np.ones(4))).sample(4, 0))
    assert [leaf.tolist() for leaf in leaves] == [[0.0, 1.0, 2.0, 3.0], [1.0] * 4]
