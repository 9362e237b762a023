"""Monotone maps from a normal variable to a skewed density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shardmc.target import GRID, Warp, normal_map


def log_gamma(shape):
    """Log density of the log of a gamma variable, in standard deviations from its mode."""
    log_rate = np.log(shape) + GRID / np.sqrt(shape)
    return jnp.asarray(shape * log_rate - np.exp(np.minimum(log_rate, 80)))


def warp_to(shape):
    log_slopes, median = jax.jit(normal_map)(log_gamma(shape))
    return Warp.of(log_slopes[None], median[None])


def at(warp, z):
    values, log_slopes = jax.jit(jax.vmap(warp))(jnp.asarray(z)[:, None])
    return np.asarray(values)[:, 0], np.asarray(log_slopes)[:, 0]


@pytest.mark.parametrize("shape", [0.3, 1.0, 5.0, 100.0])
def test_the_map_takes_a_normal_variable_to_the_density(shape):
    """Shape 0.3 has a left tail of 20 sds. The distribution functions agree within the error of linear pieces."""
    z = np.linspace(-4, 4, 33)
    values, _ = at(warp_to(shape), z)
    exact = stats.loggamma(shape)
    reached = exact.ppf(stats.norm.cdf(z))
    np.testing.assert_allclose(
        exact.cdf(np.log(shape) + values / np.sqrt(shape)), stats.norm.cdf(z), atol=0.01
    )
    gap = np.log(shape) + values / np.sqrt(shape) - reached
    assert np.abs(gap).max() < 0.05 * (reached.max() - reached.min())


def test_the_map_to_a_normal_density_is_nearly_the_identity():
    log_slopes, median = normal_map(jnp.asarray(-0.5 * GRID**2))
    assert np.abs(log_slopes).max() < 0.04
    assert abs(float(median)) < 1e-5


def test_slopes_are_the_derivative_of_the_map_and_positive_for_any_numbers():
    rng = np.random.default_rng(0)
    warp = Warp.of(rng.normal(0, 2, (3, 41)).astype(np.float32), np.zeros(3, np.float32))
    z = jnp.asarray(rng.normal(0, 4, (200, 3)), jnp.float32)
    _, log_slopes = jax.vmap(warp)(z)
    derivatives = jax.vmap(lambda z: jnp.diag(jax.jacfwd(lambda z: warp(z)[0])(z)))(z)
    np.testing.assert_allclose(np.log(derivatives), log_slopes, atol=1e-4)
    order = np.sort(np.asarray(z), axis=0)
    assert (np.diff(np.asarray(jax.vmap(warp)(jnp.asarray(order))[0]), axis=0) >= 0).all()


@pytest.mark.parametrize("ends", [np.nan, -np.inf, -1e30])
def test_values_that_are_not_finite_far_out_do_no_harm(ends):
    log_density = np.where(np.abs(GRID) > 6, ends, -0.5 * GRID**2)
    log_slopes, median = normal_map(jnp.asarray(log_density))
    assert np.abs(log_slopes).max() < 0.5
    assert abs(float(median)) < 1e-3
