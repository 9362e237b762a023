"""The conjugate formulas of Examples 1 and 3 against numerical integration, and densities of combinations."""

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import trapezoid

from shardmc.model.precision import double_precision
from shardmc.paper import beta_bernoulli, gaussian
from shardmc.paper.beta import (
    COMBINATIONS,
    TRUE,
    Beta,
    Shards,
    affine_density,
    affine_variance,
    shifted_density,
)
from shardmc.paper.beta_bernoulli import DataSet
from shardmc.paper.gaussian import NormalInverseGamma


@pytest.fixture(scope="module")
def y():
    return np.random.default_rng(0).normal(1.0, 2.0, size=24)


@pytest.mark.parametrize(("scaling", "weight", "power"), [("rescaled", 3.0, 1.0), ("fractional", 1.0, 1 / 3)])
def test_gaussian_subposteriors_are_the_integrals_of_their_densities(y, scaling, weight, power):
    found = NormalInverseGamma.of(y, 3, scaling)
    for shard, rows in enumerate(y.reshape(3, -1)):
        mu = np.linspace(rows.mean() - 12, rows.mean() + 12, 1201)
        log_variance = np.linspace(-4, 9, 1301)
        variance = np.exp(log_variance)
        squares = ((rows[:, None] - mu) ** 2).sum(axis=0)
        # prior 1 / variance to the power, likelihood to the weight, Jacobian of the logarithm
        log = (
            -power * log_variance
            - weight * (len(rows) / 2 * log_variance + squares[:, None] / (2 * variance))
            + log_variance
        )
        density = np.exp(log - log.max())
        density /= trapezoid(trapezoid(density, log_variance), mu)
        mu_marginal = trapezoid(density, log_variance)
        variance_marginal = trapezoid(density, mu, axis=0) / variance
        one = NormalInverseGamma(
            found.count, found.mean[[shard]], found.squares[[shard]], found.power
        ).marginals()
        np.testing.assert_allclose(one[0].pdf(mu), mu_marginal, atol=1e-5 * mu_marginal.max())
        np.testing.assert_allclose(
            one[1].pdf(variance), variance_marginal, atol=1e-5 * variance_marginal.max()
        )


def test_gaussian_draws_have_the_exact_marginals(y):
    found = NormalInverseGamma.of(y, 2, "rescaled")
    draws = found.draws(40_000, np.random.default_rng(1))[0]
    for column, exact in zip(draws.T, found.marginals(), strict=True):
        assert stats.kstest(column, exact.cdf).pvalue > 1e-8
        assert stats.kstest(column, lambda x, d=exact: d.cdf(1.05 * x)).pvalue < 1e-8


@pytest.mark.slow
def test_gaussian_modes_are_those_of_the_model(y):
    located = gaussian.located(y, 1)
    model = gaussian.model()
    with double_precision():

        def log_posterior(theta):
            return model.log_prior(theta) + model.log_likelihood(theta, jax.numpy.asarray(y)).sum()

        theta = jax.numpy.asarray(located.mode.theta)
        np.testing.assert_allclose(jax.grad(log_posterior)(theta), 0, atol=1e-9)
        np.testing.assert_allclose(-jax.hessian(log_posterior)(theta), located.mode.curvature, atol=1e-9)
    np.testing.assert_allclose(located.shard_modes[0], located.mode.theta)


@pytest.mark.parametrize(("scaling", "weight", "power"), [("rescaled", 4.0, 1.0), ("fractional", 1.0, 0.25)])
def test_bernoulli_subposteriors_have_their_densities(scaling, weight, power):
    data = DataSet((np.arange(40) % 5 == 0).astype(np.float32), 4)
    shards = getattr(data, scaling)
    p = np.linspace(1e-4, 1 - 1e-4, 5001)
    log = (power * (beta_bernoulli.PRIOR - 1) + weight * data.successes[:, None]) * np.log(p) + (
        power * (beta_bernoulli.PRIOR - 1) + weight * data.failures[:, None]
    ) * np.log1p(-p)
    density = np.exp(log)
    density /= trapezoid(density, p)[:, None]
    np.testing.assert_allclose(shards.density(p[None]), density, rtol=1e-4, atol=1e-6)


def test_kept_successes_count_once_in_every_shard():
    rows = np.zeros(1000, np.float32)
    rows[[3, 7, 700]] = 1
    kept = DataSet(rows, 10).kept
    np.testing.assert_allclose(kept.a, beta_bernoulli.PRIOR + 3)
    # the share-weighted mean of the shards' counts of failures is that of all rows
    np.testing.assert_allclose(np.mean(kept.b - beta_bernoulli.PRIOR), 997)


@pytest.fixture(scope="module")
def shards():
    return Shards.simulate(2000, 8, np.random.default_rng(3))


def test_recentred_densities_are_densities_with_the_right_moments(shards):
    p = np.linspace(1e-6, 1 - 1e-6, 200_001)
    target = 0.31
    moved = shifted_density(shards.rescaled, p, target)
    assert abs(trapezoid(moved, p) - 1) < 1e-8
    assert abs(trapezoid(p * moved, p) - target) < 1e-8
    variance = trapezoid((p - target) ** 2 * moved, p)
    np.testing.assert_allclose(variance, shards.rescaled.variance.mean(), rtol=1e-6)
    affine = affine_density(shards.rescaled, shards.full, p)
    assert abs(trapezoid(affine, p) - 1) < 1e-8
    eta = np.log(p) - np.log1p(-p)
    mean = trapezoid(eta * affine, p)
    np.testing.assert_allclose(
        trapezoid((eta - mean) ** 2 * affine, p), affine_variance(shards.rescaled, shards.full), rtol=1e-6
    )


def test_logit_moments_are_integrals():
    beta = Beta(np.array([3.0]), np.array([5.0]))
    eta = np.linspace(-30, 30, 60_001)
    density = beta.logit_density(eta[None])[0]
    mean = trapezoid(eta * density, eta)
    np.testing.assert_allclose(mean, beta.logit_mean[0], atol=1e-9)
    np.testing.assert_allclose(trapezoid((eta - mean) ** 2 * density, eta), beta.logit_variance[0], atol=1e-9)
    assert abs(eta[np.argmax(density)] - beta.logit_mode[0]) < 1e-3


def test_equal_shards_combine_to_the_posterior():
    full = Beta(np.array([301.0]), np.array([701.0]))
    same = Shards(full, Beta(np.full(5, 301.0), np.full(5, 701.0)))
    assert same.total_variation("affine") < 1e-12
    assert same.total_variation("AR") < 1e-12
    assert same.variance_ratio("AR") == pytest.approx(1)


def test_plain_recentring_has_the_bias_that_theory_predicts():
    """K = N^(1/2): the centre is off by about (1 - p)^(1/2) sds, the total variation that of two such normals."""
    rng = np.random.default_rng(4)
    found = np.mean(
        [
            [Shards.simulate(40_000, 200, rng).total_variation(name) for name in COMBINATIONS]
            for _ in range(10)
        ],
        axis=0,
    )
    expected = 2 * stats.norm.cdf(np.sqrt(1 - TRUE) / 2) - 1
    values = dict(zip(COMBINATIONS, found, strict=True))
    assert abs(values["AR"] - expected) < 0.05
    assert values["AR + Newton"] < 0.01
    assert values["affine"] < 1e-4
