"""Rows that carry their own number, in every kind of source."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from shardmc.data import Blocks, as_source

NUM_ROWS = 1003

KINDS = ("dict", "jax", "pandas", "polars", "arrow", "parquet", "folder", "streamed", "csv")


def columns() -> dict[str, np.ndarray]:
    """Numbered rows with a weight, a rare class and a continuous column."""
    rng = np.random.default_rng(11)
    return {
        "row": np.arange(NUM_ROWS),
        "weight": rng.integers(0, 4, NUM_ROWS).astype(np.float64),
        "label": rng.choice(3, NUM_ROWS, p=[0.8, 0.18, 0.02]),
        "x": rng.normal(size=NUM_ROWS),
    }


def make_source(kind: str, folder: Path, table: dict[str, np.ndarray] | None = None):
    """The same rows as a source of this kind."""
    data = columns() if table is None else table
    if kind == "dict":
        return as_source(data)
    if kind == "jax":
        return as_source({name: jnp.asarray(column) for name, column in data.items()})
    if kind == "pandas":
        return as_source(pd.DataFrame(data))
    if kind == "polars":
        return as_source(pl.DataFrame(data))
    arrow = pa.table(data)
    if kind == "arrow":
        return as_source(pa.concat_tables([arrow.slice(0, 100), arrow.slice(100)]))
    if kind == "csv":
        pacsv.write_csv(arrow, folder / "rows.csv")
        return as_source(folder / "rows.csv")
    if kind == "folder":
        for part in range(3):
            (folder / "parts").mkdir(exist_ok=True)
            pq.write_table(arrow.slice(400 * part, 400), folder / "parts" / f"part-{part}.parquet")
        return as_source(str(folder / "parts"))
    pq.write_table(arrow, folder / "rows.parquet", row_group_size=300)
    return as_source(folder / "rows.parquet", memory=0 if kind == "streamed" else None)


_take = jax.jit(lambda batch, i: batch.take(i))


def shards_of(blocks: Blocks, size: int = 4) -> dict[int, tuple[dict[str, np.ndarray], np.ndarray]]:
    """Rows and weights of every shard, as the compiled programs see them."""
    found = {}
    for group, batch in blocks.batches(range(blocks.num_shards), size):
        assert batch.num_shards == size
        for place, shard in enumerate(group):
            found[shard] = jax.tree.map(np.asarray, _take(batch, place))
    return found


def total_weights(blocks: Blocks, num_rows: int = NUM_ROWS, size: int = 4) -> np.ndarray:
    """sum_i a_i w_ij for every row j."""
    total = np.zeros(num_rows)
    for shard, (rows, weights) in shards_of(blocks, size).items():
        np.add.at(total, rows["row"], blocks.shares[shard] * weights.astype(np.float64))
    return total


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param
