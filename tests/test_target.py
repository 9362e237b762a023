"""The target's blocks of rows and points change nothing but speed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc import target as target_module
from shardmc.model import Model
from shardmc.target import DeviceFrame, Target


@pytest.fixture
def target():
    rng = np.random.default_rng(0)
    rows = (jnp.asarray(rng.normal(size=(103, 2)), jnp.float32), jnp.asarray(rng.random(103), jnp.float32))
    model = Model(
        lambda params, rows: -0.5 * (rows[1] - rows[0] @ params["b"]) ** 2,
        lambda params: -0.5 * jnp.sum(params["b"] ** 2),
        {"b": 2},
    )
    frame = DeviceFrame(jnp.array([0.1, -0.2]), jnp.array([[0.3, 0.0], [0.1, 0.2]]))
    return Target(model, rows, jnp.asarray(rng.integers(0, 3, 103), jnp.float32), frame, power=0.5)


def test_log_density_is_the_weighted_sum_relative_to_the_centre(target):
    u = jnp.array([0.7, -1.1])

    def log_posterior(theta):
        residuals = np.asarray(target.rows[1]) - np.asarray(target.rows[0]) @ np.asarray(theta)
        return -0.5 * np.sum(np.asarray(target.weights) * residuals**2) - 0.5 * np.sum(theta**2)

    center = np.asarray(target.frame.center)
    theta = center + np.asarray(target.frame.basis) @ np.asarray(u)
    assert target.log_density(u) == pytest.approx(
        0.5 * (log_posterior(theta) - log_posterior(center)), rel=1e-4
    )
    assert target.log_density(jnp.zeros(2)) == 0


@pytest.mark.parametrize(("points", "least_rows", "cells"), [(4, 10, 1), (7, 16, 64), (1000, 50, 1)])
def test_blocks_of_any_size_give_the_same_densities(target, monkeypatch, points, least_rows, cells):
    u = jax.random.normal(jax.random.key(0), (23, 2))
    whole = jax.vmap(target.log_density)(u)
    monkeypatch.setattr(target_module, "_POINTS", points)
    monkeypatch.setattr(target_module, "_LEAST_ROWS", least_rows)
    monkeypatch.setattr(target_module, "_cells", lambda: cells)
    np.testing.assert_allclose(target.log_densities(u), whole, rtol=2e-5, atol=2e-5)
