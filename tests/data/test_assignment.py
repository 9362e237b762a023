"""Sizes of shards, apportionment, and the assignment of a stratum's rows."""

import numpy as np
import pytest

from shardmc.data.assignment import Assignment, parts_of, shard_sizes, shard_starts
from shardmc.errors import OptionError


@pytest.mark.parametrize(("num_rows", "shards"), [(10, 3), (10, 10), (1, 1), (1000, 7)])
def test_equal_sizes_differ_by_at_most_one(num_rows, shards):
    sizes = shard_sizes(num_rows, shards)
    assert sizes.sum() == num_rows
    assert np.ptp(sizes) <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 0), "shards is 0; it must be a whole number from 1"),
        ((10, -3), "shards is -3"),
        ((10, 2.5), "shards is 2.5"),
        ((10, "ten"), "shards is 'ten'"),
        ((10, 11), "11 shards were asked for, but there are only 10 rows"),
        ((10, 2, [5, 4]), "sizes add up to 9, but there are 10 rows"),
        ((10, 2, [10, 0]), "sizes gives shard 1 0 rows"),
        ((10, 2, [10]), "sizes has 1 entries; it needs one for each of the 2 shards"),
        ((10, 2, [5.5, 4.5]), "sizes must be whole numbers"),
    ],
)
def test_impossible_sizes_are_refused(arguments, message):
    with pytest.raises(OptionError, match=message):
        shard_sizes(*arguments)


def test_no_slice_of_the_largest_size_passes_the_end():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = rng.integers(1, 20, rng.integers(1, 9))
        starts = shard_starts(sizes)
        taken = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, sizes, strict=True)])
        assert np.array_equal(np.sort(taken), np.arange(sizes.sum()))
        assert (starts + sizes.max() <= sizes.sum()).all()


def test_shards_lie_in_order_where_they_can():
    assert np.array_equal(shard_starts(shard_sizes(11, 3)), [0, 3, 7])


def test_apportioning_gives_each_row_to_the_smallest_quotient():
    rng = np.random.default_rng(1)
    for _ in range(100):
        sizes = rng.integers(1, 40, rng.integers(1, 20))
        order = sorted(((row + 0.5) / size, shard) for shard, size in enumerate(sizes) for row in range(size))
        total = int(rng.integers(0, sizes.sum() + 1))
        expected = np.bincount([shard for _, shard in order[:total]], minlength=len(sizes))
        assert np.array_equal(parts_of(total, sizes), expected)


@pytest.mark.parametrize("sizes", [shard_sizes(1003, 10), np.array([500, 3, 200, 300])])
@pytest.mark.parametrize("seed", [None, 3])
def test_each_stratum_is_split_in_proportion_and_sizes_are_exact(sizes, seed):
    rng = np.random.default_rng(2)
    strata = rng.choice(4, size=1003, p=[0.7, 0.2, 0.09, 0.01])
    counts = np.bincount(strata)
    assignment = Assignment(sizes, counts, seed)
    shards = np.concatenate([assignment.next(piece, len(piece)) for piece in np.array_split(strata, 9)])
    assert np.array_equal(np.bincount(shards, minlength=len(sizes)), sizes)
    for stratum, count in enumerate(counts):
        got = np.bincount(shards[strata == stratum], minlength=len(sizes))
        assert (np.abs(got - count * sizes / 1003) <= 1.5).all()


def test_pieces_do_not_matter():
    sizes = shard_sizes(5000, 7)
    whole = Assignment(sizes, np.array([5000]), 0).next(None, 5000)
    assignment = Assignment(sizes, np.array([5000]), 0)
    assert np.array_equal(whole, np.concatenate([assignment.next(None, 100) for _ in range(50)]))
