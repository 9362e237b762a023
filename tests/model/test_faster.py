"""Faster ways to compute steps of a model: as exact as JAX's, found wherever they stand, and with JAX's derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.model import faster
from shardmc.model.faster import log1p, log1p_of_part, logarithms
from shardmc.model.shared import joined, split

ROWS = {
    "x": np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32) * 5,
    "y": np.arange(64, dtype=np.float32) % 2,
}
RANGES = {
    log1p_of_part: np.concatenate([np.linspace(0, 1, 200_001), np.logspace(-37, 0, 50_001)]),
    log1p: np.concatenate(
        [
            np.linspace(-1, 20, 200_001)[1:],
            np.logspace(-37, 38, 100_001),
            -np.logspace(-37, -1e-4, 50_001),
            -1 + np.logspace(-7, 0, 50_001),
        ]
    ),
}


def relative_error(function, x):
    """The largest, with numbers that single precision can hold."""
    x = x.astype(np.float32)
    exact = np.log1p(x.astype(float))
    found = np.asarray(jax.jit(function)(x), float)
    return np.max(np.abs(found - exact)[exact != 0] / np.abs(exact[exact != 0]))


@pytest.mark.parametrize("function", RANGES)
def test_logarithms_are_more_exact_than_those_of_jax(function):
    assert relative_error(function, RANGES[function]) < relative_error(jnp.log1p, RANGES[function]) < 3e-7


def test_a_polynomial_outside_its_range_is_seen():
    # The control: the error of the polynomial for parts, a little beyond 1.
    assert relative_error(log1p_of_part, np.linspace(0, 1.5, 1_000)) > 1e-6


def test_special_values_are_those_of_jax():
    x = jnp.float32([-jnp.inf, -2, -1, -0.0, 0, 3.4e38, jnp.inf, jnp.nan])
    np.testing.assert_array_equal(jnp.isnan(log1p(x)), jnp.isnan(jnp.log1p(x)))
    np.testing.assert_allclose(log1p(x), jnp.log1p(x), rtol=2e-7)


@pytest.mark.parametrize("function", [log1p, log1p_of_part])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives(function, order):
    x, own, theirs = jnp.linspace(0, 1, 11), function, jnp.log1p
    for _ in range(order):
        own, theirs = jax.grad(own), jax.grad(theirs)
    np.testing.assert_allclose(jax.vmap(own)(x), jax.vmap(theirs)(x), rtol=1e-6)


def chosen(function, *args):
    """Which ways are taken for the steps of a function."""
    ways = logarithms(jax.make_jaxpr(function)(*args).jaxpr)
    own = (log1p, log1p_of_part, faster._with_its_derivative)
    found = [way.args[0] if hasattr(way, "args") else way for way in ways.values()]
    return [way if way in own else "log" for way in found]


MANY = jnp.linspace(-3, 3, 7)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a: jnp.log1p(jnp.exp(-jnp.abs(a))), [log1p_of_part]),
        (lambda a: jnp.log1p(jnp.exp(-a)), [log1p]),
        (lambda a: jnp.log1p(jnp.exp(jnp.abs(a))), [log1p]),
        (lambda a: jnp.log1p(-jnp.exp(-jnp.abs(a))), [log1p]),
        (lambda a: jnp.log1p(a**2 / 4), [log1p]),
        (lambda a: jnp.logaddexp(0.0, a), [faster._with_its_derivative]),
        (lambda a: jnp.log(1 + jnp.exp(-jnp.abs(a))), ["log"]),
        (lambda a: jnp.log(jnp.exp(-jnp.abs(a)) + 1.0), ["log"]),
        (lambda a: jnp.log(2 + jnp.exp(-jnp.abs(a))), []),
        (lambda a: jnp.log(1 + jnp.exp(-a)), []),
        (lambda a: jnp.log(1 + a), []),
        (lambda a: jnp.log1p(jnp.sum(a)), []),  # a single number
    ],
)
def test_which_steps_are_found(function, expected):
    assert chosen(function, MANY) == expected


def test_double_precision_is_left_alone():
    with jax.enable_x64(True):
        assert chosen(jnp.log1p, jnp.ones(3)) == []


LIKELIHOODS = {
    "by hand": lambda eta, y: y * eta - jnp.maximum(eta, 0) - jnp.log1p(jnp.exp(-jnp.abs(eta))),
    "by hand, plain": lambda eta, y: y * eta - jnp.maximum(eta, 0) - jnp.log(1 + jnp.exp(-jnp.abs(eta))),
    "logaddexp": lambda eta, y: y * eta - jnp.logaddexp(0.0, eta),
    "softplus": lambda eta, y: -jax.nn.softplus((1 - 2 * y) * eta),
    "log_sigmoid": lambda eta, y: jax.nn.log_sigmoid((2 * y - 1) * eta),
    "student": lambda eta, y: -2.5 * jnp.log1p((y - eta) ** 2 / 4),
}


def model_of(terms, compiled=False):
    def log_likelihood(params, rows):
        return terms(rows["x"] @ params["b"], rows["y"])

    if compiled:
        log_likelihood = jax.jit(log_likelihood)
    return shardmc.Model(log_likelihood, lambda params: -0.5 * jnp.sum(params["b"] ** 2), {"b": 3})


def total(density, rows=ROWS):
    return lambda theta: jnp.sum(density.log_likelihood(theta, rows))


@pytest.fixture
def _no_library(monkeypatch):
    """As if XLA had no library of fused kernels, whatever version is installed."""
    monkeypatch.setattr("shardmc.model.shared.fuses_on_cpu", lambda: False)


@pytest.mark.usefixtures("_no_library")
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_values_and_derivatives_of_likelihoods(name):
    model = model_of(LIKELIHOODS[name])
    kind, numbers = split(model, ROWS)
    own, theirs = total(joined(kind, numbers)), total(model)
    points = jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)), jnp.float32)
    for of in (lambda f: f, jax.grad, jax.hessian):
        found, expected = jax.vmap(of(own))(points), jax.vmap(of(theirs))(points)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    traced = str(jax.make_jaxpr(own)(points[0]))
    assert "= log1p" not in traced, traced  # no step of JAX's own is left
    assert "= log " not in traced, traced


def test_a_likelihood_that_its_author_compiled_is_the_same_program():
    plain, compiled = (split(model_of(LIKELIHOODS["logaddexp"], by), ROWS)[0] for by in (False, True))
    assert plain == compiled


def test_a_derivative_of_the_authors_own_is_kept():
    @jax.custom_jvp
    def cost(a):
        return jnp.log1p(jnp.exp(-jnp.abs(a)))

    @cost.defjvp
    def _(primals, tangents):
        return cost(*primals), 7 * tangents[0]

    kind, numbers = split(model_of(lambda eta, y: cost(eta)), ROWS)
    gradient = jax.grad(total(joined(kind, numbers)))(jnp.zeros(3))
    np.testing.assert_allclose(gradient, 7 * ROWS["x"].sum(axis=0), rtol=1e-4)
