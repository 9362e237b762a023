"""Arrays as rows: which types they become, and what is refused with which sentence."""

import pickle
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from shardmc.data import Partition, as_source
from shardmc.errors import DataError, OptionError
from shardmc.model.precision import double_precision

from .conftest import shards_of


def split(data, **options):
    return as_source(data).split(Partition(2, **options), seed=0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float64, np.float32),
        (np.float32, np.float32),
        (np.float16, np.float32),
        (np.int64, np.int32),
        (np.uint64, np.int32),
        (np.uint32, np.uint32),
        (np.int8, np.int8),
        (np.bool_, np.bool_),
    ],
)
def test_types_on_the_device(given, expected):
    data = np.arange(6).astype(given)
    assert split(data).rows.dtype == expected
    assert as_source(data).sample(3, 0).dtype == expected


def test_sixty_four_bits_stay_in_x64():
    with double_precision():
        blocks = split({"x": np.linspace(0, 1, 6), "n": np.arange(6) + 2**40})
        assert blocks.rows["x"].dtype == np.float64
        assert blocks.rows["n"].dtype == np.int64
        assert sorted(blocks.rows["n"].tolist()) == list(range(2**40, 2**40 + 6))


class Pair(NamedTuple):
    x: np.ndarray
    more: dict


def test_any_pytree_keeps_its_structure():
    data = Pair(np.arange(12.0).reshape(6, 2), {"y": (np.arange(6), None)})
    blocks = split(data)
    assert isinstance(blocks.rows, Pair)
    assert np.array_equal(np.asarray(blocks.rows.x[:, 0]) / 2, np.asarray(blocks.rows.more["y"][0]))
    sample = as_source(data).sample(4, 0)
    assert isinstance(sample, Pair)
    assert len(sample.x) == 4
    assert isinstance(sample.x, np.ndarray)


def test_a_jax_array_in_order_is_not_copied():
    data = jnp.arange(12.0).reshape(6, 2)
    blocks = split(data, shuffle=False)
    assert blocks.rows.unsafe_buffer_pointer() == data.unsafe_buffer_pointer()


def test_the_users_array_is_neither_changed_nor_shared():
    data = np.arange(6, dtype=np.float32)
    blocks = split(data, shuffle=False)
    data[:] = -1
    assert blocks.rows.tolist() == [0, 1, 2, 3, 4, 5]


def test_noncontiguous_and_big_endian_arrays():
    data = np.arange(12, dtype=">f8").reshape(6, 2)[:, ::-1]
    assert sorted(split(data).rows[:, 1].tolist()) == [0, 2, 4, 6, 8, 10]


