"""Solves and factors inside a model: the same numbers as LAPACK's, and no program that waits for ever."""

from __future__ import annotations

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax

import shardmc
from shardmc.model.precision import Rewritten, cholesky, double_precision, solve


def _matrices(count: int, batch: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    root = rng.normal(size=(batch, count, count))
    return root @ root.transpose(0, 2, 1) + count * np.eye(count), rng.normal(size=(batch, count, 3))


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("left_side", [True, False])
def test_solve_is_lapacks(count, left_side) -> None:
    a, b = _matrices(count)
    b = b if left_side else b.transpose(0, 2, 1)
    flags = ("lower", "transpose_a", "unit_diagonal")
    options = [dict(zip(flags, values, strict=True)) for values in product([True, False], repeat=3)]

    @jax.jit
    def solutions(a, b):
        given = [{"left_side": left_side, **option} for option in options]
        return [(solve(a, b, **some), lax.linalg.triangular_solve(a, b, **some)) for some in given]

    with double_precision():
        for option, (found, expected) in zip(options, solutions(a, b), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9, err_msg=str(option))


@pytest.mark.parametrize("count", [1, 3, 20])
def test_cholesky_is_lapacks(count) -> None:
    a, _ = _matrices(count)
    with double_precision():
        factor = jax.jit(cholesky)
        np.testing.assert_allclose(factor(a), np.linalg.cholesky(a), rtol=1e-12, atol=1e-12)
        assert np.isnan(factor(-a)).all()


def _everything(a, b):
    """Solves and factors at several depths: in a scan, in a branch, under a function with its own derivative."""
    factor = jnp.linalg.cholesky(a)
    x = jax.scipy.linalg.solve_triangular(factor, b, lower=True)

    def step(total, scale):
        y = jax.scipy.linalg.cho_solve((scale * factor, True), b)
        return total + jnp.sum(y**2), jnp.sum(y)

    total, each = lax.scan(step, jnp.sum(x**2), jnp.array([1.0, 2.0]))
    branch = lax.cond(total > 0, lambda v: jnp.sum(jnp.linalg.cholesky(v)), jnp.sum, a)
    return total + jnp.sum(each) + branch + jax.nn.softplus(jnp.sum(x))


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_rewritten_function_and_its_derivatives(count) -> None:
    a, b = _matrices(count, batch=2)
    rewritten = Rewritten(_everything)
    with double_precision():
        a, b = jnp.asarray(a), jnp.asarray(b)
        found, expected = (jax.jit(jax.vmap(f))(a, b) for f in (rewritten, _everything))
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        found, expected = (jax.jit(jax.grad(f, argnums=1))(a[0], b[0]) for f in (rewritten, _everything))
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        program = str(jax.make_jaxpr(jax.hessian(lambda b: rewritten(a[0], b)))(b[0]))
    assert "triangular_solve" not in program
    assert "cholesky[" not in program


def test_a_function_without_linear_algebra_is_called_as_it_is() -> None:
    calls = []

    def plain(x):
        calls.append(x)
        return 2 * x

    rewritten = Rewritten(plain)
    for _ in range(3):
        assert rewritten(jnp.ones(())) == 2
    assert len(calls) == 4  # looked at once


def covariance_model(y=None):
    dim = y.shape[1]
    m = numpyro.sample("m", dist.Normal(0, 5).expand([dim]).to_event(1))
    s = numpyro.sample("s", dist.HalfCauchy(2).expand([dim]).to_event(1))
    factor = numpyro.sample("L", dist.LKJCholesky(dim, 2))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.MultivariateNormal(m, scale_tril=s[:, None] * factor), obs=y)


@pytest.mark.slow
def test_a_covariance_model_ends() -> None:
    """It did not: both of XLA's threads waited for each other. Means are known in closed form, nearly."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(3000, 2)) @ np.array([[1.0, 0.0], [0.6, 0.8]]).T * [1.0, 3.0] + [1.0, -1.0]
    options = {"shards": 4, "draws": 1000, "check": False, "precision": "single"}
    posterior = shardmc.fit(shardmc.from_numpyro(covariance_model), {"y": y}, **options)
    # Six standard errors of a mean of 1,000 draws, of which half count: a false alarm in 10^8 runs.
    tolerance = 6 * y.std(axis=0) / np.sqrt(3000) / np.sqrt(500)
    assert (abs(posterior.draws["m"].mean(axis=0) - y.mean(axis=0)) < tolerance).all()
    assert not (abs(posterior.draws["m"].mean(axis=0) - y.mean(axis=0) - 0.05) < tolerance).all()
    np.testing.assert_allclose(posterior.draws["s"].mean(axis=0), y.std(axis=0), rtol=0.01)


@pytest.mark.slow
def test_a_plain_model_with_a_cholesky_factor_of_its_own() -> None:
    """A covariance matrix as a parameter: its factor is taken inside the log-likelihood."""
    rng = np.random.default_rng(1)
    y = rng.normal(size=(2000, 2)) * [1.0, 2.0]

    def log_likelihood(params, y):
        factor = jnp.linalg.cholesky(params["cov"])
        z = jax.scipy.linalg.solve_triangular(factor, y.T, lower=True)
        return -0.5 * jnp.sum(z**2, axis=0) - jnp.sum(jnp.log(jnp.diagonal(factor)))

    model = shardmc.Model(
        log_likelihood,
        lambda params: -0.5 * jnp.trace(params["cov"]) / 100,
        {"cov": shardmc.Parameter((2, 2), "positive_definite")},
    )
    posterior = shardmc.fit(model, y, shards=2, draws=500, check=False)
    np.testing.assert_allclose(posterior.draws["cov"].mean(axis=0), y.T @ y / len(y), rtol=0.05, atol=0.05)
