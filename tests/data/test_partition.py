"""Every row counts as often as the user says, whatever the source and the partition."""

import numpy as np
import pytest
from scipy import stats

from shardmc.data import Partition

from .conftest import NUM_ROWS, columns, make_source, shards_of, total_weights

PARTITIONS = {
    "equal": Partition(7),
    "one shard": Partition(1),
    "one row each": Partition(NUM_ROWS),
    "unequal": Partition(4, sizes=[3, 600, 100, 300]),
    "stratified": Partition(7, stratify="label"),
    "stratified by quantiles": Partition(7, stratify="x"),
    "stratified, unequal": Partition(3, stratify="label", sizes=[800, 3, 200]),
    "weighted": Partition(7, weights="weight"),
    "weighted by an array": Partition(7, weights=columns()["weight"]),
    "all at once": Partition(4, stratify=columns()["label"], weights="weight", sizes=[3, 600, 100, 300]),
    "in order": Partition(5, shuffle=False, weights="weight"),
}


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("kept", [False, True])
def test_share_weighted_weights_are_the_users(name, kept, tmp_path):
    partition = PARTITIONS[name]
    for kind in ("dict", "streamed") if name != "one row each" else ("dict",):
        check_weights(make_source(kind, tmp_path).split(partition, seed=0), partition, kept)


def test_weights_hold_for_every_kind_of_source(kind, tmp_path):
    partition = PARTITIONS["all at once"]
    check_weights(make_source(kind, tmp_path).split(partition, seed=0), partition, kept=True)


def check_weights(blocks, partition, kept):
    if kept:
        rng = np.random.default_rng(3)
        blocks = blocks.keep(
            [rng.choice(n, rng.integers(0, min(n, 5) + 1), replace=False) for n in blocks.sizes]
        )
        assert 0 < blocks.num_kept < blocks.num_rows
    expected = np.ones(NUM_ROWS) if partition.weights is None else columns()["weight"]
    # A weight is a product of two float32 numbers: relative error below 2e-7, over at most 1003 shards' sum.
    np.testing.assert_allclose(total_weights(blocks, size=4), expected, rtol=5e-7, atol=1e-12)
    assert blocks.num_rows == NUM_ROWS
    assert blocks.shares.sum() == pytest.approx(1)
    assert blocks.capacity == blocks.sizes.max()


def test_a_wrong_share_is_noticed(tmp_path):
    blocks = make_source("dict", tmp_path).split(PARTITIONS["unequal"], seed=0)
    equal = np.full(4, 1 / 4)
    total = np.zeros(NUM_ROWS)
    for shard, (rows, weights) in shards_of(blocks).items():
        np.add.at(total, rows["row"], equal[shard] * weights)
    assert np.abs(total - 1).max() > 0.1


def test_all_kinds_of_sources_are_split_alike(kind, tmp_path):
    partition = PARTITIONS["all at once"]
    reference = shards_of(make_source("dict", tmp_path).split(partition, seed=4))
    shards = shards_of(make_source(kind, tmp_path).split(partition, seed=4), size=2)
    for shard, (rows, weights) in reference.items():
        own = weights > 0
        assert np.array_equal(shards[shard][1], weights)
        for name, column in rows.items():
            assert np.array_equal(shards[shard][0][name][own], column[own])


@pytest.mark.parametrize("size", [1, 3, 7, 9])
@pytest.mark.parametrize("kind", ["dict", "streamed"])
def test_batch_size_does_not_change_a_shard(kind, size, tmp_path):
    blocks = make_source(kind, tmp_path).split(Partition(7), seed=0)
    reference, shards = shards_of(blocks, 7), shards_of(blocks, size)
    assert shards.keys() == reference.keys()
    for shard, (rows, weights) in reference.items():
        own = weights > 0
        assert np.array_equal(shards[shard][0]["row"][own], rows["row"][own])


@pytest.mark.parametrize("kind", ["dict", "streamed"])
def test_some_shards_in_any_order(kind, tmp_path):
    blocks = make_source(kind, tmp_path).split(Partition(7), seed=0)
    groups = [list(group) for group, _ in blocks.batches([5, 0, 3], 2)]
    assert groups == [[5, 0], [3]]
    everything = shards_of(blocks)
    (_, batch), *_ = blocks.batches([5, 0, 3], 2)
    rows, weights = batch.take(1)
    own = np.asarray(weights) > 0
    assert np.array_equal(np.asarray(rows["row"])[own], everything[0][0]["row"][everything[0][1] > 0])
    assert list(blocks.batches([], 2)) == []


def test_seed_decides(tmp_path):
    source = make_source("dict", tmp_path)
    first, again, other = (shards_of(source.split(Partition(7), seed)) for seed in (0, 0, 1))
    assert np.array_equal(first[3][0]["row"], again[3][0]["row"])
    assert not np.array_equal(first[3][0]["row"], other[3][0]["row"])


def class_balance(blocks) -> float:
    """The chi-square statistic of the number of ones per shard."""
    num_rows, ones = 0, []
    for rows, weights in shards_of(blocks).values():
        ones.append(rows["y"][weights > 0].sum())
        num_rows += (weights > 0).sum()
    p = sum(ones) / num_rows
    expected = blocks.sizes * p
    # The numbers are hypergeometric: this is the exact scale for which the mean is K - 1.
    return float(((np.array(ones) - expected) ** 2 / (expected * (1 - p))).sum() * (num_rows - 1) / num_rows)


@pytest.mark.parametrize("kind", ["dict", "streamed"])
def test_a_table_sorted_by_the_response_gives_balanced_shards(kind, tmp_path):
    count, shards = 20_000, 50
    table = {"y": np.sort(np.random.default_rng(0).random(count) < 0.2).astype(np.int32)}
    source = make_source(kind, tmp_path, table)
    bounds = stats.chi2(shards - 1).ppf([5e-9, 1 - 5e-9])  # a false alarm in 1e8 runs
    assert bounds[0] < class_balance(source.split(Partition(shards), seed=0)) < bounds[1]
    in_order = class_balance(source.split(Partition(shards, shuffle=False), seed=0))
    assert in_order > bounds[1]
    stratified = class_balance(source.split(Partition(shards, stratify="y"), seed=0))
    assert stratified < bounds[0]


def test_quantile_strata_spread_a_continuous_column(tmp_path):
    blocks = make_source("dict", tmp_path).split(Partition(10, stratify="x"), seed=0)
    shards = shards_of(blocks)
    edges = np.quantile(columns()["x"], np.arange(1, 20) / 20)
    for rows, weights in shards.values():
        counts = np.bincount(np.searchsorted(edges, rows["x"][weights > 0], side="right"), minlength=20)
        assert np.abs(counts - 5).max() <= 2


def test_text_can_stratify(tmp_path):
    table = {**columns(), "region": np.array(["north", "south", "south"])[columns()["label"]]}
    for kind in ("dict", "pandas", "polars", "streamed"):
        source = make_source(kind, tmp_path, table).select(["row"])
        shards = shards_of(source.split(Partition(5, stratify="region"), seed=0))
        norths = [
            (table["region"][rows["row"][weights > 0]] == "north").sum() for rows, weights in shards.values()
        ]
        assert np.ptp(norths) <= 1
