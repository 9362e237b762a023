"""Arrays that stay where they are: batches that gather their rows have the rows that a copy in shard order has."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.data import Partition, as_source
from shardmc.data import arrays as arrays_module
from shardmc.data.blocks import ArrayBlocks
from shardmc.data.gathered import GatheredBlocks
from shardmc.errors import DataError
from shardmc.model.precision import double_precision

ROWS, SHARDS = 4_003, 13
own = jax.jit(lambda batch, i: batch.own(i))


@pytest.fixture(autouse=True)
def many_shards(monkeypatch):
    """As if there were so many shards that those in memory at a time do not count."""
    monkeypatch.setattr("shardmc.data.gathered.shards_at_a_time", lambda: 0)


def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "row": np.arange(ROWS),
        "x": rng.normal(size=(ROWS, 3)),
        "half": rng.normal(size=ROWS).astype(np.float16),
        "kind": rng.choice(4, ROWS, p=[0.6, 0.3, 0.09, 0.01]).astype(np.int8),
        "large": rng.integers(0, 2**31 - 1, ROWS).astype(np.uint64),
        "yes": rng.random(ROWS) < 0.3,
        "real": rng.gamma(2.0, size=ROWS),
        "weight": rng.uniform(0.5, 2, ROWS),
    }


def strided() -> dict[str, np.ndarray]:
    """Arrays that are not contiguous, not aligned, or of the other byte order."""
    data = table()
    record = np.zeros(ROWS, [("byte", "i1"), ("real", "f8"), ("kind", "i4")])
    record["real"], record["kind"] = data["real"], data["kind"]
    data["x"] = np.repeat(data["x"], 2, axis=1)[:, ::2]
    data |= {"real": record["real"], "kind": record["kind"], "weight": data["weight"].astype(">f8")}
    return data


def mixed() -> dict[str, np.ndarray | jax.Array]:
    data = table()
    on_device = {name: jnp.asarray(data[name], jnp.float32) for name in ("x", "real")}
    return {**data, **on_device, "half": jnp.asarray(data["half"], jnp.bfloat16)}


LAYOUTS = {
    "rows": table,
    "columns": lambda: {**table(), "x": np.asfortranarray(table()["x"])},
    "strided": strided,
    "read only": lambda: {name: np.broadcast_to(a, a.shape) for name, a in table().items()},
    "some in JAX": mixed,
    "all in JAX": lambda: {name: jnp.asarray(array) for name, array in table().items() if name != "large"},
}

PARTITIONS = {
    "shuffled": Partition(SHARDS),
    "in order": Partition(SHARDS, shuffle=False, sizes=[31] * 11 + [3_000, 662]),
    "in order, weighted": Partition(SHARDS, shuffle=False, weights="weight"),
    "weighted": Partition(SHARDS, weights="weight"),
    "weights of an array": Partition(SHARDS, weights=np.linspace(1, 2, ROWS), weight_factor=0.3),
    "weights that count": Partition(SHARDS, weights=np.arange(ROWS) % 3, weight_factor=0.3),
    "stratified": Partition(SHARDS, stratify="kind"),
    "stratified by a real number": Partition(SHARDS, stratify="real", weights="weight"),
    "stratified in order": Partition(SHARDS, stratify="kind", shuffle=False),
    "unequal": Partition(3, sizes=[1_000, 2_500, 503]),
    "unequal strata": Partition(3, sizes=[1_000, 2_500, 503], stratify=np.arange(ROWS) % 7),
}


def both_ways(data, partition, seed=3) -> tuple[ArrayBlocks, GatheredBlocks]:
    copied = as_source(data, memory=1 << 40).split(partition, seed)
    gathered = as_source(data, memory=0).split(partition, seed)
    assert isinstance(copied, ArrayBlocks)
    assert isinstance(gathered, GatheredBlocks)
    return copied, gathered


def assert_same_shards(theirs, ours, size=4):
    """Equal entries, types and weights of every shard's own rows, in the same order."""
    np.testing.assert_array_equal(theirs.sizes, ours.sizes)
    assert theirs.slots == ours.slots
    shards = range(theirs.num_shards)
    for (names, one), (_, other) in zip(
        theirs.batches(shards, size), ours.batches(shards, size), strict=True
    ):
        for i, shard in enumerate(names):
            count = int(theirs.sizes[shard])
            expected, found = own(one, i), own(other, i)
            assert jax.tree.map(jnp.result_type, expected) == jax.tree.map(jnp.result_type, found)
            assert not np.asarray(found[1])[count:].any()
            for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
                np.testing.assert_array_equal(np.asarray(a)[:count], np.asarray(b)[:count])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_arrays_give_the_shards_of_a_copy(layout):
    assert_same_shards(*both_ways(LAYOUTS[layout](), Partition(SHARDS, weights="weight")))


