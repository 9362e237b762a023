"""Many effects in each group: scores of groups, and the search for the mode by gradients."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.data.grouped import GroupedRows
from shardmc.locate.leverage import RowLeverage
from shardmc.locate.terms import row_scores
from shardmc.mixed import LinearEffects, Matched
from shardmc.mixed.matched import find_sites
from shardmc.model.precision import double_precision
from shardmc.target import DeviceFrame

GROUPS, ROWS, SIZE = 12, 5, 4


def _offset(params, rows):
    return params["mu"] * jnp.ones_like(rows["y"])


def _columns(params, rows):
    return rows["z"] * params["sd"]


def _log_likelihood(params, rows, eta):
    return -jnp.logaddexp(0.0, -(2 * rows["y"] - 1) * eta)


LOCAL = LinearEffects(_offset, _columns, _log_likelihood, lambda params: jnp.diag(params["sd"]), SIZE)
MODEL = shardmc.Model(
    Matched(LOCAL),
    lambda params: -0.5 * params["mu"] ** 2,
    {"mu": (), "sd": shardmc.Parameter(SIZE, "positive")},
)
THETA = np.array([0.3, -0.5, -0.4, -0.3, -0.2])


@pytest.fixture(scope="module")
def rows() -> GroupedRows:
    with double_precision():
        rng = np.random.default_rng(0)
        z = rng.normal(size=(GROUPS, ROWS, SIZE))
        y = rng.random((GROUPS, ROWS)) < 0.5
        blank = {"sites": jnp.zeros((GROUPS, ROWS, 2))}
        leaves = {"z": jnp.asarray(z), "y": jnp.asarray(y, float)}
        found = GroupedRows(
            leaves, jnp.ones((GROUPS, ROWS)), jnp.arange(GROUPS), blank, None, joined=True, counted=True
        )
        sites = jax.jit(lambda rows: find_sites(LOCAL, MODEL.constrain(jnp.asarray(THETA)), rows)[1])(found)
        return replace(found, effects={"sites": sites})


@pytest.mark.slow
def test_scores_of_groups_are_derivatives_of_their_log_likelihoods(rows):
    with double_precision():
        theta = jnp.asarray(THETA)
        found = jax.jit(lambda rows: row_scores(MODEL.log_likelihood, theta, rows))(rows)
        expected = jax.jit(jax.jacfwd(lambda theta: MODEL.log_likelihood(theta, rows)))(theta).T
        assert found.shape == (5, GROUPS)
        np.testing.assert_allclose(found, expected, atol=1e-10)


def test_leverage_is_that_of_the_scores(rows):
    """w^2 s^T V s of each group, with V the inverse curvature: the frame's basis times its transpose."""
    with double_precision():
        basis = np.linalg.cholesky(np.diag([0.1, 0.2, 0.3, 0.4, 0.5]) + 0.05)
        weights, share = jnp.linspace(1.0, 3.0, GROUPS), 0.25
        frame = DeviceFrame(jnp.asarray(THETA), jnp.asarray(basis))
        found = jax.jit(RowLeverage(MODEL))(rows, weights, share, frame)
        scores = np.asarray(jax.jit(jax.jacfwd(lambda t: MODEL.log_likelihood(t, rows)))(jnp.asarray(THETA)))
        expected = (np.asarray(weights) * share) ** 2 * np.sum((scores @ basis) ** 2, axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-8)
