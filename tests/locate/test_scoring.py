"""Modes of shards, and gradients for the certificate, from curvatures that were computed once at the mode."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.data import Partition, as_source
from shardmc.locate import SampledGradients, gradients, locate, locate_shards, terms
from shardmc.locate.ascent import Quadratic
from shardmc.locate.shard_modes import modes_by_scores
from shardmc.locate.terms import Evaluator, differenced, expanded

ENGINE = shardmc.Local(workers=1)


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6_000, 3)).astype(np.float32)
    x[:, 0] = 1.0
    y = (rng.random(6_000) < 1 / (1 + np.exp(-x @ [0.5, 1.0, -2.0]))).astype(np.float32)

    def log_likelihood(params, rows):
        eta = rows["x"] @ params["b"]
        return rows["y"] * eta - jnp.logaddexp(0.0, eta)

    model = shardmc.Model(log_likelihood, lambda params: -0.5 * jnp.sum(params["b"] ** 2), {"b": (3,)})
    blocks = as_source({"x": x, "y": y}).split(Partition(10), seed=0)
    return model, blocks, locate(model, blocks, ENGINE, shard_curvatures=True)


def test_modes_of_shards_from_scores_are_those_of_newton_steps(fitted):
    model, blocks, mode = fitted
    scored = locate_shards(model, blocks, mode, ENGINE)
    newton = locate_shards(model, blocks, replace(mode, shard_curvatures=None), ENGINE)
    assert scored.found.all()
    sd = np.sqrt(np.diag(np.linalg.inv(mode.curvature)))
    assert np.abs((scored.shard_modes - newton.shard_modes) / sd).max() < 0.02
    assert np.abs((scored.shard_modes - mode.theta) / sd).max() > 1  # they differ


def test_curvatures_of_shards_are_those_at_their_own_modes(fitted):
    """They scale the proposals and the moved draws. Those at the mode of all rows are a tenth off."""
    model, blocks, mode = fitted
    scored = locate_shards(model, blocks, mode, ENGINE)
    newton = locate_shards(model, blocks, replace(mode, shard_curvatures=None), ENGINE)
    basis = mode.frame.basis
    right, others = (
        np.abs(np.linalg.eigvalsh(basis.T @ (found - newton.shard_curvatures) @ basis)).max()
        for found in (scored.shard_curvatures, mode.shard_curvatures)
    )
    assert right < 0.03 < 0.1 < others


def test_curvatures_from_scores_allow_for_a_wrong_model():
    """Rows with twice the sd of the model: products of scores sum to four times the curvature."""
    y = 2 * np.random.default_rng(1).normal(size=16_000).astype(np.float32)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    blocks = as_source(y).split(Partition(4), seed=0)
    mode = locate(model, blocks, ENGINE, shard_curvatures=True)
    raw = Evaluator(model, blocks, ENGINE).from_scores(mode.frame).curvature
    assert raw[0, 0] == pytest.approx(4.0, abs=0.3)
    searches, _ = modes_by_scores(model, blocks, mode.frame, ENGINE)
    assert all(search.arrived for search in searches)
    assert np.abs([search.curvature - 1 for search in searches]).max() < 0.15
    found = locate_shards(model, blocks, mode, ENGINE)
    exact = locate_shards(model, blocks, replace(mode, shard_curvatures=None), ENGINE)
    assert np.abs(found.shard_curvatures / 16_000 - 1).max() < 0.15
    assert np.abs(found.shard_modes - exact.shard_modes).max() < 0.02 / np.sqrt(16_000)


def test_curvature_from_differences_of_gradients(monkeypatch):
    """Of a skewed density, whose third derivatives are about 1. Steps of one sd are too long."""

    def log_density(u):
        v = jnp.array([[1.0, 0.3], [-0.4, 1.2]]) @ u
        return jnp.sum(v - jnp.exp(v))

    at = jnp.array([0.1, -0.2])
    exact, found = expanded(log_density, at), differenced(log_density, at)
    assert found[0] == exact[0]
    np.testing.assert_allclose(found[1], exact[1], rtol=1e-6)
    np.testing.assert_allclose(found[2], exact[2], rtol=0.04, atol=0.01)
    monkeypatch.setattr(terms, "_DIFFERENCE", 1.0)
    assert np.abs(differenced(log_density, at)[2] / exact[2] - 1).max() > 0.3


def test_products_of_scores_sum_to_about_the_curvature(fitted):
    model, blocks, mode = fitted
    terms = Evaluator(model, blocks, ENGINE).from_scores(mode.frame)
    assert np.abs(terms.gradient).max() < 0.02
    values = np.linalg.eigvalsh(terms.curvature)  # in the frame the curvature is the identity
    assert values.min() > 0.85
    assert values.max() < 1.15
    assert Quadratic.of(terms, 1e-6, whitened=True).definite


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_gradients_of_the_certificate_need_no_exact_curvatures(fitted, factor):
    model, blocks, mode = fitted
    points = mode.frame.to_theta(np.random.default_rng(1).normal(size=(5, 3)))
    exact = gradients(model, blocks, mode, points, ENGINE) @ mode.frame.basis
    found = SampledGradients(model, blocks, mode, ENGINE, range(8), factor * mode.shard_curvatures)(points)
    assert found.more is not None
    assert found.noise is not None
    assert np.allclose(found.more().values @ mode.frame.basis, exact, atol=2e-3)
    noise = np.sqrt(np.sum((found.noise @ mode.frame.basis) ** 2, axis=0))
    assert np.abs(found.values @ mode.frame.basis - exact).max() < 4 * noise.max()
