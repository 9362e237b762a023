"""Derivatives by linear predictors equal those by parameters; models without such predictors are left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.model.predictors import _predictors, row_derivatives
from shardmc.model.shared import joined, split

RNG = np.random.default_rng(0)
ROWS = {
    "x": RNG.normal(size=(50, 3)).astype(np.float32),
    "z": RNG.normal(size=(50, 2)).astype(np.float32),
    "y": RNG.poisson(2, size=50).astype(np.float32),
    "g": RNG.integers(0, 3, size=50),
    "g3": RNG.integers(0, 3, size=(50, 3)),
}


def logistic(p, r):
    eta = r["x"] @ p["b"]
    return (r["y"] > 1) * eta - jnp.logaddexp(0.0, eta)


def poisson(p, r):
    eta = p["a"] + r["x"] @ p["b"] + 0.1 * r["z"][:, 0]
    return r["y"] * eta - jnp.exp(eta)


def two_products(p, r):
    eta, zero = r["x"] @ p["b"], r["z"] @ p["c"]
    return jnp.where(
        r["y"] == 0,
        jnp.logaddexp(zero, -jnp.exp(eta)) - jnp.logaddexp(0.0, zero),
        r["y"] * eta - jnp.exp(eta) - jnp.logaddexp(0.0, zero),
    )


def normal(p, r):
    return -0.5 * ((r["y"] - r["x"] @ p["b"]) / p["s"]) ** 2 - jnp.log(p["s"])


def scaled(p, r):
    """As formulas write it: an intercept and scaled coefficients joined to one vector, and a scale."""
    matrix = jnp.concatenate([r["x"] / 3, jnp.ones((len(r["y"]), 1))], axis=1)
    coefficients = jnp.concatenate(
        [-p["b"] * jnp.asarray(np.array([1.0, 2.0, 4.0])), jnp.reshape(p["a"] / 7, (1,))]
    )
    return -0.5 * ((r["y"] - matrix @ coefficients) / p["s"]) ** 2 - jnp.log(p["s"])


def columns(p, r):
    """Rows that the matrix has as its columns."""
    return -0.5 * (r["y"] - r["x"].T.T @ p["b"][::1] - jnp.squeeze(r["z"].T[:1]) * 0) ** 2


def unused_product(p, r):
    eta = r["x"] @ p["b"]
    r["z"] @ p["c"]
    return r["y"] * eta - jnp.exp(eta)


def doubled(r):
    return jnp.concatenate([r["x"], 2 * r["x"]])


def short_numbers(p, r):
    short = jnp.bfloat16
    eta = jnp.dot(r["x"].astype(short), p["b"].astype(short), preferred_element_type=jnp.float32)
    return -0.5 * (r["y"] - eta) ** 2


TURN, AT_GROUPS = np.linalg.qr(RNG.normal(size=(3, 3)))[0], RNG.normal(size=(50, 3))
COUNTS = {"b": 3}
FOUND = {
    # The model, its parameters, and the number of predictors and of parameters that count by themselves.
    "logistic": (logistic, COUNTS, 1, 0),
    "poisson": (poisson, {"a": (), **COUNTS}, 1, 1),
    "two products": (two_products, {**COUNTS, "c": 2}, 2, 0),
    "normal": (normal, {**COUNTS, "s": "positive"}, 1, 1),
    "scaled": (scaled, {"a": (), **COUNTS, "s": "positive"}, 1, 1),
    "columns": (columns, COUNTS, 1, 0),
    "compiled": (jax.jit(poisson), {"a": (), **COUNTS}, 1, 1),
    "other coefficients": (lambda p, r: -0.5 * (r["y"] - r["x"] @ (TURN @ p["b"])) ** 2, COUNTS, 1, 0),
    "a product that no row needs": (unused_product, {**COUNTS, "c": 2}, 1, 0),
    "column by column": (
        lambda p, r: -0.5 * (r["y"] - r["x"] @ p["b"] - p["m"].reshape(4, order="F")[1]) ** 2,
        {**COUNTS, "m": (2, 2)},
        1,
        1,
    ),
    "compiled step": (lambda p, r: jax.nn.relu(r["x"] @ p["b"]) - (r["x"] @ p["b"]) ** 2, COUNTS, 2, 0),
}
LEFT_ALONE = {
    "no product": (lambda p, r: -0.5 * (r["y"] - p["a"]) ** 2, {"a": ()}),
    "not linear": (lambda p, r: -0.5 * (r["y"] - r["x"] @ jnp.exp(p["b"])) ** 2, COUNTS),
    "squared": (lambda p, r: -0.5 * (r["y"] - r["x"] @ (p["b"] * p["b"])) ** 2, COUNTS),
    "levels": (lambda p, r: -0.5 * (r["y"] - r["x"] @ p["b"] - p["u"][r["g"]]) ** 2, {**COUNTS, "u": 3}),
    "groups of 50 entries": (lambda p, r: -0.5 * (r["y"] - (AT_GROUPS @ p["b"])[r["g"]]) ** 2, COUNTS),
    "groups of 3 entries": (lambda p, r: -0.5 * (r["y"] - (TURN @ p["b"])[r["g"]]) ** 2, COUNTS),
    "two rows for each": (
        lambda p, r: -0.5 * (r["y"] - jnp.sum((doubled(r) @ p["b"]).reshape(2, -1), 0)) ** 2,
        COUNTS,
    ),
    "another order": (lambda p, r: -0.5 * (r["y"] - (r["x"][::-1] @ p["b"])[::-1]) ** 2, COUNTS),
    "order of a loop": (
        lambda p, r: jax.lax.map(lambda k: -0.5 * (r["y"][k] - (r["x"] @ p["b"])[k]) ** 2, jnp.arange(50)),
        COUNTS,
    ),
    "whole numbers": (lambda p, r: -0.5 * (r["y"] - r["g3"] @ p["b"].astype(int)) ** 2, COUNTS),
    "many classes": (lambda p, r: jax.nn.log_softmax(r["x"] @ p["m"])[:, 0], {"m": (3, 2)}),
    "few parameters": (
        lambda p, r: -0.5 * (r["y"] - p["a"] - r["z"][:, :1] @ p["c"]) ** 2,
        {"a": (), "c": 1},
    ),
}


def density(log_likelihood, parameters):
    model = shardmc.Model(log_likelihood, lambda p: -0.5 * sum(jnp.sum(v**2) for v in p.values()), parameters)
    return model, joined(*split(model, ROWS))


def setting(dim):
    rng = np.random.default_rng(dim)
    theta, basis = 0.3 * rng.normal(size=dim), 0.2 * rng.normal(size=(dim, dim))
    return jnp.float32(theta), jnp.float32(basis), jnp.float32(rng.random(50))


@pytest.mark.parametrize("name", FOUND)
def test_derivatives_are_those_by_parameters(name):
    log_likelihood, parameters, *counts = FOUND[name]
    model, shared = density(log_likelihood, parameters)
    theta, basis, weights = setting(model.dim)
    found = _predictors(shared.likelihood.program(theta, ROWS).jaxpr, model.dim)
    assert [len(each) for each in found] == counts
    by_rows = row_derivatives(shared, theta, basis, ROWS)

    def rows_at(u):
        return model.log_likelihood(theta + basis @ u, ROWS)

    def total(u):
        return jnp.sum(weights * rows_at(u))

    zero = jnp.zeros(model.dim)
    close = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(by_rows.values, rows_at(zero), **close)
    np.testing.assert_allclose(by_rows.gradient(weights), jax.grad(total)(zero), **close)
    np.testing.assert_allclose(by_rows.hessian(weights), jax.hessian(total)(zero), **close)
    slopes, bends = by_rows.by_row()
    np.testing.assert_allclose(slopes, jax.jacfwd(rows_at)(zero), **close)
    np.testing.assert_allclose(bends, jnp.diagonal(jax.hessian(rows_at)(zero), axis1=1, axis2=2), **close)
    step = jnp.float32(np.random.default_rng(1).normal(size=model.dim))
    first, second, ahead, behind = by_rows.towards(step)
    np.testing.assert_allclose(first, jax.jacfwd(rows_at)(zero) @ step, **close)
    np.testing.assert_allclose(second, step @ jax.hessian(rows_at)(zero) @ step, **close)
    np.testing.assert_allclose(ahead, rows_at(step), **close)
    np.testing.assert_allclose(behind, rows_at(-step), **close)


def test_products_keep_their_type():
    """Of short numbers with a longer result: the other steps need the type of the model's own product."""
    model, shared = density(short_numbers, COUNTS)
    theta, basis, weights = setting(model.dim)
    by_rows = row_derivatives(shared, theta, basis, ROWS)
    np.testing.assert_array_equal(by_rows.values, model.log_likelihood(theta, ROWS))
    assert np.isfinite(by_rows.hessian(weights)).all()


