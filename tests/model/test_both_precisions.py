"""Every kind of model in single and in double precision, in one process, with NumPy arrays that it holds."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import betaln, gammaln

import shardmc
from shardmc.data import as_source
from shardmc.formulas.families import FAMILIES, named_family
from shardmc.formulas.linear_model import model_of
from shardmc.formulas.preparing import prepare
from shardmc.model import shared
from shardmc.model.precision import double_precision

ROWS = 3_000
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 2))
SCALES = np.array([0.3, -0.2])  # 64 bits, held by the models below
INDEX = np.array([1, 0])
UNIT = np.array(2.0)
Y = (X * SCALES) @ [1.0, 2.0] + RNG.normal(size=ROWS)


class Held:
    """A likelihood that is an object."""

    def __init__(self):
        self.scales = SCALES.copy()

    def __call__(self, params, rows):
        return -0.5 * (rows["y"] - (rows["x"] * self.scales) @ params["beta"][INDEX]) ** 2


def plain():
    return shardmc.Model(
        lambda p, rows: -0.5 * (rows["y"] - (rows["x"] * SCALES) @ p["beta"]) ** 2 / UNIT,
        lambda p: -0.5 * jnp.sum((p["beta"] - SCALES) ** 2) / UNIT,
        {"beta": 2},
        derived=lambda p: {"scaled": p["beta"] * SCALES},
    )


def an_object():
    return shardmc.Model(Held(), None, {"beta": 2})


def of_numpyro():
    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(SCALES, UNIT))
        numpyro.deterministic("scaled", beta * SCALES)
        numpyro.sample("y", dist.Normal((x * SCALES) @ beta[INDEX], UNIT), obs=y)

    return shardmc.from_numpyro(model)


def of_pymc():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        x, y = pm.Data("x", X), pm.Data("y", Y)
        beta = pm.Normal("beta", SCALES, 10, shape=2)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("response", (x * SCALES) @ beta, sigma, observed=y)
    return shardmc.from_pymc(model, rows=["x", "y"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [plain, an_object, of_numpyro, of_pymc],
)
def test_a_model_that_holds_arrays_is_fitted_in_both_precisions(make):
    model, options = make(), {"shards": 2, "draws": 100, "seed": 4, "check": False}
    data = {"x": X, "y": Y}
    means = []
    for precision in ("auto", "double"):
        posterior = shardmc.fit(model, data, precision=precision, **options)
        means.append(posterior.mode)
        assert posterior.plan.precision == {"auto": "single"}.get(precision, precision)
    # The same posterior: modes are found to 0.01 of its standard deviations.
    sd = np.sqrt(np.diag(np.linalg.inv(posterior.curvature)))
    assert np.abs((means[0] - means[1]) / sd).max() < 0.02


@pytest.mark.parametrize("make", [plain, of_numpyro])
def test_the_log_likelihood_has_the_precision_it_is_computed_in(make):
    rows = {"x": X[:50].astype(np.float32), "y": Y[:50].astype(np.float32)}
    model = make().bind(rows)
    values = {}
    for double in (False, True, False, True):
        with double_precision(double):
            theta = jnp.asarray(np.ones(model.dim))
            values[double] = jax.jit(lambda t, r: model.log_likelihood(t, r))(
                theta, jax.tree.map(jnp.asarray, rows)
            )
            assert values[double].dtype == (jnp.float64 if double else jnp.float32)
    assert 0 < np.abs(np.asarray(values[True]) - np.asarray(values[False])).max() < 1e-5


@pytest.mark.parametrize("alone", [True, False])
def test_threads_trace_a_model_that_holds_arrays_one_after_the_other(alone, monkeypatch):
    """The control has no lock. While one thread traces in single precision, the other cannot trace in double."""
    if not alone:
        monkeypatch.setattr(shared, "TRACING", nullcontext())
    scales, begun, traced = SCALES.copy(), threading.Event(), threading.Event()

    def log_likelihood(p, rows):
        predictor = rows["x"] @ (p["beta"] * scales)
        if jnp.result_type(float) == jnp.float64:
            assert begun.is_set()
            traced.set()
        else:
            begun.set()
            traced.wait(0.5)  # the other thread has begun, and waits for this one if it must
        return -0.5 * (rows["y"] - predictor) ** 2

    model = shardmc.Model(log_likelihood, None, {"beta": 2})
    rows = {"x": np.ones((8, 2), np.float32), "y": np.ones(8, np.float32)}

    def trace(double):
        with double_precision(double):
            return type(shared.split(model, rows)[0])

    with ThreadPoolExecutor(2) as threads:
        single = threads.submit(trace, False)
        assert begun.wait(60)
        double = threads.submit(trace, True)
    assert single.result() is shared.SharedDensity
    assert (double.result() is shared.SharedDensity) == alone


@pytest.mark.slow
def test_a_compiled_part_that_holds_arrays_stays_in_single_precision_and_says_so():
    scales = SCALES.copy()
    part = jax.jit(lambda beta: jnp.sum(beta * scales))
    model = shardmc.Model(
        lambda p, rows: -0.5 * (rows["y"] - rows["x"] @ p["beta"] - part(p["beta"])) ** 2, None, {"beta": 2}
    )
    posterior = shardmc.fit(model, {"x": X, "y": Y}, shards=2, draws=100)
    assert posterior.plan.precision == "single"
    assert "cannot be computed in double precision" in posterior.plan.precision_reason


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_formulas_in_both_precisions(family):
    rng = np.random.default_rng(5)
    x = rng.normal(size=ROWS)
    mean = np.exp(0.3 + 0.2 * x)
    response = {
        "bernoulli": rng.random(ROWS) < 0.5,
        "binomial": rng.binomial(5, 0.4, ROWS),
        "ordinal": rng.integers(0, 3, ROWS),
        "poisson": rng.poisson(mean),
        "negative_binomial": rng.poisson(mean * rng.gamma(2.0, 0.5, ROWS)),
        "zero_inflated_poisson": rng.poisson(mean) * (rng.random(ROWS) < 0.7),
        "zero_inflated_negative_binomial": rng.poisson(mean * rng.gamma(2.0, 0.5, ROWS))
        * (rng.random(ROWS) < 0.7),
        "gamma": rng.gamma(2.0, mean / 2),
        "lognormal": rng.lognormal(0.2 * x),
        "inverse_gaussian": rng.wald(mean, 2.0),
        "weibull": mean * rng.weibull(1.5, ROWS),
        "beta": rng.beta(2.0, 3.0, ROWS),
        "categorical": rng.integers(0, 3, ROWS),
    }.get(family, x + rng.standard_t(5, ROWS))
    whole = family in ("ordinal", "categorical")
    counts = {name: rng.poisson(2.0, ROWS) for name in "abc"}
    table = {"x": x, "y": np.asarray(response).astype(int if whole else float), **counts}
    prepared = prepare(
        "c(a, b, c) ~ x" if family == "multinomial" else "y ~ x",
        as_source(table),
        named_family(family),
        None,
        offset=None,
        exposure=None,
        trials=trials_of(family),
        drop_missing=False,
    )
    model, rows = model_of(prepared), prepared.source.sample(100, 0)
    densities = []
    for double in (False, True):
        with double_precision(double):
            theta, few = jnp.asarray(model.initial + 0.1), jax.tree.map(jnp.asarray, rows)
            both = jax.jit(lambda t, r: jnp.append(model.log_likelihood(t, r), model.log_prior(t)))(
                theta, few
            )
            assert both.dtype == (jnp.float64 if double else jnp.float32)
            densities.append(np.asarray(both, np.float64))
    assert 0 < np.abs(densities[0] - densities[1]).max() < 1e-3


def trials_of(family):
    return 5 if family == "binomial" else None


def test_derivatives_of_the_smaller_of_two_numbers_survive_compilation():
    """Of a beta-binomial likelihood, whose log beta function sorts its arguments, at many points at once.

    The gradient of gammaln is the reference: the log beta function as a sum of three. XLA computes the arguments twice
    where it fuses, not always to the same last bit; the uncorrected function, the negative control, loses
    derivatives by that, if not on every machine.
    """
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=20_000), rng.binomial(10, 0.6, size=20_000)

    def log_likelihood(beta, params, rows):
        x, y = rows
        mean, concentration = (
            jax.nn.sigmoid(params["eta"][0] + params["eta"][1] * x),
            jnp.exp(params["eta"][2]),
        )
        one, two = mean * concentration, (1 - mean) * concentration
        return beta(y + one, 10 - y + two) - beta(two, one)

    def by_gammaln(a, b):
        return gammaln(a) + gammaln(b) - gammaln(a + b)

    with double_precision():
        rows = jnp.asarray(x), jnp.asarray(y, jnp.float64)
        points = jnp.asarray([0.5, 0.4, 5.3] + 1e-3 * rng.normal(size=(4, 3)))
        slopes = []
        for beta in (betaln, by_gammaln):
            model = shardmc.Model(partial(log_likelihood, beta), None, {"eta": 3})
            slope = jax.vmap(jax.grad(lambda t, model=model: jnp.sum(model.log_likelihood(t, rows))))
            slopes.append(np.asarray(jax.jit(slope)(points)))
    # Sums of 20,000 terms of size 100, each to about 1e-7.
    np.testing.assert_allclose(slopes[0], slopes[1], atol=0.05)
