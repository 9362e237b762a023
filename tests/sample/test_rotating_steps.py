"""HMC's integrator: exact for a normal target, reversible and volume-preserving for any other."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.mcmc import hmc
from blackjax.mcmc.integrators import IntegratorState

import shardmc
from shardmc.sample import HMC
from shardmc.sample.walkers import rotating


def normal(u):
    return -0.5 * jnp.sum(u**2)


def skewed(u):
    """A standard normal density times a factor that bends and skews it."""
    return normal(u) - 0.3 * jnp.sum(jnp.logaddexp(0.0, 2.0 * u)) - 0.1 * (u[0] ** 2 - u[1]) ** 2


def integrate(log_density, u, momentum, step_size, steps):
    value, gradient = jax.value_and_grad(log_density)(u)
    state = IntegratorState(u, momentum, value, gradient)
    step = rotating(log_density, None)
    for _ in range(steps):
        state = step(state, step_size)
    return state.position, state.momentum


def points(dim):
    u, momentum = jax.random.normal(jax.random.key(0), (2, dim))
    return u, momentum


def test_a_step_of_any_size_is_exact_for_a_normal_target():
    u, momentum = points(500)
    moved, momentum_then = integrate(normal, u, momentum, 2.0, 3)
    energy = [float(jnp.sum(a**2 + b**2)) for a, b in ((u, momentum), (moved, momentum_then))]
    assert energy[1] == pytest.approx(energy[0], rel=1e-5)
    np.testing.assert_allclose(moved, math.cos(6.0) * u + math.sin(6.0) * momentum, atol=1e-5)


def test_a_trajectory_can_be_reversed():
    u, momentum = points(3)
    there = integrate(skewed, u, momentum, 0.3, 7)
    back = integrate(skewed, there[0], -there[1], 0.3, 7)
    np.testing.assert_allclose(back[0], u, atol=1e-5)
    np.testing.assert_allclose(-back[1], momentum, atol=1e-5)


@pytest.mark.slow
def test_a_trajectory_conserves_volume():
    u, momentum = points(3)

    def end(both):
        return jnp.concatenate(integrate(skewed, both[:3], both[3:], 0.4, 5))

    jacobian = jax.jacfwd(end)(jnp.concatenate([u, momentum]))
    assert abs(float(jnp.linalg.det(jacobian))) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("dim", [2, 500])
@pytest.mark.slow
def test_a_normal_target_needs_one_gradient_a_draw(dim):
    class Target:
        log_density = staticmethod(normal)

    Target.dim = dim
    sampler = HMC(chains=3)
    states = jax.vmap(lambda u: hmc.init(u, normal))(jax.random.normal(jax.random.key(1), (3, dim)))
    _, moved = sampler.step(Target, jax.random.key(2), states, jnp.asarray(3.0))
    assert np.all(np.asarray(moved.evaluations) == 1)
    np.testing.assert_allclose(moved.acceptance, 1.0, atol=1e-3)


@pytest.mark.slow
def test_a_regression_with_many_coefficients_needs_few_gradients_a_draw():
    # A leapfrog needs about four gradients a draw here.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4_000, 100)).astype(np.float32)
    y = (rng.random(4_000) < 1 / (1 + np.exp(-x @ rng.normal(0, 0.1, 100)))).astype(np.float32)
    model = shardmc.Model(
        lambda params, rows: rows["y"] * (rows["x"] @ params["b"]) - jax.nn.softplus(rows["x"] @ params["b"]),
        lambda params: -0.5 * jnp.sum(params["b"] ** 2),
        {"b": 100},
    )
    posterior = shardmc.fit(
        model, {"x": x, "y": y}, shards=1, draws=200, sampler="hmc", precision="single", certify=False
    )
    assert posterior.passes["sample"] < 2 * 300
    assert posterior.shards.acceptance[0] > 0.6
