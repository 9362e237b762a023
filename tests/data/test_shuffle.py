"""The permutation without memory: one to one, reproducible, and as random as the tests can tell."""

import numpy as np
import pytest
from scipy import stats

from shardmc.data import assignment
from shardmc.data.assignment import Shuffle, seed_for

FALSE_ALARM = 1e-8  # of each statistical test here


@pytest.mark.parametrize("num_rows", [1, 2, 3, 1024, 1025, 2048, 2049, 5000, 65_537])
def test_every_position_is_taken_once(num_rows):
    positions = Shuffle(num_rows, seed_for("test", 1))(np.arange(num_rows))
    assert np.array_equal(np.sort(positions), np.arange(num_rows))


def test_beyond_32_bits_positions_differ_and_are_in_range():
    rows = np.concatenate([np.arange(10_000), 3 * 2**33 - 1 - np.arange(10_000)])
    positions = Shuffle(3 * 2**33, seed_for("test", 1))(rows)
    assert len(np.unique(positions)) == len(rows)
    assert 0 <= positions.min() <= positions.max() < 3 * 2**33


def test_a_row_goes_to_the_same_place_however_rows_are_asked_for():
    whole = Shuffle(10_000, seed_for("test", 5))(np.arange(10_000))
    again = Shuffle(10_000, seed_for("test", 5))
    parts = [again(np.arange(start, start + 100)) for start in range(9900, -1, -100)]
    assert np.array_equal(whole, np.concatenate(parts[::-1]))


def test_seed_and_purpose_change_the_order():
    rows = np.arange(10_000)
    first = Shuffle(10_000, seed_for("test", 5))(rows)
    for other in (seed_for("test", 6), seed_for("rest", 5), seed_for("test", 5, 1)):
        # Two independent permutations agree in about one place (Poisson 1): more than 20 has probability 1e-19.
        assert (Shuffle(10_000, other)(rows) == first).sum() < 20


def cell_counts(num_rows: int, rows: list[int], cells: int, seeds: int) -> np.ndarray:
    """How often the cell of the first row's position and that of the second's come together, over seeds."""
    counts = np.zeros((cells, cells))
    for seed in range(seeds):
        first, second = Shuffle(num_rows, seed_for("test", seed))(np.array(rows)) * cells // num_rows
        counts[first, second] += 1
    return counts


def pair_test(num_rows: int, rows: list[int]) -> float:
    """p-value of a chi-square test that two rows' positions are independent and uniform over ten cells each."""
    counts = cell_counts(num_rows, rows, cells=10, seeds=4000)
    return float(stats.chisquare(counts.ravel()).pvalue)


# Of 3000 rows an index has two halves of six bits: pairs that share the upper half, the lower half, and none.
PAIRS = [[0, 1], [5, 5 + 64], [7, 1030]]


@pytest.mark.parametrize("rows", PAIRS)
def test_positions_of_two_rows_are_uniform_and_independent(rows):
    # Two positions exclude each other, which shifts a cell by 1/3000 of its expectation of 40: far below what
    # 4000 seeds can tell.
    assert pair_test(3000, rows) > FALSE_ALARM


def test_a_network_of_two_rounds_is_found_out(monkeypatch):
    monkeypatch.setattr(assignment, "_ROUNDS", 2)
    assert min(pair_test(3000, rows) for rows in PAIRS) < FALSE_ALARM


def same_shard_pairs(num_rows: int, seed: int) -> int:
    shards = Shuffle(num_rows, seed_for("test", seed))(np.arange(num_rows)) * 100 // num_rows
    return int((shards[1:] == shards[:-1]).sum())


def test_neighbours_share_a_shard_as_rarely_as_strangers():
    # Among 100 shards a pair of rows shares one with probability about 1/100; pairs of neighbours are almost
    # independent, so their number over 20 seeds is close to Poisson.
    num_rows, seeds = 50_000, 20
    total = sum(same_shard_pairs(num_rows, seed) for seed in range(seeds))
    expected = seeds * (num_rows - 1) * (num_rows / 100 - 1) / (num_rows - 1)
    z = stats.norm.isf(FALSE_ALARM / 2)
    assert abs(total - expected) < z * np.sqrt(expected)
