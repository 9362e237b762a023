"""Input, files and folders that once gave a wrong result without a word: now the right result, or a refusal."""

from __future__ import annotations

import gzip

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.errors import DataError

ROWS = 4_000


def csv_lines(last: str = "text") -> list[str]:
    return ["y,x,note", *(f'"{i}",{i / 7:.3f},{last}' for i in range(ROWS))]


MODEL = shardmc.Model(
    lambda params, rows: -0.5 * (rows["y"] - params["b"] * rows["x"]) ** 2,
    lambda params: -0.5 * jnp.square(params["b"]),
    {"b": ()},
)
FEW = {"shards": 2, "draws": 40, "check": False, "sampler": "independence"}


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=600)
    return {"x": x, "y": 2.0 * x + rng.normal(size=600), "w": np.full(600, 3.0)}


@pytest.fixture(scope="module")
def fitted(table) -> shardmc.Posterior:
    return shardmc.fit(MODEL, table, **FEW)


# Quotes in CSV files.


@pytest.mark.parametrize("block", [1 << 12, 1 << 22])
@pytest.mark.parametrize("others", ["text", '"text"', '"a ""b"" c"', 'a "b" c'])
def test_a_csv_file_with_an_unclosed_quote_is_refused(tmp_path, monkeypatch, others, block):
    monkeypatch.setattr("shardmc.data.files._BLOCK", block)
    lines = csv_lines(others)
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    assert as_source(path).num_rows == ROWS
    lines[101] = '100,1.0,"open'
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="line 102"):
        as_source(path, columns=["y", "x"])


@pytest.mark.parametrize("entry", ['"open', '"open"ed', '"open" ed', '"'])
def test_a_quote_that_is_not_closed_in_the_last_line_is_refused(tmp_path, entry):
    path = tmp_path / "rows.csv.gz"
    lines = [*csv_lines()[:50], f"50,1.0,{entry}"]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(DataError, match="line 51"):
        as_source(path)


@pytest.mark.parametrize("block", [1 << 10, 1 << 22])
def test_quoted_line_breaks_and_quotes_inside_of_text_are_read(tmp_path, monkeypatch, block):
    monkeypatch.setattr("shardmc.data.files._BLOCK", block)
    lines = csv_lines('"two\nlines, with a ""quote""" ')
    lines[2::5] = [f'{i},0.5,5" pipe' for i in range(1, ROWS, 5)]
    path = tmp_path / "rows.csv"
    path.write_text("﻿" + "\n".join(lines), encoding="utf-8")
    source = as_source(path)
    assert source.num_rows == ROWS
    blocks = source.split(Partition(1, shuffle=False), 0)
    np.testing.assert_array_equal(blocks.rows["y"], np.arange(ROWS))
    (table,) = source.tables(["note"], ROWS) if block == 1 << 22 else [None]
    if table is not None:
        assert table["note"].slice(0, 2).to_pylist() == ['two\nlines, with a "quote" ', '5" pipe']


def test_every_fit_says_how_many_rows_it_read(fitted, capsys):
    from rich.console import Console

    from shardmc.cli.console import show_posterior

    show_posterior(Console(), fitted)
    assert "600 rows" in capsys.readouterr().out
    assert "600 rows" in repr(fitted)
    assert "600 rows" in fitted._repr_html_()
