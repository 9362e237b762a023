"""Expectation propagation: exact if the sites are Gaussian, closer than Laplace if not, and it says when it fails.

False alarms: `unlikely` has a level of 1e-8. With Gaussian sites the moments have no Monte Carlo error.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import shardmc
from shardmc.errors import OptionError
from shardmc.field.propagation import PropagateSites, Propagation
from shardmc.field.sites import Gaussian, Sites, tilted_moments
from shardmc.sample.sampler import Chains, DensitySampler

SINGLE = {"check": False, "precision": "single"}


@pytest.fixture(scope="module")
def linear():
    """Linear regression with known noise, its rows, and the exact posterior mean and precision."""
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(3_000), rng.normal(size=3_000)]).astype(np.float32)
    y = (x @ np.array([0.3, -0.2]) + rng.normal(size=3_000)).astype(np.float32)
    model = shardmc.Model(
        lambda params, rows: -0.5 * (rows[1] - rows[0] @ params["b"]) ** 2,
        lambda params: -50 * (params["b"] ** 2).sum(),
        {"b": 2},
    )
    wide = x.astype(np.float64)
    precision = wide.T @ wide + 100 * np.eye(2)
    return model, (x, y), np.linalg.solve(precision, wide.T @ y.astype(np.float64)), precision


def unlikely(theta: np.ndarray, mean: np.ndarray, precision: np.ndarray, level: float = 1e-8) -> bool:
    """Whether independent draws are not of N(mean, precision^-1)."""
    z = (theta - mean) @ np.linalg.cholesky(precision)
    count, squares = len(z), (z**2).sum()
    shift = stats.chi2.sf(count * (z.mean(axis=0) ** 2).sum(), z.shape[1])
    spread = 2 * min(stats.chi2.cdf(squares, z.size), stats.chi2.sf(squares, z.size))
    return bool(min(shift, spread) < level / 2)


@pytest.mark.parametrize("shards", [1, 6])
def test_gaussian_sites_are_exact(linear, shards):
    model, rows, mean, precision = linear
    posterior = shardmc.expectation_propagation(model, rows, shards=shards, draws=20_000, **SINGLE)
    assert not unlikely(posterior.theta, mean, precision)
    assert posterior.notes[-1].startswith("Expectation propagation converged in 1 round")
    # The same test rejects the posterior of half the prior, which an EP that counts the prior twice would give.
    twice = precision + 100 * np.eye(2)
    assert unlikely(posterior.theta, np.linalg.solve(twice, precision @ mean), twice)


def test_warped_coordinates_are_refused(linear):
    model, rows, _, _ = linear
    with pytest.raises(OptionError, match="it is not a DensitySampler"):
        shardmc.expectation_propagation(model, rows, shards=5, sampler="warped")


@pytest.mark.slow
def test_hmc_samples_tilted_distributions_as_well(linear):
    model, rows, mean, precision = linear
    hmc = shardmc.HMC(step_size=0.8)
    posterior = shardmc.expectation_propagation(model, rows, shards=4, draws=20_000, sampler=hmc, **SINGLE)
    assert not unlikely(posterior.theta, mean, precision)


@pytest.fixture(scope="module")
def poisson():
    """A rate with a Gamma prior and few events: log rate is skewed, its exact mean and sd are known."""
    y = np.random.default_rng(1).poisson(0.05, 1_000).astype(np.float32)
    model = shardmc.Model(
        lambda params, y: y * params["log_rate"] - np.e ** params["log_rate"], None, {"log_rate": ()}
    )
    events = float(y.sum())
    draws = np.log(np.random.default_rng(0).gamma(events, 1 / len(y), 1_000_000))
    return model, y, draws.mean(), draws.std()


@pytest.mark.slow
def test_skewed_sites_are_closer_than_laplace(poisson):
    model, y, mean, sd = poisson
    options = {"shards": 5, "draws": 100_000, "site_draws": 2_000, **SINGLE}
    posterior = shardmc.expectation_propagation(model, y, **options)
    # 0.003 sd is the Monte Carlo error of the final draws; that of the sites is smaller.
    error = abs(posterior.theta.mean() - mean) / sd
    laplace = abs(posterior.mode[0] - mean) / sd
    assert laplace > 0.05
    assert error < 0.02
    assert posterior.theta.std() == pytest.approx(sd, rel=0.02)


@pytest.mark.slow
def test_a_result_of_tilted_draws_comes_from_all_sites(poisson):
    model, y, mean, sd = poisson
    posterior = shardmc.expectation_propagation(
        model, y, shards=5, site_draws=1_000, result="tilted", precision="single"
    )
    assert np.unique(posterior.shard).tolist() == [0, 1, 2, 3, 4]
    assert posterior.theta.mean() == pytest.approx(mean, abs=0.1 * sd)
    assert posterior.certificate is not None
    assert posterior.certificate.verdict != "off"
    assert posterior.plan.method.startswith("Propagation(")


def test_the_same_seed_gives_the_same_draws(linear):
    model, rows, *_ = linear
    one, two = (shardmc.expectation_propagation(model, rows, shards=6, draws=100, **SINGLE) for _ in "ab")
    np.testing.assert_array_equal(one.theta, two.theta)


def test_the_known_gaussian_is_a_control_variate():
    """Draws of N(0, I) with a constant ratio give its moments exactly; without the ratio there is noise."""
    z = np.random.default_rng(0).normal(size=(50, 2))
    found = tilted_moments(z, np.full(50, 3.0))
    np.testing.assert_allclose(found.precision, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(found.shift, 0, atol=1e-12)
    far = tilted_moments(z, 5 * z[:, 0] ** 2)
    assert np.abs(far.precision - np.eye(2)).max() > 0.05
    assert tilted_moments(np.ones((50, 2)), 5 * np.arange(50.0)) is None


def test_a_site_that_is_not_positive_definite_is_found_and_a_product_that_is_not_is_damped():
    each = Gaussian(np.array([[[2.0]], [[-0.5]]]), np.zeros((2, 1)))
    sites = Sites.of(each)
    assert sites.indefinite.tolist() == [1]
    assert sites.whole.is_proper
    wanted = Gaussian(np.array([[[2.0]], [[-4.0]]]), np.zeros((2, 1)))
    moved = sites.updated(wanted, (), 1.0)
    assert moved is not None
    assert moved.whole.is_proper
    assert moved.each.precision[1, 0, 0] > -2
    never = Gaussian(np.array([[[-1e9]], [[-1e9]]]), np.zeros((2, 1)))
    assert sites.updated(never, (), 1.0) is None
    notes = PropagateSites(Propagation(), shardmc.HMC())._notes(sites)
    assert notes[0] == "The Gaussian approximation has a precision that is not positive definite for shard 1."
    assert notes[1].startswith("Expectation propagation did not converge in 0 rounds")


class Stuck(DensitySampler):
    """Accepts nothing: every draw is the same point."""

    def sample(self, target, key, num_draws, tuning):
        import jax.numpy as jnp

        return Chains(
            jnp.zeros((1, num_draws, target.dim)), jnp.zeros(()), jnp.int32(0), jnp.int32(num_draws)
        )


def test_sites_that_cannot_be_sampled_are_named(linear):
    model, rows, *_ = linear
    posterior = shardmc.expectation_propagation(
        model, rows, shards=3, draws=100, site_draws=20, sampler=Stuck(), **SINGLE
    )
    assert "In the last round nothing was updated for shards 0, 1, 2:" in posterior.notes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping": 0.0}, "damping of Propagation must be above 0 and at most 1; 0.0 was given"),
        ({"damping": 1.5}, "damping of Propagation must be above 0 and at most 1; 1.5 was given"),
        ({"rounds": 3}, "Unknown option of expectation propagation 'rounds'"),
        ({"result": "mean"}, "Unknown result of expectation propagation 'mean'"),
        ({"site_draws": 5}, "site_draws of Propagation must be a whole number from 20"),
        ({"sampler": shardmc.Exact(lambda *_: {})}, "Exact cannot sample tilted distributions"),
        ({"sampler": "nut"}, "Did you mean 'nuts'"),
    ],
)
def test_options_are_checked_before_anything_is_computed(linear, options, message):
    with pytest.raises(OptionError, match=message):
        shardmc.expectation_propagation(linear[0], "nowhere.parquet", **options)
