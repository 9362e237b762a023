"""What every family promises, whichever it is. A new family is one more row here."""

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from shardmc.data import as_source
from shardmc.errors import RunError
from shardmc.formulas.design import Design
from shardmc.formulas.families import (
    FAMILIES,
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Family,
    Gamma,
    Gaussian,
    InverseGaussian,
    Lognormal,
    Moments,
    Multinomial,
    NegativeBinomial,
    Ordinal,
    Poisson,
    ResponseSummary,
    StudentT,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
    family_from_dict,
)
from shardmc.formulas.linear_model import model_of
from shardmc.formulas.preparing import prepare
from shardmc.formulas.priors import Prior

ROWS = 400
ETA = np.linspace(-1, 1, ROWS)
TRIALS = np.full(ROWS, 5.0)
CUTPOINTS = np.array([-0.7, 0.4, 1.5])
FAMILY = {
    "gaussian": (Gaussian(), {"sigma": 0.7}),
    "bernoulli": (Bernoulli(), {}),
    "bernoulli, probit": (Bernoulli("probit"), {}),
    "bernoulli, cloglog": (Bernoulli("cloglog"), {}),
    "binomial": (Binomial(), {}),
    "binomial, probit": (Binomial("probit"), {}),
    "binomial, cloglog": (Binomial("cloglog"), {}),
    "poisson": (Poisson(), {}),
    "negative_binomial": (NegativeBinomial(), {"shape": 2.0}),
    "zero_inflated_poisson": (ZeroInflatedPoisson(), {"zi": 0.3}),
    "zero_inflated_negative_binomial": (ZeroInflatedNegativeBinomial(), {"shape": 2.0, "zi": 0.3}),
    "gamma": (Gamma(), {"shape": 2.0}),
    "lognormal": (Lognormal(), {"sigma": 0.7}),
    "inverse_gaussian": (InverseGaussian(), {"shape": 2.0}),
    "weibull": (Weibull(), {"shape": 1.6}),
    "beta": (Beta(), {"kappa": 6.0}),
    "student_t": (StudentT(), {"sigma": 0.7, "nu": 5.0}),
    "student_t, df": (StudentT(df=5.0), {"sigma": 0.7}),
    "categorical": (Categorical(("bus", "car", "foot", "train")), {}),
    "multinomial": (Multinomial(("bus", "car", "foot", "train")), {}),
    "ordinal": (Ordinal(("low", "mid", "high", "top")), {"cutpoint": CUTPOINTS}),
}


@pytest.fixture(params=FAMILY)
def row(request):
    family, auxiliary = FAMILY[request.param]
    return family, auxiliary, TRIALS if family.takes_trials or family.takes_counts else None


def eta_of(family, eta=ETA):
    """Linear predictors (row,), or (row, equation)."""
    slopes = np.linspace(1, -0.5, len(family.equations))
    return eta[:, None] * slopes + slopes if family.equations else eta


def simulated(family, auxiliary, trials, num_draws=1, eta=ETA):
    """Responses (draw, row)."""
    per_draw = {
        name: np.broadcast_to(value, (num_draws, np.size(value))) for name, value in auxiliary.items()
    }
    eta = eta_of(family, eta)
    wide = np.broadcast_to(eta, (num_draws, *eta.shape))
    rng = np.random.default_rng(0)
    return family.simulate(rng, wide, per_draw, trials), family.mean(wide[:1], _first(per_draw), trials)[0]


def _first(per_draw):
    return {name: value[:1] for name, value in per_draw.items()}


def encoded_by(family, response):
    """The response as rows hold it; nothing is censored."""
    encoded = family.encode(response)
    return np.stack([encoded, np.ones(len(encoded))], axis=1) if family.takes_censoring else encoded


def summary_of(response, trials):
    summary = ResponseSummary("y", with_logs=True)
    summary.add(response, trials if response.ndim == 1 else None, None)
    return summary


def test_every_family_has_a_row():
    assert {family.name for family, _ in FAMILY.values()} == set(FAMILIES)