def test_sample_comes_from_all_over():
    sample = as_source(np.arange(1000)).sample(10, seed=3)
    assert np.array_equal(sample // 100, np.arange(10))
    assert np.array_equal(as_source(np.arange(5)).sample(10, seed=3), np.arange(5))


def test_lists_of_numbers_and_texts_in_a_dictionary_are_columns():
    rows = as_source({"x": [1.5, 2.0, -1.0], "n": [1, 2, 3], "city": ["Basel", "Bern", "Chur"]})
    assert (rows.num_rows, rows.column_names) == (3, ("x", "n", "city"))
    sample = rows.select(["x", "n"]).sample(3, seed=0)
    np.testing.assert_allclose(np.sort(sample["x"]), [-1.0, 1.5, 2.0])
    numpy_scalars = as_source({"x": list(np.arange(3)), "b": list(np.array([True, False, True]))})
    np.testing.assert_array_equal(numpy_scalars.sample(3, seed=0)["x"], [0, 1, 2])
    with pytest.raises(DataError, match="Column 'x' has 1 NaN value"):
        as_source({"x": [1.0, None, 2.0]}).split(Partition(1), 0)
    with pytest.raises(DataError, match="Column 'x' has both numbers and texts"):
        as_source({"x": [1, "a"]})
    with pytest.raises(DataError, match=r"Column '.*0.*' is the single value 1.0"):
        as_source(([1.0, 2.0],))  # outside a table lists hold arrays
    with pytest.raises(DataError, match="has 2 rows but"):
        as_source({"x": [1.0, 2.0], "y": np.zeros(3)})


def test_a_dictionary_is_a_table():
    source = as_source({"x": np.arange(4), "name": np.array(["a", "b", "c", "d"])})
    assert source.is_table
    assert source.column_names == ("x", "name")
    assert list(source.select(["x"]).split(Partition(2, weights=np.ones(4)), 0).rows) == ["x"]
    assert not as_source((np.arange(4),)).is_table


def test_columns_not_selected_still_weigh_and_stratify():
    source = as_source({"x": np.arange(4), "w": np.arange(4.0), "s": np.array([0, 0, 1, 1])}).select(["x"])
    blocks = source.split(Partition(2, weights="w", stratify="s"), 0)
    assert np.array_equal(blocks.rows["x"], blocks.row_weights)
    assert sorted(int((blocks.rows["x"][i : i + 2] >= 2).sum()) for i in (0, 2)) == [1, 1]


BAD = {
    "NaN": (
        {"x": np.array([[0.0, 1], [np.nan, 2], [np.nan, 3]])},
        r"Column 'x\[:, 0\]' has 2 NaN values. Drop or impute those rows first: shardmc does not guess.",
    ),
    "one NaN": (np.array([0.0, np.nan]), "Column 'data' has 1 NaN value. Drop"),
    "infinite": ((np.array([0.0, np.inf, -np.inf]),), r"Column '\[0\]' has 2 infinite values"),
    "NaN in several": (
        {"x": np.full((3, 7), np.nan), "y": np.ones(3)},
        r"7 columns have NaN values: 'x\[:, 0\]' \(3\).* and 2 more\.",
    ),
    "NaN on the device": ({"x": jnp.array([1.0, np.nan])}, "Column 'x' has 1 NaN value"),
    "infinite on the device": ({"x": jnp.array([1.0, np.inf])}, "Column 'x' has 1 infinite value"),
    "lengths": (
        {"x": np.zeros(3), "y": np.zeros(4)},
        "Column 'x' has 3 rows but 'y' has 4; all columns need the same number",
    ),
    "empty": (np.zeros((0, 2)), "The table is empty: it has no rows"),
    "no arrays": ({}, "holds no arrays"),
    "no first axis": (
        {"x": np.zeros(3), "scale": 2.0},
        "Column 'scale' is the single value 2.0; give an array",
    ),
    "a list": ([1, 2, 3], r"Column '\[0\]' is the single value 1.*numpy.asarray"),
    "text": (
        {"x": np.array(["a", "b"])},
        r"Column 'x' holds text \(<U1\); encode its levels as integers",
    ),
    "objects": (np.array([1, None]), "Column 'data' holds Python objects"),
    "dates": (
        np.array(["2020-01-01"] * 2, dtype="M8[D]"),
        "Column 'data' holds dates .*days since some date",
    ),
    "complex": (np.zeros(2, dtype=complex), "complex numbers .*real and imaginary parts"),
    "overflow": (
        {"id": np.array([1, 3_000_000_000])},
        "Column 'id' holds 3000000000, outside the range of int32; rescale the column, or enable 64 bits in JAX",
    ),
    "negative overflow": ({"id": np.array([1, -(2**40)])}, "Column 'id' holds -1099511627776"),
    "unsigned overflow": (np.array([1, 2**63 + 1], dtype=np.uint64), "holds 9223372036854775809"),
    "too large for float32": (np.array([1.0, 1e300]), "holds 1e\\+300, outside the range of float32"),
    "sparse": ({"x": scipy.sparse.eye(3).tocsr()}, "Column 'x' is a sparse matrix; .*toarray"),
    "masked": (np.ma.array([1.0, 2], mask=[True, False]), "Column 'data' has 1 masked value"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_in_one_sentence(name):
    data, message = BAD[name]
    with pytest.raises(DataError, match=message):
        split(data)


def test_the_largest_allowed_numbers_pass():
    top = np.finfo(np.float32).max
    blocks = split({"n": np.array([2**31 - 1, -(2**31)]), "x": np.array([float(top), -float(top)])})
    assert sorted(blocks.rows["n"].tolist()) == [-(2**31), 2**31 - 1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": [1, -1, 1, 1]}, DataError, "Row weights must not be negative, but the smallest is -1"),
        ({"weights": [1, np.nan, 1, 1]}, DataError, "Column 'row weights' has 1 NaN value"),
        ({"weights": [0, 0, 0, 0]}, DataError, "All row weights are zero"),
        (
            {"weights": [1, 1]},
            OptionError,
            r"weights has shape \(2,\); it must be a column's name, or hold one entry",
        ),
        ({"weights": ["a"] * 4}, OptionError, "weights holds <U1 entries; it must hold numbers"),
        ({"weights": "wieght"}, OptionError, "Unknown weights column 'wieght'. Did you mean 'weight'"),
        ({"stratify": "lable"}, OptionError, "Unknown stratify column 'lable'. Did you mean 'label'"),
        ({"stratify": [1, 2]}, OptionError, r"stratify has shape \(2,\)"),
        ({"stratify": [1.0, np.nan, 1, 1]}, DataError, "has missing values; replace them"),
        ({"stratify": "x"}, DataError, r"stratify column 'x' has shape \(2,\) per row"),
    ],
)
def test_weights_and_strata_are_checked(options, error, message):
    data = {"x": np.zeros((4, 2)), "weight": np.ones(4), "label": np.arange(4)}
    with pytest.raises(error, match=message):
        split(data, **options)


def test_text_with_too_many_levels_cannot_stratify():
    with pytest.raises(DataError, match="more than 1000 different values; group them"):
        as_source(np.zeros(2000)).split(Partition(2, stratify=np.arange(2000).astype(str)), 0)


def test_an_unknown_column_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match=r"Unknown column 'hieght'. Did you mean 'height'"):
        as_source({"height": np.zeros(3)}, columns=["hieght"])


def test_fingerprint_follows_the_content():
    base = {"x": np.arange(10.0), "y": np.arange(10)}
    changed = {**base, "x": np.where(np.arange(10) == 7, -1, np.arange(10.0))}
    prints = [
        as_source(data).fingerprint
        for data in (base, changed, {**base, "y": base["x"]}, tuple(base.values()))
    ]
    assert len(set(prints)) == 4
    assert as_source({name: column.copy() for name, column in base.items()}).fingerprint == prints[0]


def test_shards_can_be_pickled():
    blocks = split({"row": np.arange(6)}).keep([[0], []])
    copy = pickle.loads(pickle.dumps(blocks))
    for shard, (rows, weights) in shards_of(blocks).items():
        assert np.array_equal(shards_of(copy)[shard][0]["row"], rows["row"])
        assert np.array_equal(shards_of(copy)[shard][1], weights)


def test_a_source_stays_a_source():
    source = as_source({"x": np.zeros(3), "y": np.zeros(3)})
    assert as_source(source) is source
    assert list(as_source(source, columns=["y"]).sample(1, 0)) == ["y"]
