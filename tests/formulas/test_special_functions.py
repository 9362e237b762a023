"""Special functions of the families keep their digits and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from shardmc.formulas.families import (
    Bernoulli,
    Multinomial,
)
from shardmc.formulas.families.special import (
    log_gamma_half_step,
    softplus,
    stirling_remainder,
    stirling_remainder_by_steps,
    stirling_slope_by_steps,
)


def test_large_counts_of_levels_keep_their_digits():
    """Changes of the log-likelihood between points a posterior sd apart; without the row's own shares they are lost."""
    family = Multinomial(("a", "b", "c"))
    counts = np.array([[3e6, 5e6, 2e6], [0.0, 40.0, 900.0]])
    at = np.log(counts[:, 1:] + 0.5) - np.log(counts[:, :1] + 0.5)
    eta = (at + 5e-4 * np.array([0.0, 1.0, -2.0])[:, None, None]).astype(np.float32)

    def exact(eta):
        every = np.concatenate([np.zeros((2, 1)), eta.astype(float)], axis=1)
        return stats.multinomial.logpmf(counts, counts.sum(axis=1), special.softmax(every, axis=1))

    found = np.array(
        [family.log_likelihood(jnp.asarray(e), jnp.asarray(counts, jnp.float32), {}, None) for e in eta]
    )
    wanted = np.array([exact(e) for e in eta])
    np.testing.assert_allclose(found + family.log_base(counts, None), wanted, rtol=1e-4, atol=0.02)


def test_special_functions_are_scipys():
    z = np.concatenate([np.geomspace(1e-3, 1e6, 200), [3.999, 4.0, 4.001]]).astype(np.float32).astype(float)
    at = jnp.asarray(z, jnp.float32)
    exact = special.gammaln(z) - (z - 0.5) * np.log(z) + z - 0.5 * np.log(2 * np.pi)
    slope = special.digamma(z) - np.log(z) + 0.5 / z
    half = special.gammaln(z + 0.5) - special.gammaln(z) - 0.5 * np.log(z)
    # At large z the references themselves cancel: the first term of the series is exact there.
    large = z > 1e3
    exact = np.where(large, 1 / (12 * z), exact)
    slope = np.where(large, -1 / (12 * z**2), slope)
    half = np.where(large, -1 / (8 * z), half)
    np.testing.assert_allclose(stirling_remainder(at), exact, rtol=1e-6, atol=4e-7)
    np.testing.assert_allclose(stirling_remainder_by_steps(at), exact, rtol=1e-6, atol=6e-7)
    np.testing.assert_allclose(stirling_slope_by_steps(at), slope, rtol=1e-5, atol=4e-7)
    np.testing.assert_allclose(log_gamma_half_step(at), half, rtol=1e-6, atol=3e-7)
    x = np.linspace(-60, 60, 201).astype(np.float32)
    np.testing.assert_allclose(softplus(jnp.asarray(x)), np.logaddexp(0, x.astype(float)), rtol=4e-7)


@pytest.mark.parametrize("function", [softplus, lambda x: -Bernoulli().log_likelihood(x, 0.0, {}, None)])
def test_softplus_has_its_derivatives_at_zero(function):
    """Where its parts have kinks: a table starts there if all coefficients are zero."""
    slope = jax.grad(function)
    slope, bend = jax.jit(slope), jax.jit(jax.grad(slope))
    for point in (0.0, -0.0, 1e-3, 5.0, -90.0):
        p = special.expit(point)
        assert slope(point) == pytest.approx(p, rel=1e-5)
        assert bend(point) == pytest.approx(p * (1 - p), rel=1e-5)