def test_files_mapped_into_memory_give_the_shards_of_a_copy(tmp_path):
    np.save(tmp_path / "x.npy", table()["x"])
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    copied, gathered = both_ways((x, table()["row"]), Partition(SHARDS))
    assert isinstance(gathered.arrays[0].array.base, np.memmap)
    assert_same_shards(copied, gathered)


@pytest.mark.parametrize("name", PARTITIONS)
def test_any_partition_gives_the_shards_of_a_copy(name):
    assert_same_shards(*both_ways(table(), PARTITIONS[name]))


@pytest.mark.parametrize("name", ["shuffled", "in order", "stratified by a real number"])
def test_any_partition_gives_the_shards_of_a_copy_in_x64(name):
    with double_precision():
        copied, gathered = both_ways(table(), PARTITIONS[name])
        types = {column.name: column.dtype for column in gathered.columns}
        assert (types["x"], types["row"], types["half"]) == (np.float64, np.int64, np.float32)
        assert_same_shards(copied, gathered)


def test_two_rows_in_each_others_place_are_found():
    """The control: the comparison sees a batch that is gathered from wrong rows."""
    copied, gathered = both_ways(table(), PARTITIONS["shuffled"])
    assert gathered.order is not None
    wrong = gathered.order.copy()
    wrong[[70, 71]] = wrong[[71, 70]]
    with pytest.raises(AssertionError, match="not equal"):
        assert_same_shards(copied, replace(gathered, order=wrong))
    other = as_source(table(), memory=0).split(PARTITIONS["shuffled"], 4)
    with pytest.raises(AssertionError, match="not equal"):
        assert_same_shards(copied, other)


@pytest.mark.parametrize(
    "data", [tuple(table().values()), table()["x"], (table()["x"], {"y": table()["row"]})]
)
def test_any_pytree_keeps_its_structure(data):
    copied, gathered = both_ways(data, Partition(SHARDS))
    ((_, batch),) = gathered.batches([2], 1)
    assert jax.tree.structure(batch.rows) == jax.tree.structure(copied.rows)
    assert_same_shards(copied, gathered)


@pytest.mark.parametrize("name", ["weighted", "in order, weighted", "unequal strata"])
def test_kept_rows_are_those_of_a_copy(name):
    copied, gathered = both_ways(table(), PARTITIONS[name])
    positions = [np.arange(shard % 3) * 7 for shard in range(copied.num_shards)]
    theirs, ours = copied.keep(positions).kept, gathered.keep(positions).kept
    assert theirs is not None
    assert ours is not None
    assert theirs.count == ours.count == copied.keep(positions).num_kept > 0
    jax.tree.map(np.testing.assert_array_equal, theirs.rows, ours.rows)
    np.testing.assert_array_equal(theirs.weights, ours.weights)
    np.testing.assert_array_equal(theirs.positions, ours.positions)


@pytest.mark.parametrize("name", PARTITIONS)
def test_all_rows_at_once_are_those_of_a_copy(name):
    copied, gathered = both_ways(table(), PARTITIONS[name])
    at_once = gathered.copied()
    assert isinstance(at_once, ArrayBlocks)
    np.testing.assert_array_equal(at_once.starts, copied.starts)
    for a, b in zip(
        jax.tree.leaves((copied.rows, copied.row_weights)),
        jax.tree.leaves((at_once.rows, at_once.row_weights)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_an_outline_has_all_but_the_rows():
    _, gathered = both_ways(table(), PARTITIONS["weighted"])
    kept = gathered.keep([[1, 2]] + [[]] * (SHARDS - 1))
    ((_, batch),) = kept.batches([5, 0], 3)
    outline = kept.outline([5, 0], 3)
    assert outline.rows is None
    assert outline.row_weights is None
    jax.tree.map(np.testing.assert_array_equal, replace(batch, rows=None, row_weights=None), outline)


def test_no_array_of_the_user_is_copied():
    data = mixed()
    _, gathered = both_ways(data, Partition(SHARDS, weights="weight"))
    by_name = dict(zip([column.name for column in gathered.columns], gathered.arrays, strict=True))
    for name, held in by_name.items():
        array = data[name]
        if isinstance(array, jax.Array):
            assert held.array.ctypes.data == array.unsafe_buffer_pointer()
        else:
            assert held.array is array


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"x": ((5, 1), np.nan)}, {}, "Column 'x[:, 1]' has 1 NaN value"),
        ({"x": ((4_002, 0), np.inf)}, {}, "Column 'x[:, 0]' has 1 infinite value"),
        ({"x": (7, np.nan), "real": (8, np.nan)}, {}, "4 columns have NaN values: 'real' (1)"),
        ({"real": (7, 1e300)}, {}, "Column 'real' holds 1e+300, outside the range of float32"),
        ({"row": (9, 2**40)}, {}, "Column 'row' holds 1099511627776, outside the range of int32"),
        (
            {"weight": (3, -1.0)},
            {"weights": "weight"},
            "Row weights must not be negative, but the smallest is -1",
        ),
        ({"weight": (slice(None), 0.0)}, {"weights": "weight"}, "All row weights are zero"),
        ({}, {"weights": [np.nan] * ROWS}, f"Column 'row weights' has {ROWS} NaN values"),
        ({"real": (3, np.nan)}, {"stratify": "real"}, "has missing values; replace them"),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_what_a_copy_refuses_is_refused_before_a_batch_is_made(change, options, message, shuffle):
    data, said = table(), []
    for name, (where, value) in change.items():
        data[name][where] = value
    for memory in (0, 1 << 40):
        with pytest.raises(DataError) as error:
            as_source(data, memory=memory).split(Partition(SHARDS, shuffle=shuffle, **options), 0)
        said.append(str(error.value))
    assert message in said[0]
    assert said[0] == said[1]


