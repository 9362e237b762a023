"""Groups in shards: every row of a group stays with it, whatever the sizes and wherever the rows lie."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmc.data import Partition, as_source
from shardmc.data.arrow import find_levels
from shardmc.data.grouped import GroupedBatch, GroupedBlocks, GroupedSource
from shardmc.data.stretches import stable_order, stretch_length

SIZES = {
    "equal": np.full(60, 7),
    "ragged": np.random.default_rng(0).geometric(0.1, 60),
    "one large": np.append(np.ones(40, int), 500),
}


def table_of(sizes: np.ndarray) -> pa.Table:
    rng = np.random.default_rng(1)
    codes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return pa.table({"unit": codes.astype(np.int32), "x": rng.normal(size=len(codes)).astype(np.float32)})


def split(data: object, sizes: np.ndarray, shards: int = 5, memory: int | None = None) -> GroupedBlocks:
    source = as_source(data, memory=memory)
    rows = source.transform(
        lambda t: {n: t.column(n).to_numpy() for n in t.column_names}, ["unit", "x"], "as it is"
    )
    return GroupedSource(rows, "unit", sizes).split(Partition(shards), seed=3)


@jax.jit
def sums_in(batch: GroupedBatch, i: int) -> jax.Array:
    rows, weights = batch.take(i)
    per_stretch = jnp.stack([(rows.weights * rows.rows["x"]).sum(axis=1), rows.weights.sum(axis=1)], axis=1)
    return jnp.column_stack([rows.per_group(per_stretch), weights])


def sums_of(blocks: GroupedBlocks, size: int = 2) -> dict[int, np.ndarray]:
    """The weighted sum of x, and the number of rows, of every group of every shard: own groups, then kept ones."""
    found = {}
    for names, batch in blocks.batches(range(blocks.num_shards), size):
        for i, shard in enumerate(names):
            found[shard] = np.asarray(sums_in(batch, i))
    return found


def expected(blocks: GroupedBlocks, table: pa.Table) -> dict[int, np.ndarray]:
    codes, x = table.column("unit").to_numpy(), table.column("x").to_numpy()
    totals, counts = np.bincount(codes, x), np.bincount(codes)
    layout = blocks.layout
    found = {}
    for shard in range(blocks.num_shards):
        here = layout.order[layout.starts[shard] : layout.starts[shard] + layout.sizes[shard]]
        found[shard] = np.column_stack([totals[here], counts[here]])
    return found


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_every_group_is_whole_and_in_one_shard(sizes: np.ndarray) -> None:
    table = table_of(sizes)
    blocks = split(table, sizes)
    assert sorted(blocks.layout.order) == list(range(len(sizes)))
    found, wanted = sums_of(blocks), expected(blocks, table)
    for shard, sums in found.items():
        own = len(wanted[shard])
        np.testing.assert_allclose(sums[:own, :2], wanted[shard], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sums[:own, 2], 1 / blocks.shares[shard], rtol=1e-6)
        assert (sums[own:, 2] == 0).all(), "groups of other shards weigh nothing"


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("streamed", [False, True])
def test_kept_groups_are_in_every_shard_and_count_once(
    sizes: np.ndarray, streamed: bool, tmp_path: Path
) -> None:
    table = table_of(sizes)
    pq.write_table(table, tmp_path / "rows.parquet")
    blocks = split(str(tmp_path / "rows.parquet"), sizes, memory=0 if streamed else None)
    kept = blocks.keep([np.array([0, 2]), np.array([1]), *[np.empty(0, int)] * 3])
    wanted = expected(blocks, table)
    chosen = np.concatenate([wanted[0][[0, 2]], wanted[1][[1]]])
    for shard, sums in sums_of(kept).items():
        after = kept.capacity
        np.testing.assert_allclose(sums[after : after + 3, :2], chosen, rtol=1e-5, atol=1e-5)
        assert sums[after : after + 3, 2].tolist() == [1, 1, 1]
        assert (sums[after + 3 :, 2] == 0).all()
        weightless = {0: [0, 2], 1: [1]}.get(shard, [])
        assert np.flatnonzero(sums[: len(wanted[shard]), 2] == 0).tolist() == weightless


def test_rows_on_disk_make_the_same_shards(tmp_path: Path) -> None:
    sizes = SIZES["ragged"]
    table = table_of(sizes)
    (tmp_path / "parts").mkdir()
    for number in range(3):  # the rows of a group lie in several files
        pq.write_table(
            table.slice(number * len(table) // 3, -(-len(table) // 3)),
            tmp_path / "parts" / f"{number}.parquet",
        )
    streamed = split(str(tmp_path / "parts"), sizes, memory=0)
    rows = pq.read_table(tmp_path / "parts")
    in_memory = split(rows, sizes)
    for shard, sums in sums_of(streamed).items():
        np.testing.assert_array_equal(sums, sums_of(in_memory)[shard])


def test_user_weights_are_weights_of_rows() -> None:
    sizes = SIZES["ragged"]
    table = table_of(sizes)
    weights = np.random.default_rng(2).integers(0, 3, len(table)).astype(float)
    source = as_source(table).transform(
        lambda t: {n: t.column(n).to_numpy() for n in t.column_names}, ["unit", "x"], "as it is"
    )
    blocks = GroupedSource(source, "unit", sizes).split(Partition(4, weights=weights), seed=3)
    assert not blocks.counted
    codes, x = table.column("unit").to_numpy(), table.column("x").to_numpy()
    totals = np.bincount(codes, weights * x)
    for shard, sums in sums_of(blocks).items():
        here = blocks.layout.order[blocks.layout.starts[shard] :][: blocks.layout.sizes[shard]]
        np.testing.assert_allclose(sums[: len(here), 0], totals[here], rtol=1e-4, atol=1e-5)


def test_stretches_of_equal_groups_need_no_padding() -> None:
    assert stretch_length(np.full(100, 10)) == 10
    assert replace(split(table_of(SIZES["equal"]), SIZES["equal"])).layout.joined


def test_small_and_large_groups_are_spread_over_the_shards() -> None:
    sizes = np.append(np.ones(50, int), np.full(50, 100))
    layout = split(table_of(sizes), sizes).layout
    large = np.bincount(layout.shard[50:], minlength=5)
    assert large.tolist() == [10] * 5


@pytest.mark.parametrize("keys", [[], [3], [0, 0, 1, 4], [4, 1, 4, 0, 1, 4]])
def test_an_order_by_counting_is_that_of_a_stable_sort(keys):
    given = np.array(keys, np.int64)
    np.testing.assert_array_equal(stable_order(given), np.argsort(given, kind="stable"))


@pytest.mark.parametrize("columns", [["g"], ["g", "h"]])
def test_levels_of_many_tables_are_counted_together(columns):
    """Levels come again in later tables, new ones come in each, and their counts are added a few tables at a time."""
    rng = np.random.default_rng(0)
    g = np.sort(rng.integers(0, 300, 2_000)) + rng.integers(0, 20, 2_000)
    rows = pa.table({"g": g, "h": rng.integers(0, 2, 2_000).astype(str)})

    class Pieces:
        def tables(self, names):
            return (rows.select(names).slice(start, 37) for start in range(0, len(rows), 37))

    levels, counts = find_levels(Pieces(), columns, "")
    expected = rows.to_pandas().groupby(columns).size()
    assert list(levels) == list(expected.index)
    np.testing.assert_array_equal(counts, expected)
