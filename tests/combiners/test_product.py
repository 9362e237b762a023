"""Density products against densities computed on a grid."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from shardmc.combiners import Product
from shardmc.combiners.gaussian import KernelProduct
from shardmc.errors import OptionError
from shardmc.types import ShardDraws


def skewed(num_shards: int, num_draws: int, dim: int = 1) -> ShardDraws:
    values = np.random.default_rng(1).gamma(4.0, size=(num_shards, num_draws, dim))
    return ShardDraws.of(values, scaling="fractional")


def test_the_parametric_product_is_normal_with_the_product_moments():
    draws = skewed(3, 500, dim=2)
    inverse = np.linalg.inv(draws.covariances)
    covariance = np.linalg.inv(inverse.sum(axis=0))
    mean = covariance @ np.einsum("ijk,ik->j", inverse, draws.means)
    values = Product(small_sample=False)(draws, None, np.random.default_rng(0)).values
    z = (values - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    assert all(stats.kstest(column, "norm").pvalue > 1e-7 for column in z.T)
    np.testing.assert_allclose(
        values, mean + np.random.default_rng(0).standard_normal((500, 2)) @ np.linalg.cholesky(covariance).T
    )


@pytest.mark.parametrize("semiparametric", [False, True])
@pytest.mark.parametrize("dim", [1, 2])
def test_the_log_density_is_that_of_the_kernel_estimates(semiparametric, dim):
    draws = skewed(3, 40, dim)
    bandwidth = 40 ** (-1 / (4 + dim))
    points = np.random.default_rng(2).uniform(1, 6, size=(7, dim))
    expected = np.zeros(7)
    for v, m, s in zip(draws.values, draws.means, draws.covariances, strict=True):
        kernels = np.stack([stats.multivariate_normal(x, bandwidth**2 * s).pdf(points) for x in v], axis=-1)
        kernels = kernels.reshape(7, len(v))
        if semiparametric:
            normal = stats.multivariate_normal(m, s)
            kernels = kernels / normal.pdf(v) * np.reshape(normal.pdf(points), (7, 1))
        expected += np.log(kernels.mean(axis=1))
    found = KernelProduct.of(draws, 1.0, semiparametric, 1000).log_density(points)
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-3)


@pytest.mark.parametrize("kind", ["nonparametric", "semiparametric"])
def test_draws_follow_the_product_of_the_kernel_estimates(kind):
    draws = skewed(3, 4000)
    combined = Product(kind)(draws, None, np.random.default_rng(3))
    grid = np.linspace(0.5, 9, 4000)
    log_density = KernelProduct.of(draws, 1.0, kind == "semiparametric", 10_000).log_density(grid[:, None])
    density = np.exp(log_density - log_density.max())
    cdf = np.cumsum(density) / density.sum()
    gap = np.abs(np.interp(np.sort(combined.values[:, 0]), grid, cdf) - (np.arange(4000) + 0.5) / 4000).max()
    # Kolmogorov: P(gap > x) = 2 exp(-2 n x^2); weights are worth at least n / 2 draws.
    assert gap < np.sqrt(np.log(2 / 1e-8) / (2 * 2000))
    assert combined.notes == ()
    parametric = Product()(draws, None, np.random.default_rng(3)).values[:, 0]
    wrong = np.abs(np.interp(np.sort(parametric), grid, cdf) - (np.arange(4000) + 0.5) / 4000).max()
    assert wrong > gap


def test_too_many_dimensions_are_said():
    draws = skewed(10, 300, dim=12)
    combined = Product("nonparametric")(draws, None, np.random.default_rng(4))
    assert any("independent ones" in note for note in combined.notes)


def test_options_are_checked():
    with pytest.raises(OptionError, match="Valid: nonparametric, parametric"):
        Product("normal")  # pyright: ignore
    with pytest.raises(OptionError, match="positive"):
        Product(bandwidth=0)