@pytest.mark.parametrize("name", ["poisson", "two products", "normal"])
def test_without_a_mixed_derivative_they_would_differ(name):
    log_likelihood, parameters, *_ = FOUND[name]
    model, shared = density(log_likelihood, parameters)
    theta, basis, weights = setting(model.dim)
    by_rows = row_derivatives(shared, theta, basis, ROWS)
    right = by_rows.hessian(weights)
    by_rows.bends[0, 1] = jnp.zeros(50)
    assert np.abs(by_rows.hessian(weights) - right).max() > 0.01 * np.abs(right).max()


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_other_models_are_left_alone(name):
    model, shared = density(*LEFT_ALONE[name])
    theta, basis, _ = setting(model.dim)
    assert row_derivatives(shared, theta, basis, ROWS) is None
    assert row_derivatives(model, theta, basis, ROWS) is None  # a model whose steps are not known


def test_in_double_precision():
    log_likelihood, parameters, *_ = FOUND["normal"]
    with jax.enable_x64(True):
        rows = {name: values.astype(float) if name != "g" else values for name, values in ROWS.items()}
        model = shardmc.Model(log_likelihood, lambda p: -(p["s"] ** 2), parameters)
        shared = joined(*split(model, rows))
        theta, basis, weights = (a.astype(float) for a in setting(4))
        by_rows = row_derivatives(shared, theta, basis, rows)
        expected = jax.hessian(lambda u: weights @ model.log_likelihood(theta + basis @ u, rows))(
            jnp.zeros(4)
        )
        np.testing.assert_allclose(by_rows.hessian(weights), expected, rtol=1e-12, atol=1e-12)