def test_what_it_simulates_is_accepted_and_has_a_log_likelihood_with_a_gradient(row):
    family, auxiliary, trials = row
    response = simulated(*row)[0][0]
    family.refuse(summary_of(response, trials))
    encoded = jnp.asarray(encoded_by(family, response))
    encoded = encoded if encoded.dtype.kind == "i" else encoded.astype(jnp.float32)

    def log_likelihood(eta):
        return family.log_likelihood(eta, encoded, auxiliary_on_device, trials)

    auxiliary_on_device = {name: jnp.asarray(value, jnp.float32) for name, value in auxiliary.items()}
    eta = jnp.asarray(eta_of(family), jnp.float32)
    values = log_likelihood(eta)
    assert values.shape == (ROWS,)
    assert np.isfinite(values).all()
    assert np.isfinite(jax.grad(lambda eta: log_likelihood(eta).sum())(eta)).all()

    def linear_predictor(factor):
        return eta if factor is None else factor * eta

    of_rows = family.log_likelihood_of_rows(linear_predictor, encoded, auxiliary_on_device, trials)
    np.testing.assert_allclose(of_rows, values, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_many_points_at_once_are_the_same_as_one_by_one(row):
    """Compiled, as samplers evaluate them: jaxlib 0.10.2 gets some sums of products wrong, from about 10 points on."""
    family, auxiliary, trials = row
    response = np.tile(encoded_by(family, simulated(*row)[0][0]).T, 8).T
    response = jnp.asarray(response if response.dtype.kind == "i" else response.astype(np.float32))
    trials = None if trials is None else jnp.tile(jnp.asarray(trials, jnp.float32), 8)
    eta = np.tile(eta_of(family).T, 8).T + np.linspace(-0.5, 0.5, 40).reshape(
        -1, *(1 for _ in eta_of(family).shape)
    )
    own = {name: jnp.asarray(value, jnp.float32) for name, value in auxiliary.items()}

    def total(eta):
        return jnp.sum(family.log_likelihood(eta, response, own, trials))

    eta = jnp.asarray(eta, jnp.float32)
    np.testing.assert_allclose(jax.jit(jax.vmap(total))(eta), [total(each) for each in eta], rtol=1e-4)


def test_simulated_responses_have_the_expected_mean_and_no_other(row):
    """Means over draws within 6 standard errors; those of a linear predictor that is 0.3 larger are not."""
    family, auxiliary, trials = row
    draws = simulated(*row, num_draws=2_000)[0]
    if family.takes_counts:
        draws = draws / trials[:, None]
    elif family.levels_of_response is not None:
        draws = (draws[..., None] == np.arange(len(family.levels_of_response))).astype(float)
    error = draws.std(axis=0) / np.sqrt(len(draws)) + 1e-3

    def is_mean(expected):
        return bool((np.abs(draws.mean(axis=0) - expected) < 6 * error).all())

    assert is_mean(simulated(family, auxiliary, trials)[1])
    assert not is_mean(simulated(family, auxiliary, trials, eta=ETA + 0.3)[1])


def inflated(probability, response, zi):
    return np.log(zi * (response == 0) + (1 - zi) * probability)


def test_likelihood_and_base_are_the_log_density(row):
    """Against SciPy's densities; without the base they differ, except where there is none."""
    family, auxiliary, trials = row
    response = simulated(family, auxiliary, trials)[0][0]
    sigma, shape = auxiliary.get("sigma"), auxiliary.get("shape")
    mean = family.mean(eta_of(family)[None], {k: np.atleast_2d(v) for k, v in auxiliary.items()}, trials)[0]
    rate, zi = np.exp(ETA), auxiliary.get("zi")
    exact = {
        "gaussian": lambda: stats.norm.logpdf(response, ETA, sigma),
        "student_t": lambda: stats.t.logpdf(response, 5.0, ETA, sigma),
        "gamma": lambda: stats.gamma.logpdf(response, shape, scale=mean / shape),
        "poisson": lambda: stats.poisson.logpmf(response, mean),
        "negative_binomial": lambda: stats.nbinom.logpmf(response, shape, shape / (shape + mean)),
        "zero_inflated_poisson": lambda: inflated(stats.poisson.pmf(response, rate), response, zi),
        "zero_inflated_negative_binomial": lambda: inflated(
            stats.nbinom.pmf(response, shape, shape / (shape + rate)), response, zi
        ),
        "lognormal": lambda: stats.lognorm.logpdf(response, sigma, scale=rate),
        "inverse_gaussian": lambda: stats.invgauss.logpdf(response, rate / shape, scale=shape),
        "weibull": lambda: stats.weibull_min.logpdf(
            response, shape, scale=rate / special.gamma(1 + 1 / shape)
        ),
        "beta": lambda: stats.beta.logpdf(response, 6.0 * mean, 6.0 * (1 - mean)),
        "bernoulli": lambda: stats.bernoulli.logpmf(response, mean),
        "binomial": lambda: stats.binom.logpmf(response, trials, mean / trials),
        "multinomial": lambda: stats.multinomial.logpmf(response, trials, mean),
        "categorical": lambda: np.log(mean[np.arange(ROWS), response.astype(int)]),
        "ordinal": lambda: np.log(mean[np.arange(ROWS), response.astype(int)]),
    }[family.name]()
    encoded = encoded_by(family, response)
    on_device = {name: jnp.asarray(value, jnp.float32) for name, value in auxiliary.items()}
    found = family.log_likelihood(
        jnp.asarray(eta_of(family), jnp.float32), jnp.asarray(encoded), on_device, trials
    )
    base = family.log_base(encoded, trials)
    np.testing.assert_allclose(np.asarray(found, np.float64) + base, exact, rtol=1e-4, atol=1e-4)


def test_moving_the_location_moves_the_linear_predictor(row):
    family, auxiliary, trials = row
    location = auxiliary.get(
        family.location, np.full(len(family.equations), 0.2) if family.equations else 0.2
    )
    assert family.location_is_auxiliary == (family.location in auxiliary)
    moved = family.move_location(jnp.asarray(location), jnp.asarray(0.5))
    assert jnp.shape(moved) == np.shape(location)
    encoded = jnp.asarray(encoded_by(family, simulated(*row)[0][0]))

    def log_likelihood(location, by):
        eta = eta_of(family) + by + (0 if family.location_is_auxiliary else location)
        own = auxiliary | ({family.location: location} if family.location_is_auxiliary else {})
        return family.log_likelihood(jnp.asarray(eta), encoded, own, trials)

    here, there = log_likelihood(jnp.asarray(location), 0.5), log_likelihood(moved, 0.0)
    np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)
    assert not np.allclose(here, log_likelihood(jnp.asarray(location), 0.0), rtol=1e-4, atol=1e-5)