BYTES = ROWS * 4 * 4


@pytest.mark.parametrize(
    ("memory", "free", "gathers"),
    [
        (BYTES, 0, False),
        (BYTES - 1, 0, True),
        (None, 0, False),  # up to 1 GiB is always copied
    ],
)
def test_memory_decides(memory, free, gathers, monkeypatch):
    monkeypatch.setattr("shardmc.data.gathered.free_memory", lambda: free)
    blocks = as_source(np.zeros((ROWS, 4)), memory=memory).split(Partition(SHARDS), 0)
    assert isinstance(blocks, GatheredBlocks) == gathers


@pytest.mark.parametrize(("free", "gathers"), [(4 * BYTES, False), (4 * BYTES - 1, True), (0, True)])
def test_by_default_a_copy_takes_at_most_a_quarter_of_the_free_memory(free, gathers, monkeypatch):
    monkeypatch.setattr("shardmc.data.gathered.MEMORY", 1)
    monkeypatch.setattr("shardmc.data.gathered.free_memory", lambda: free)
    blocks = as_source(np.zeros((ROWS, 4))).split(Partition(SHARDS), 0)
    assert isinstance(blocks, GatheredBlocks) == gathers


def test_rows_are_copied_where_gathering_saves_little(monkeypatch):
    def gathers(data, **options):
        return isinstance(as_source(data, memory=0).split(Partition(SHARDS, **options), 0), GatheredBlocks)

    narrow, wide = np.zeros(ROWS), np.zeros((ROWS, 4))
    assert not gathers(narrow)  # a list of the rows takes as much
    assert gathers(narrow, shuffle=False)
    assert gathers(wide)
    monkeypatch.setattr("shardmc.data.gathered.shards_at_a_time", lambda: SHARDS // 2)
    assert not gathers(wide)  # half of the shards are in memory at a time
    assert gathers(wide, shuffle=False, sizes=None)
    monkeypatch.setattr("shardmc.data.gathered.shards_at_a_time", lambda: 0)
    monkeypatch.setattr(arrays_module.jax, "default_backend", lambda: "gpu")
    assert not gathers(wide)  # every batch would have to be sent to the accelerator


def test_a_selection_of_columns_keeps_the_limit():
    blocks = as_source(table(), memory=0).select(["x", "real"]).split(Partition(SHARDS), 0)
    assert isinstance(blocks, GatheredBlocks)
    assert [column.name for column in blocks.columns] == ["real", "x"]


def test_batches_in_memory_hold_an_eighth_of_the_rows():
    blocks = as_source(np.zeros((160_000, 4), np.float32), memory=2_000_000).split(Partition(80), 0)
    assert isinstance(blocks, GatheredBlocks)
    assert blocks.most_in_memory == 10
    assert as_source(np.zeros((160_000, 4)), memory=0).split(Partition(80), 0).most_in_memory == 1


def peak_bytes(x: np.ndarray, memory: int, shuffle: bool) -> int:
    """Most memory that NumPy took while the rows were split into shards and each was used once."""
    tracemalloc.start()
    blocks = as_source(x, memory=memory).split(Partition(100, shuffle=shuffle), seed=0)
    for _ in blocks.batches(range(blocks.num_shards), 2):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_whole_is_not_held_twice(order, shuffle, monkeypatch):
    monkeypatch.setattr("shardmc.data.partition.PIECE_BYTES", 1 << 16)
    x = np.ones((200_000, 16), order=order)
    copy = x.size * 4
    peak_bytes(x, 0, shuffle)  # what is made once, such as compiled functions
    assert peak_bytes(x, 1 << 40, shuffle) > copy
    listed = 4 * len(x) if shuffle else 0
    assert peak_bytes(x, 0, shuffle) < listed + 0.12 * copy  # up to four batches of 2.25 %, and small pieces
