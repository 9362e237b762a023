"""The independence sampler's proposals: how many, and that the first ones are left out."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.model import Model
from shardmc.sample import Independence
from shardmc.target import DeviceFrame, Target


@pytest.fixture
def target():
    """A standard normal in two dimensions, as the one row's likelihood."""
    model = Model(lambda params, rows: -0.5 * jnp.sum(params["b"] ** 2) + 0 * rows, None, {"b": 2})
    return Target(model, jnp.zeros(1), jnp.ones(1), DeviceFrame(jnp.zeros(2), jnp.eye(2)))


def sampled(target, draws, warmup=Independence.warmup, df=None):
    """A compiled function of the key."""
    return jax.jit(lambda key: Independence(df, warmup).sample(target, key, draws, ()))


@pytest.mark.parametrize(
    ("draws", "warmup", "proposals"), [(100, 24, 128), (8, 24, 32), (9, 24, 64), (5, 0, 32), (64, 32, 96)]
)
def test_proposals_come_in_multiples_of_32_and_all_beyond_the_draws_are_warm_up(
    target, draws, warmup, proposals
):
    chains = sampled(target, draws, warmup)(jax.random.key(0))
    assert int(chains.evaluations) == proposals
    assert chains.u.shape == (1, draws, 2)
    # The draws are the chain's end: a longer warm-up within the same number of proposals leaves out the same.
    rest = proposals - draws
    same = sampled(target, draws, rest)(jax.random.key(0))
    np.testing.assert_array_equal(chains.u, same.u)


def test_acceptance_is_that_of_all_proposals_however_few_draws_are_kept(target):
    """One draw and eight are the ends of the same 32 proposals; of a single one it would be 0 or 1."""
    one, eight = (
        [float(sample(jax.random.key(seed)).acceptance) for seed in range(5)]
        for sample in (sampled(target, 1), sampled(target, 8))
    )
    assert one == eight
    assert any(0 < share < 1 for share in one)


def _normal(dim):
    model = Model(lambda params, rows: -0.5 * jnp.sum(params["b"] ** 2) + 0 * rows, None, {"b": dim})
    return Target(model, jnp.zeros(1), jnp.ones(1), DeviceFrame(jnp.zeros(dim), jnp.eye(dim)))


@pytest.mark.parametrize("dim", [2, 60, 400])
def test_a_normal_target_accepts_most_proposals_in_many_dimensions(dim):
    """With 20 degrees of freedom in 400 dimensions it would accept a quarter of them."""
    chains = sampled(_normal(dim), 4_000)(jax.random.key(0))
    assert float(chains.acceptance) > 0.85
    assert np.var(chains.u, axis=1).mean() == pytest.approx(1.0, abs=0.05)


def test_degrees_of_freedom_that_are_given_are_used():
    """The control of the test above: with 20 in 60 dimensions three fifths are accepted."""
    chains = sampled(_normal(60), 4_000, df=20)(jax.random.key(0))
    assert 0.5 < float(chains.acceptance) < 0.65


@pytest.fixture(scope="module")
def with_noise():
    """Draws of a standard normal whose log density has noise that changes from point to point, as rounding does."""

    def draws(size, shift=0.0):
        def log_likelihood(params, rows):
            b = params["b"]
            rough = np.sqrt(2) * size * jnp.sin(3e4 * (b[0] + np.sqrt(2) * b[1]))
            return -0.5 * jnp.sum((b - shift) ** 2) + rough + 0 * rows

        model = Model(log_likelihood, None, {"b": 2})
        target = Target(model, jnp.zeros(1), jnp.ones(1), DeviceFrame(jnp.zeros(2), jnp.eye(2)))
        return sampled(target, 40_000)(jax.random.key(0))

    return draws


def _is_standard(chains):
    """Whether means and variances are 0 and 1, up to five standard errors for an autocorrelation time of 2."""
    draws = np.asarray(chains.u[0])
    return np.abs(draws.mean(axis=0)).max() < 0.035 and np.abs(draws.var(axis=0) - 1).max() < 0.05


@pytest.mark.slow
def test_noise_of_the_log_density_leaves_the_posterior_and_lowers_the_acceptance(with_noise):
    """It falls by no more than erfc(size / 2), as for normal noise: the choice of the precision rests on that."""
    quiet = with_noise(0.0)
    for size in (0.1, 0.5):
        noisy = with_noise(size)
        assert _is_standard(noisy)
        assert math.erfc(size / 2) - 0.01 < float(noisy.acceptance / quiet.acceptance) < 1
    assert not _is_standard(with_noise(0.5, shift=0.1))


def test_proposals_without_a_density_are_not_accepted():
    class Nowhere:
        dim = 2

        def log_densities(self, u):
            return jnp.full(u.shape[0], jnp.nan)

    chains = Independence().sample(Nowhere(), jax.random.key(0), 100, ())
    assert chains.acceptance == 0
