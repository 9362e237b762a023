"""The model of a design: log-likelihood and log prior in the columns' own units, and predictions from given draws."""

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import special, stats

from shardmc.data import Partition, as_source
from shardmc.formulas import posterior_predictive_check, predict
from shardmc.formulas.families import named_family
from shardmc.formulas.linear_model import _start, build_model, model_of, named_draws
from shardmc.formulas.preparing import prepare

N = 400


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "x": rng.normal(size=N),
            "g": rng.choice(["a", "b"], size=N),
            "year": rng.integers(2000, 2020, size=N),
            "w": rng.uniform(1, 2, size=N),
            "real": 1e4 + rng.normal(size=N),
            "zero": rng.integers(0, 2, size=N),
            "count": rng.poisson(2.0, size=N),
            "amount": rng.gamma(2.0, size=N),
            "level": rng.integers(0, 3, size=N),
        }
    )


NOTHING = {"offset": None, "exposure": None, "trials": None, "drop_missing": False}


def prepared(formula, data, family, **options):
    options = NOTHING | options
    return prepare(formula, as_source(data), named_family(family), None, **options)


CASES = {
    "gaussian": ("real ~ x + g + year", {}, lambda y, eta, p: stats.norm.logpdf(y, eta, p["sigma"])),
    "gaussian, offset": (
        "real ~ x",
        {"offset": "1e4 * w"},
        lambda y, eta, p: stats.norm.logpdf(y, eta, p["sigma"]),
    ),
    "student_t": ("real ~ 1", {}, lambda y, eta, p: stats.t.logpdf(y, p["nu"], eta, p["sigma"])),
    "bernoulli": ("zero ~ x * g", {}, lambda y, eta, p: stats.bernoulli.logpmf(y, special.expit(eta))),
    "binomial": (
        "count ~ 0 + x + g",
        {"trials": 50},
        lambda y, eta, p: stats.binom.logpmf(y, 50, special.expit(eta)),
    ),
    "poisson": (
        "count ~ year",
        {"exposure": "w", "offset": "0.1 * x"},
        lambda y, eta, p: stats.poisson.logpmf(y, np.exp(eta)),
    ),
    "negative_binomial": (
        "count ~ x",
        {},
        lambda y, eta, p: stats.nbinom.logpmf(y, p["shape"], p["shape"] / (p["shape"] + np.exp(eta))),
    ),
    "gamma": (
        "amount ~ x",
        {},
        lambda y, eta, p: stats.gamma.logpdf(y, p["shape"], scale=np.exp(eta) / p["shape"]),
    ),
    "ordinal": ("level ~ x + year", {}, None),
}


def ordinal(y, eta, p):
    points = np.concatenate([[-np.inf], p["cutpoint"], [np.inf]])
    k = y.astype(int)
    return np.log(special.expit(points[k + 1] - eta) - special.expit(points[k] - eta))


def linear_predictor(design, params, chunk):
    """In float64, from the parameters in the columns' own units."""
    eta = design.encoder.matrix(chunk) @ np.array([params[name] for name in design.names]).reshape(-1)
    offset = design.roles.offset_values(chunk)
    eta = eta + params.get("Intercept", 0.0)
    return eta if offset is None else eta + offset


def at(model, design, theta):
    """Named parameters of one theta, in the columns' own units."""
    draws = named_draws(design, model.constrain_draws(theta[None]))
    return {name: values[0] for name, values in draws.items()}