def test_priors_cover_its_parameters_and_it_survives_json(row):
    family, auxiliary, trials = row
    priors = family.default_priors(summary_of(simulated(*row)[0][0], trials))
    assert set(priors) == {family.location, *family.auxiliaries} == {family.location, *auxiliary}
    for name, support in family.auxiliaries.items():
        assert priors[name].is_positive if support == "positive" else priors[name].name == "beta"
    assert family_from_dict(json.loads(json.dumps(family.to_dict()))) == family


def test_statistics_are_one_number_per_data_set(row):
    draws, _ = simulated(*row, num_draws=3)
    for statistic in row[0].statistics.values():
        assert statistic(draws).shape == (3,)


def test_a_level_without_a_success_or_count_is_found(row):
    family, _, trials = row
    response = simulated(*row)[0][0]
    if trials is not None:
        response = np.where(response < 3, 0.0, trials if response.ndim == 1 else trials[:, None])
    extremes = family.extremes(response, trials)
    if extremes is None:
        return
    rng = np.random.default_rng(1)
    level = extremes[0] & (rng.uniform(size=ROWS) < 0.5)
    matrix = np.column_stack([level.astype(float), rng.normal(size=ROWS)])
    parts = [Moments() for _ in extremes]
    for part, chosen in zip(parts, extremes, strict=True):
        part.add(matrix[chosen])
    assert family.separates(parts, ROWS).tolist() == [True, False]


@dataclass(frozen=True)
class Exponential(Family):
    """A user's own: exponential waiting times with a log link."""

    name = "exponential"
    takes_exposure = True

    def log_likelihood(self, eta, response, auxiliary, trials):
        return -eta - response * jnp.exp(-eta)

    def refuse(self, response):
        assert not response.negative

    def default_priors(self, response):
        return {"Intercept": Prior("normal", (0.0, 2.5))}

    def mean(self, eta, auxiliary, trials):
        return np.exp(eta)

    def simulate(self, rng, eta, auxiliary, trials):
        return rng.exponential(np.exp(eta))


def test_a_family_that_is_not_shardmcs_own_makes_a_model():
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    table = {"x": x, "t": rng.uniform(1, 2, ROWS), "y": rng.exponential(np.exp(0.3 * x))}
    options = {"offset": None, "exposure": "t", "trials": None, "drop_missing": False}
    prepared = prepare("y ~ x", as_source(table), Exponential(), None, **options)
    model = model_of(prepared)
    rows = prepared.source.sample(ROWS, 0)
    theta = np.array([0.2, -0.4])
    eta = (
        theta[0] + theta[1] * np.asarray(rows["design"][:, 0]) * prepared.design.scaling.sds + rows["offset"]
    )
    exact = -eta - rows["response"] * np.exp(-eta)
    np.testing.assert_allclose(model.log_likelihood(theta, rows), exact, rtol=1e-4, atol=1e-5)
    assert prepared.separating == ()
    assert Design.from_dict(json.loads(json.dumps(prepared.design.to_dict()))).family == Exponential()


def test_a_family_that_is_not_defined_where_it_is_loaded_is_named():
    with pytest.raises(RunError, match="family 'gompertz', which is not part of shardmc"):
        family_from_dict({"name": "gompertz"})
