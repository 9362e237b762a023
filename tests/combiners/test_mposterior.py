"""The median posterior: weights of the geometric median."""

from __future__ import annotations

import numpy as np
import pytest

from shardmc.combiners import MPosterior
from shardmc.errors import OptionError
from shardmc.types import ShardDraws


def test_the_weights_are_those_of_weiszfeld_on_all_pairs():
    rng = np.random.default_rng(0)
    draws = ShardDraws.of([rng.normal(size=(30, 2)) + m for m in (0.0, 0.2, 3.0)])
    whitener = np.linalg.inv(np.linalg.cholesky(draws.covariances.mean(axis=0)))
    points = [v @ whitener.T for v in draws.values]
    distance = lambda x, y: ((x[:, None] - y[None]) ** 2).sum(axis=-1)  # noqa: E731
    stacked = np.concatenate(points)
    median = np.median(distance(stacked, stacked)[np.triu_indices(90, 1)])
    gram = np.array([[np.exp(-distance(x, y) / (2 * median)).mean() for y in points] for x in points])
    weights = np.full(3, 1 / 3)
    for _ in range(500):
        norms = np.diag(gram) + weights @ gram @ weights - 2 * gram @ weights
        weights = norms**-0.5 / (norms**-0.5).sum()
    np.testing.assert_allclose(MPosterior().weights(draws), weights, atol=1e-4)


def test_an_outlying_shard_gets_little_weight_and_nothing_is_moved():
    rng = np.random.default_rng(1)
    shards = [rng.normal(size=(200, 1)) for _ in range(9)] + [rng.normal(size=(200, 1)) + 100]
    combined = MPosterior()(ShardDraws.of(shards), None, rng)
    assert (combined.shard == 9).mean() < 0.05
    assert np.isin(combined.values, np.concatenate(shards)).all()


def test_units_do_not_matter():
    values = np.random.default_rng(2).normal(size=(4, 100, 2)) + np.arange(4)[:, None, None]
    one, other = (MPosterior().weights(ShardDraws.of(values * s)) for s in (1.0, 1e-5))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_options_are_checked():
    with pytest.raises(OptionError, match="positive"):
        MPosterior(bandwidth=-1)
