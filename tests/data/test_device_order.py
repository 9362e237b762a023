"""Rows that stay on an accelerator: shards that gather them have the rows that a copy in shard order would have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.data import Partition, as_source, device_order
from shardmc.data import arrays as arrays_module
from shardmc.data.device_order import random_order
from shardmc.errors import DataError

ROWS = 5_000
own = jax.jit(lambda batch, i: batch.own(i))


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return {
        "row": np.arange(ROWS, dtype=np.float32),
        "x": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "kind": rng.choice(4, ROWS, p=[0.6, 0.3, 0.09, 0.01]).astype(np.int32),
        "real": rng.gamma(2.0, size=ROWS).astype(np.float32),
        "weight": rng.uniform(0.5, 2, ROWS).astype(np.float32),
    }


@pytest.fixture
def on_accelerator(monkeypatch):
    """Take the way of an accelerator, on the device that there is."""
    monkeypatch.setattr(arrays_module, "_on_accelerator", lambda arrays: True)


def shards_of(source, partition, seed=3):
    """For every shard: its rows by number, and their weights times the shard's share."""
    blocks = source.split(partition, seed)
    found = []
    for names, batch in blocks.batches(range(blocks.num_shards), 3):
        for i, shard in enumerate(names):
            taken, weights = jax.device_get(own(batch, i))
            size = int(blocks.sizes[shard])
            assert not weights[size:].any()
            order = np.argsort(taken["row"][:size])
            entries = {name: np.asarray(value)[:size][order] for name, value in taken.items()}
            found.append((entries, weights[:size][order] * blocks.shares[shard]))
    return found


PARTITIONS = {
    "shuffled": Partition(7),
    "weighted": Partition(7, weights="weight"),
    "weights of an array": Partition(7, weights=np.linspace(1, 2, ROWS)),
    "stratified": Partition(7, stratify="kind"),
    "stratified by a real number": Partition(7, stratify="real", weights="weight"),
    "stratified in order": Partition(7, stratify="kind", shuffle=False),
    "unequal": Partition(3, sizes=[1_000, 3_500, 500]),
    "unequal strata": Partition(3, sizes=[1_000, 3_500, 500], stratify="kind"),
    "in order, weighted": Partition(7, weights="weight", shuffle=False),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_shards_have_the_rows_that_a_copy_would_have(name, rows, on_accelerator):
    expected = shards_of(as_source(rows), PARTITIONS[name])
    found = shards_of(as_source(jax.tree.map(jnp.asarray, rows)), PARTITIONS[name])
    if (
        name == "in order, weighted"
    ):  # where slices stay inside the arrays, the larger shards are the last ones
        expected.sort(key=lambda shard: len(shard[1]))
    for (theirs, weights), (ours, own_weights) in zip(expected, found, strict=True):
        jax.tree.map(np.testing.assert_array_equal, theirs, ours)
        np.testing.assert_allclose(own_weights, weights, rtol=1e-6)
    numbers = np.concatenate([shard[0]["row"] for shard in found])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(ROWS))


@pytest.mark.parametrize("free", [36 * ROWS, 1 << 40])
@pytest.mark.parametrize("name", PARTITIONS)
def test_copies_in_order_have_the_same_rows(name, free, rows, on_accelerator, monkeypatch):
    """Of some arrays, or of all of them: as much as fits into half of the free memory."""
    arrays = jax.tree.map(jnp.asarray, rows)
    without = shards_of(as_source(arrays), PARTITIONS[name])
    monkeypatch.setattr(device_order, "_free_bytes", lambda: free)
    blocks = as_source(arrays).split(PARTITIONS[name], 3)
    if PARTITIONS[name].shuffle or PARTITIONS[name].stratify:
        copied = [copy is not None for copy in blocks.order.copies]
        assert all(copied) if free > 1 << 30 else 0 < sum(copied) < len(copied)
    found = shards_of(as_source(arrays), PARTITIONS[name])
    jax.tree.map(np.testing.assert_array_equal, found, without)


def test_another_seed_gives_other_shards(rows, on_accelerator):
    source = as_source(jax.tree.map(jnp.asarray, rows))
    first, second = (shards_of(source, Partition(7), seed)[0][0]["row"] for seed in (3, 4))
    assert not np.array_equal(first, second)


def test_no_array_is_copied(rows, on_accelerator):
    arrays = jax.tree.map(jnp.asarray, rows)
    blocks = as_source(arrays).split(Partition(7), 3)
    assert blocks.rows["x"] is arrays["x"]


@pytest.mark.parametrize("free", [0, 36 * ROWS, 1 << 40])
def test_kept_rows_are_the_shards_own(rows, free, on_accelerator, monkeypatch):
    monkeypatch.setattr(device_order, "_free_bytes", lambda: free)
    blocks = as_source(jax.tree.map(jnp.asarray, rows)).split(Partition(7), 3)
    kept = blocks.keep([np.array([0, 5])] + [np.array([2])] * 6)
    ((_, batch),) = kept.batches([0], 1)
    taken, weights = jax.device_get(batch.take(0))
    of_shard = taken["row"][: blocks.slots]
    np.testing.assert_array_equal(taken["row"][blocks.slots :][:2], of_shard[[0, 5]])
    assert not weights[[0, 5]].any()
    assert weights[1] > 1


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 36 * ROWS, 1 << 40])
def test_packed_rows_are_the_gathered_ones(rows, free, on_accelerator, monkeypatch):
    monkeypatch.setattr(device_order, "_free_bytes", lambda: free)
    blocks = as_source(jax.tree.map(jnp.asarray, rows)).split(Partition(7), 3)
    for _, batch in blocks.batches(range(7), 4):
        packed = batch.packed()
        assert packed.order is None
        for i in range(4):
            jax.tree.map(np.testing.assert_array_equal, own(batch, i), own(packed, i))


@pytest.mark.parametrize("free", [0, 1 << 40])
@pytest.mark.parametrize("num_rows", [5, 1_024, 1_025, 65_537])
def test_an_order_is_a_permutation(num_rows, free, monkeypatch):
    monkeypatch.setattr(device_order, "_free_bytes", lambda: free)
    order = random_order(num_rows, 1)
    found = np.asarray(order.rows_at(jnp.arange(num_rows + 3)))
    np.testing.assert_array_equal(np.sort(found[:num_rows]), np.arange(num_rows))
    assert (found[num_rows:] == found[num_rows - 1]).all()


def test_a_listed_order_is_the_computed_one(monkeypatch):
    computed = random_order(65_537, 1)
    monkeypatch.setattr(device_order, "_free_bytes", lambda: 1 << 40)
    listed = random_order(65_537, 1)
    assert isinstance(computed, device_order.KeyedOrder)
    assert isinstance(listed, device_order.ListedOrder)
    np.testing.assert_array_equal(computed.rows_at(jnp.arange(65_540)), listed.rows_at(jnp.arange(65_540)))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition(2, weights=-np.ones(ROWS)), "must not be negative"),
        (Partition(2, weights=np.zeros(ROWS)), "All row weights are zero"),
        (Partition(2, weights=np.full(ROWS, np.nan)), "NaN"),
        (Partition(2, stratify=np.full(ROWS, np.nan)), "missing values"),
    ],
)
def test_what_cannot_be_split_is_refused(partition, message, rows, on_accelerator):
    with pytest.raises(DataError, match=message):
        as_source(jax.tree.map(jnp.asarray, rows)).split(partition, 0)