@pytest.mark.parametrize("case", CASES)
def test_log_densities_are_those_of_the_original_columns(case, table):
    formula, options, reference = CASES[case]
    found = prepared(formula, table, case.partition(",")[0], **options)
    design = found.design
    model = build_model(design, _start(found))
    rng = np.random.default_rng(1)
    # Steps of some posterior standard deviations about the start.
    size = np.concatenate([np.ones(model.dim - len(design.names)), 1 / design.scaling.sds])
    order = np.argsort([name in design.names for name in model.names], kind="stable")
    scale = np.empty(model.dim)
    scale[order] = size
    thetas = model.initial + 0.1 * scale * rng.normal(size=(4, model.dim))
    rows = design.rows(pa.Table.from_pandas(table))
    chunk = design.chunk(pa.Table.from_pandas(table))
    y = design.roles.response_values(chunk, design.family.levels_of_response)
    ours, exact, priors, exact_priors = [], [], [], []
    for theta in thetas:
        params = at(model, design, theta)
        ours.append(np.asarray(model.log_likelihood(theta, rows), np.float64))
        exact.append((reference or ordinal)(y, linear_predictor(design, params, chunk), params))
        priors.append(float(model.log_prior(theta)))
        exact_priors.append(log_prior(design, model, params, theta))
    change, wanted = np.diff(ours, axis=0), np.diff(exact, axis=0)
    np.testing.assert_allclose(change, wanted, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(np.diff(priors), np.diff(exact_priors), rtol=1e-3, atol=1e-3)


def log_prior(design, model, params, theta):
    """The same in float64 with SciPy; parameters that are not real bring the logarithm of the map's slope."""
    densities = {
        "normal": lambda x, a: stats.norm.logpdf(x, *a),
        "student_t": lambda x, a: stats.t.logpdf(x, *a),
        "exponential": lambda x, a: stats.expon.logpdf(x, scale=1 / a[0]),
        "gamma": lambda x, a: stats.gamma.logpdf(x, a[0], scale=1 / a[1]),
    }
    middle = sum(m * params[name] for name, m in zip(design.names, design.scaling.means, strict=True))
    total = 0.0
    for name, prior in design.priors.items():
        value = params[name]
        if name == "Intercept":
            value = value + middle
        elif name == "cutpoint":
            value = value - middle
            total += theta[1]  # c_1 = c_0 + e^theta
        elif name in design.family.auxiliaries:
            total += np.log(value)
        total += densities[prior.name](value, prior.arguments).sum()
    return total


def test_the_same_formula_on_the_same_table_is_the_same_model(table):
    """So its programs are compiled once; another table or formula makes another model."""
    first = model_of(prepared("count ~ x + g", table, "poisson"))
    assert model_of(prepared("count ~ x + g", table.copy(), "poisson")) is first
    assert model_of(prepared("count ~ x + g", table.assign(x=2 * table.x), "poisson")) is not first
    assert model_of(prepared("count ~ x", table, "poisson")) is not first
    assert model_of(prepared("count ~ x + g", table, "negative_binomial")) is not first


def test_a_family_of_ones_own_does_not_share_the_model_of_its_namesake(table):
    class Poisson(type(named_family("poisson"))):  # type: ignore[misc]
        """With another likelihood, but the name and options of the one it inherits from."""

    mine, theirs = (
        prepare("count ~ x", as_source(table), family, None, **NOTHING)
        for family in (Poisson(), named_family("poisson"))
    )
    assert model_of(mine) is not model_of(theirs)


def test_models_travel(table):
    found = prepared("count ~ x + C(g)", table, "poisson")
    found.design.rows(pa.Table.from_pandas(table))  # the encoder has worked already
    model = build_model(found.design, _start(found))
    rows = found.design.rows(pa.Table.from_pandas(table))
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(
        copied.log_likelihood(model.initial, rows), model.log_likelihood(model.initial, rows)
    )
    again = build_model(prepared("count ~ x + C(g)", table, "poisson").design, _start(found))
    small = prepared("count ~ x", table, "poisson")
    other = build_model(small.design, _start(found)).fingerprint(small.source.row_shapes())
    assert again.fingerprint(rows) == model.fingerprint(rows) != other


def test_rows_can_be_stratified_and_weighed_by_columns(table):
    source = prepared("count ~ x", table, "poisson").source
    blocks = source.split(Partition(4, stratify="g", weights="w"), 0)
    assert blocks.num_shards == 4
    assert blocks.num_rows == N


def posterior_with(found, draws):
    """As much of a posterior as predictions need."""
    regression = SimpleNamespace(design=found.design.to_dict())
    count = len(next(iter(draws.values())))
    return SimpleNamespace(regression=regression, draws=draws, theta=np.zeros((count, 1)))


def test_ordered_levels_are_predicted_by_their_probabilities(table):
    found = prepared("level ~ x", table, "ordinal")
    cutpoints = np.array([[-1.0, 1.0], [-1.2, 1.1]])
    posterior = posterior_with(found, {"cutpoint": cutpoints, "x": np.array([0.5, 0.7])})
    new = {"x": np.array([0.0, 3.0])}
    draws = predict(posterior, new, kind="draws")
    assert draws.shape == (2, 2, 3)
    np.testing.assert_allclose(draws.sum(axis=-1), 1)
    np.testing.assert_allclose(draws[0, 1, 0], special.expit(-1 - 1.5))
    mean = predict(posterior, new, kind="mean")
    assert list(mean.columns) == ["0", "1", "2"]
    np.testing.assert_allclose(mean.to_numpy(), draws.mean(axis=0))
    assert "2 upper" in predict(posterior, new).columns
    seen = predict(
        posterior_with(found, {n: np.repeat(v, 500, 0) for n, v in posterior.draws.items()}), new, "response"
    )
    # 1,000 simulated levels: each share scatters by less than 0.016.
    np.testing.assert_allclose(seen.to_numpy(), draws.mean(axis=0), atol=6 * 0.016)
    checked = posterior_predictive_check(posterior, table)
    assert "share of 1" in checked.index


def test_trials_offsets_and_models_of_an_intercept_alone(table):
    data = table.assign(n=20)
    found = prepared("count ~ 0 + x", data, "binomial", trials="n")
    posterior = posterior_with(found, {"x": np.array([0.5, 0.5])})
    mean = predict(posterior, {"x": np.array([1.0]), "n": np.array([40])}, kind="mean")["mean"]
    np.testing.assert_allclose(mean, 40 * special.expit(0.5))
    found = prepared("count ~ 1", table, "poisson", exposure="w")
    posterior = posterior_with(found, {"Intercept": np.array([0.1, 0.1])})
    np.testing.assert_allclose(
        predict(posterior, {"w": np.array([2.0, 3.0])}, "mean")["mean"], np.exp(0.1) * np.array([2.0, 3.0])
    )
    found = prepared("real ~ 1", table, "gaussian")
    posterior = posterior_with(found, {"Intercept": np.array([1.0, 3.0]), "sigma": np.array([1.0, 1.0])})
    np.testing.assert_allclose(predict(posterior, {"any": np.zeros(3)}, "mean")["mean"], [2.0, 2.0, 2.0])
