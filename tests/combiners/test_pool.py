"""Pooling in proportion to weights."""

from __future__ import annotations

import numpy as np
import pytest

from shardmc.combiners.moments import apportion, pool


def numbered(*lengths: int) -> list[np.ndarray]:
    return [np.arange(n, dtype=float)[:, None] + 1000 * i for i, n in enumerate(lengths)]


def test_equal_weights_and_lengths_give_every_draw_once():
    values = numbered(7, 7, 7)
    pooled, shard, notes = pool(values, np.full(3, 1 / 3))
    np.testing.assert_array_equal(pooled, np.concatenate(values))
    np.testing.assert_array_equal(shard, np.repeat([0, 1, 2], 7))
    assert notes == ()


def test_draws_are_in_proportion_and_thinned_evenly():
    pooled, shard, notes = pool(numbered(100, 100), np.array([0.6, 0.4]))
    counts = np.bincount(shard)
    assert counts[0] / counts.sum() == pytest.approx(0.6, abs=0.01)
    assert len(np.unique(pooled)) == len(pooled)
    gaps = np.diff(pooled[shard == 1, 0])
    assert gaps.min() >= 1
    assert gaps.max() <= 2
    assert notes == ()


def test_draws_are_repeated_evenly_where_they_must_and_a_note_says_so():
    pooled, shard, notes = pool(numbered(10, 100), np.array([0.5, 0.5]))
    repeats = np.bincount(pooled[shard == 0, 0].astype(int))
    assert repeats.min() >= 5
    assert repeats.max() <= 6
    assert "shard 0" in notes[0]


def test_apportion_sums_to_the_total():
    weights = np.random.default_rng(0).dirichlet(np.ones(13))
    for total in (0, 1, 12, 13, 1000):
        counts = apportion(weights, total)
        assert counts.sum() == total
        assert (np.abs(counts - weights * total) < 1).all()
