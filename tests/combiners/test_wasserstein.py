"""Wasserstein barycentres against their defining equations."""

from __future__ import annotations

import numpy as np
import pytest

from shardmc.combiners import Wasserstein
from shardmc.combiners.barycenters import barycenter_covariance, free_support_barycenter
from shardmc.errors import OptionError
from shardmc.types import ShardDraws

RNG = np.random.default_rng(0)


def root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(values)) @ vectors.T


def test_the_barycentre_covariance_is_the_fixed_point():
    rng = np.random.default_rng(1)
    covariances = np.stack([a @ a.T + 0.1 * np.eye(4) for a in rng.normal(size=(6, 4, 4))])
    shares = rng.dirichlet(np.ones(6))
    found = barycenter_covariance(covariances, shares)
    half = root(found)
    expected = sum(a * root(half @ s @ half) for a, s in zip(shares, covariances, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_location_scatter_gives_every_shard_the_same_moments():
    rng = np.random.default_rng(2)
    draws = ShardDraws.of(
        [rng.normal(size=(400, 3)) @ rng.normal(size=(3, 3)) + rng.normal(size=3) for _ in range(4)]
    )
    combined = Wasserstein()(draws, None, RNG)
    moments = [np.cov(combined.values[combined.shard == i].T) for i in range(4)]
    np.testing.assert_allclose(combined.values.mean(axis=0), draws.means.mean(axis=0))
    for covariance in moments[1:]:
        np.testing.assert_allclose(covariance, moments[0], rtol=1e-8, atol=1e-10)


def test_quantiles_are_averaged_and_each_shard_keeps_its_ranks():
    rng = np.random.default_rng(3)
    values = [rng.normal(size=(100, 2)), rng.gamma(2.0, size=(100, 2))]
    combined = Wasserstein("quantile")(ShardDraws.of(values, np.array([0.5, 0.5])), None, RNG)
    average = (np.sort(values[0], axis=0) + np.sort(values[1], axis=0)) / 2
    for i, v in enumerate(values):
        own = combined.values[combined.shard == i]
        np.testing.assert_allclose(np.sort(own, axis=0), average)
        np.testing.assert_array_equal(np.argsort(own, axis=0), np.argsort(v, axis=0))


def test_quantiles_of_unequal_numbers_of_draws():
    grid = lambda n: ((np.arange(n) + 0.5) / n)[:, None]  # noqa: E731
    combined = Wasserstein("quantile")(ShardDraws.of([grid(1000), 3 * grid(800)]), None, RNG)
    low, high = np.quantile(combined.values, [0.1, 0.9])
    assert low == pytest.approx(0.2, abs=0.01)
    assert high == pytest.approx(1.8, abs=0.01)


def test_the_empirical_barycentre_of_shifted_copies_is_the_middle_copy():
    points = np.random.default_rng(4).normal(size=(60, 3))
    shards = [np.random.default_rng(i).permutation(points + i) for i in range(3)]
    found = free_support_barycenter(shards, np.full(3, 1 / 3), 5)
    order = lambda x: x[np.lexsort(x.T)]  # noqa: E731
    np.testing.assert_allclose(order(found), order(points + 1))


def test_one_dimensional_assignment_is_by_rank():
    rng = np.random.default_rng(5)
    shards = [rng.normal(size=(50, 1)) * s for s in (1, 2, 5)]
    found = free_support_barycenter(shards, np.full(3, 1 / 3), 3)
    np.testing.assert_allclose(np.sort(found, axis=0), np.mean([np.sort(s, axis=0) for s in shards], axis=0))


def test_only_the_kinds_that_move_draws_pool():
    assert Wasserstein().pools
    assert Wasserstein("quantile").pools
    assert not Wasserstein("empirical").pools


@pytest.mark.parametrize("option", [{"kind": "sinkhorn"}, {"points": 1}, {"iterations": 0}])
def test_options_are_checked(option):
    with pytest.raises(OptionError):
        Wasserstein(**option)
