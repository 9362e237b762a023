"""Every family's log-likelihood against SciPy's, in float32 and over many orders of magnitude."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from shardmc.formulas.families import (
    Bernoulli,
    Beta,
    Binomial,
    Gamma,
    Gaussian,
    InverseGaussian,
    Lognormal,
    NegativeBinomial,
    Ordinal,
    Poisson,
    StudentT,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)

CUTPOINTS = np.array([-1.0, 0.3, 2.0])


COUNTS = np.array([0, 1, 2, 7, 40, 300, 5_000, 200_000.0])


TRIALS = np.array([1, 1, 3, 9, 50, 900, 10_000, 300_000.0])


def near(mean: np.ndarray, size: int = 8) -> np.ndarray:
    """Linear predictors scattered about a good fit, (size, row)."""
    rng = np.random.default_rng(1)
    return mean + rng.normal(size=(size, len(mean))) * 0.3


def negative_binomial(y: np.ndarray, eta: np.ndarray, shape: float) -> np.ndarray:
    return stats.nbinom.logpmf(y, shape, shape / (shape + np.exp(eta)))


def cloglog(y: np.ndarray, eta: np.ndarray, trials: np.ndarray | int) -> np.ndarray:
    return y * np.log(-np.expm1(-np.exp(eta))) - (trials - y) * np.exp(eta)


def inflated(log_probability: np.ndarray, y: np.ndarray, zi: float) -> np.ndarray:
    return np.where(
        y == 0,
        np.logaddexp(np.log(zi), np.log1p(-zi) + log_probability),
        np.log1p(-zi) + log_probability,
    )


def weibull(y: np.ndarray, eta: np.ndarray, shape: float) -> np.ndarray:
    """Every second time is censored, as in `encoded_by`."""
    found = stats.weibull_min(shape, scale=np.exp(eta) / special.gamma(1 + 1 / shape))
    return np.where(np.arange(len(y)) % 2 == 0, found.logpdf(y), found.logsf(y))


def beta(y: np.ndarray, eta: np.ndarray, kappa: float) -> np.ndarray:
    return stats.beta.logpdf(y, kappa * special.expit(eta), kappa * special.expit(-eta))


def ordinal(y: np.ndarray, eta: np.ndarray) -> np.ndarray:
    points = np.concatenate([[-np.inf], CUTPOINTS, [np.inf]])
    k = y.astype(int)
    return np.log(special.expit(points[k + 1] - eta) - special.expit(points[k] - eta))


REALS = np.array([-3.0, -0.1, 0.0, 0.4, 1.0, 2.5, 30.0])


BINARY = np.array([0.0, 1.0, 1.0, 0.0])


LEVELS = np.array([0.0, 1, 2, 3, 1])


AMOUNTS = np.array([1e-3, 0.2, 1.0, 8.0, 3e5])


SHARES = np.array([1e-5, 0.03, 0.3, 0.5, 0.9, 0.9999])


CASES = {
    "gaussian": (
        Gaussian(),
        REALS,
        near(REALS),
        {"sigma": 1.7},
        lambda y, eta, a, n: stats.norm.logpdf(y, eta, a["sigma"]),
    ),
    "student_t": (
        StudentT(),
        REALS,
        near(np.zeros(7)),
        {"sigma": 0.6, "nu": 3.3},
        lambda y, eta, a, n: stats.t.logpdf(y, a["nu"], eta, a["sigma"]),
    ),
    "student_t, many df": (
        StudentT(),
        REALS,
        near(REALS),
        {"sigma": 0.6, "nu": 4_000.0},
        lambda y, eta, a, n: stats.t.logpdf(y, a["nu"], eta, a["sigma"]),
    ),
    "student_t, fixed df": (
        StudentT(df=4.0),
        REALS,
        near(REALS),
        {"sigma": 0.6},
        lambda y, eta, a, n: stats.t.logpdf(y, 4.0, eta, a["sigma"]),
    ),
    "bernoulli": (
        Bernoulli(),
        BINARY,
        near(np.array([-20, -3, 0.2, 9.0])),
        {},
        lambda y, eta, a, n: y * eta - np.logaddexp(0, eta),
    ),
    "bernoulli, probit": (
        Bernoulli("probit"),
        BINARY,
        near(np.array([-4, -3, 0.2, 4.0])),
        {},
        lambda y, eta, a, n: special.log_ndtr((2 * y - 1) * eta),
    ),
    "bernoulli, cloglog": (
        Bernoulli("cloglog"),
        BINARY,
        near(np.array([1.5, -30, 0.2, -9.0])),
        {},
        lambda y, eta, a, n: cloglog(y, eta, 1),
    ),
    "binomial, cloglog": (
        Binomial("cloglog"),
        np.array([0, 1, 2, 4, 25.0]),
        near(np.array([-8, -2.4, -2.2, 0, 1])),
        {},
        lambda y, eta, a, n: cloglog(y, eta, n),
    ),
    "binomial": (
        Binomial(),
        np.minimum(COUNTS, TRIALS),
        near(special.logit((np.minimum(COUNTS, TRIALS) + 0.5) / (TRIALS + 1))),
        {},
        lambda y, eta, a, n: y * eta - n * np.logaddexp(0, eta),
    ),
    "binomial, far off": (
        Binomial(),
        np.minimum(COUNTS, TRIALS),
        np.linspace(-60, 60, 8)[:, None] * np.ones(8),
        {},
        lambda y, eta, a, n: y * eta - n * np.logaddexp(0, eta),
    ),
    "binomial, probit": (
        Binomial("probit"),
        np.array([0, 1, 2, 4, 25.0]),
        near(np.zeros(5)),
        {},
        lambda y, eta, a, n: y * special.log_ndtr(eta) + (n - y) * special.log_ndtr(-eta),
    ),
    "poisson": (
        Poisson(),
        COUNTS,
        near(np.log(COUNTS + 0.5)),
        {},
        lambda y, eta, a, n: stats.poisson.logpmf(y, np.exp(eta)),
    ),
    "negative_binomial": (
        NegativeBinomial(),
        COUNTS,
        near(np.log(COUNTS + 0.5)),
        {"shape": 1.3},
        lambda y, eta, a, n: negative_binomial(y, eta, a["shape"]),
    ),
    "negative_binomial, near Poisson": (
        NegativeBinomial(),
        COUNTS,
        near(np.log(COUNTS + 0.5)),
        {"shape": 900.0},
        lambda y, eta, a, n: negative_binomial(y, eta, a["shape"]),
    ),
    "negative_binomial, scattered": (
        NegativeBinomial(),
        COUNTS,
        near(np.log(COUNTS + 0.5)),
        {"shape": 0.02},
        lambda y, eta, a, n: negative_binomial(y, eta, a["shape"]),
    ),
    "gamma": (
        Gamma(),
        AMOUNTS,
        near(np.log(AMOUNTS)),
        {"shape": 2.2},
        lambda y, eta, a, n: stats.gamma.logpdf(y, a["shape"], scale=np.exp(eta) / a["shape"]),
    ),
    "gamma, narrow": (
        Gamma(),
        AMOUNTS,
        np.log(AMOUNTS) + 0.01 * near(np.zeros(5)),
        {"shape": 3_000.0},
        lambda y, eta, a, n: stats.gamma.logpdf(y, a["shape"], scale=np.exp(eta) / a["shape"]),
    ),
    "zero_inflated_poisson": (
        ZeroInflatedPoisson(),
        np.append(COUNTS[:6], 0),
        near(np.append(np.log(COUNTS[:6] + 0.5), 5.0)),
        {"zi": 0.2},
        lambda y, eta, a, n: inflated(stats.poisson.logpmf(y, np.exp(eta)), y, a["zi"]),
    ),
    "zero_inflated_poisson, hardly": (
        ZeroInflatedPoisson(),
        COUNTS,
        near(np.log(COUNTS + 0.5)),
        {"zi": 1e-6},
        lambda y, eta, a, n: inflated(stats.poisson.logpmf(y, np.exp(eta)), y, a["zi"]),
    ),
    "zero_inflated_negative_binomial": (
        ZeroInflatedNegativeBinomial(),
        np.append(COUNTS, 0),
        near(np.append(np.log(COUNTS + 0.5), 5.0)),
        {"shape": 1.3, "zi": 0.4},
        lambda y, eta, a, n: inflated(negative_binomial(y, eta, a["shape"]), y, a["zi"]),
    ),
    "lognormal": (
        Lognormal(),
        AMOUNTS,
        near(np.log(AMOUNTS)),
        {"sigma": 0.4},
        lambda y, eta, a, n: stats.lognorm.logpdf(y, a["sigma"], scale=np.exp(eta)),
    ),
    "inverse_gaussian": (
        InverseGaussian(),
        AMOUNTS,
        near(np.log(AMOUNTS)),
        {"shape": 2.2},
        lambda y, eta, a, n: stats.invgauss.logpdf(y, np.exp(eta) / a["shape"], scale=a["shape"]),
    ),
    "weibull": (
        Weibull(),
        AMOUNTS,
        near(np.log(AMOUNTS)),
        {"shape": 1.7},
        lambda y, eta, a, n: weibull(y, eta, a["shape"]),
    ),
    "weibull, slow": (
        Weibull(),
        AMOUNTS,
        near(np.log(AMOUNTS)),
        {"shape": 0.3},
        lambda y, eta, a, n: weibull(y, eta, a["shape"]),
    ),
    "beta": (
        Beta(),
        SHARES,
        near(special.logit(SHARES)),
        {"kappa": 7.0},
        lambda y, eta, a, n: beta(y, eta, a["kappa"]),
    ),
    "beta, precise": (
        Beta(),
        SHARES,
        special.logit(SHARES) + 0.1 * near(np.zeros(6)),
        {"kappa": 1_000.0},
        lambda y, eta, a, n: beta(y, eta, a["kappa"]),
    ),
    "beta, far off": (
        Beta(),
        SHARES,
        np.linspace(-15, 15, 8)[:, None] * np.ones(6),
        {"kappa": 0.3},
        lambda y, eta, a, n: beta(y, eta, a["kappa"]),
    ),
    "ordinal": (
        Ordinal((0, 1, 2, 3)),
        LEVELS,
        near(np.array([-2, 0, 1, 3, 5.0])),
        {"cutpoint": CUTPOINTS},
        lambda y, eta, a, n: ordinal(y, eta),
    ),
}


def encoded_by(family, y):
    """The response as rows hold it; of families that take censoring, every second one is censored."""
    encoded = family.encode(y)
    if family.takes_censoring:
        encoded = np.stack([encoded, np.arange(len(y)) % 2 == 0], axis=1)
    return jnp.asarray(encoded if encoded.dtype.kind == "i" else encoded.astype(np.float32))


def evaluate(family, y, eta, auxiliary, trials):
    """Log-likelihoods in float32, (point, row)."""
    response = encoded_by(family, y)
    auxiliary = {name: jnp.asarray(value, jnp.float32) for name, value in auxiliary.items()}
    count = None if trials is None else jnp.asarray(trials, jnp.float32)

    @jax.jit
    def every(eta, response, auxiliary, count):
        return jax.vmap(lambda e: family.log_likelihood(e, response, auxiliary, count))(eta)

    return np.asarray(every(jnp.asarray(eta, jnp.float32), response, auxiliary, count), np.float64)


@pytest.mark.parametrize("case", CASES)
def test_log_likelihood_is_the_reference_up_to_a_constant_of_each_row(case):
    family, y, eta, auxiliary, reference = CASES[case]
    trials = TRIALS[: len(y)] if family.takes_trials else None
    eta = eta.astype(np.float32).astype(np.float64)  # both sides see the same numbers
    found = evaluate(family, y, eta, auxiliary, trials)
    exact = reference(y, eta, auxiliary, trials)
    # What is compared is the change from the first point to the others, as the samplers use it.
    change, wanted = found - found[0], exact - exact[0]
    # The error of float32 in eta alone, times the slope there, is what cannot be avoided.
    slope = np.abs(np.gradient(exact, axis=0)).max(axis=0) + np.abs(wanted).max(axis=0)
    assert np.isfinite(found).all()
    assert (np.abs(change - wanted) <= 3e-6 * (1 + slope) * np.maximum(1, np.abs(eta).max(axis=0))).all()


@pytest.mark.parametrize(
    "case",
    [
        "negative_binomial",
        "gamma",
        "student_t",
        "gaussian",
        "zero_inflated_poisson",
        "zero_inflated_negative_binomial",
        "lognormal",
        "inverse_gaussian",
        "weibull",
        "beta",
    ],
)
def test_log_likelihood_has_the_right_dependence_on_auxiliary_parameters(case):
    family, y, eta, auxiliary, reference = CASES[case]
    other = {name: np.float32(value * 1.25) for name, value in auxiliary.items()}
    eta = eta.astype(np.float32).astype(np.float64)
    change = evaluate(family, y, eta, other, None) - evaluate(family, y, eta, auxiliary, None)
    wanted = reference(y, eta, other, None) - reference(y, eta, auxiliary, None)
    np.testing.assert_allclose(change, wanted, rtol=2e-5, atol=2e-5)


def test_the_naive_poisson_fails_where_ours_holds():
    """Negative control: y eta - e^eta in float32 loses what large counts need."""
    _, y, eta, _, reference = CASES["poisson"]
    eta = eta.astype(np.float32)
    naive = np.asarray(jnp.asarray(y, jnp.float32) * eta - jnp.exp(eta), np.float64)
    exact = reference(y, eta.astype(np.float64), {}, None)
    ours = evaluate(Poisson(), y, eta, {}, None)
    wrong = np.abs((naive - naive[0]) - (exact - exact[0]))[:, -1].max()
    right = np.abs((ours - ours[0]) - (exact - exact[0]))[:, -1].max()
    assert wrong > 3 * right


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_gradients_and_curvatures_are_finite(case):
    family, y, eta, auxiliary, _ = CASES[case]
    trials = jnp.asarray(TRIALS[: len(y)], jnp.float32) if family.takes_trials else None
    response = encoded_by(family, y)

    def total(parameters):
        return family.log_likelihood(parameters["eta"], response, parameters, trials).sum()

    derivatives = jax.jit(lambda parameters: (jax.grad(total)(parameters), jax.hessian(total)(parameters)))
    for point in (eta[0], np.zeros(len(y))):
        parameters = {"eta": jnp.asarray(point, jnp.float32)}
        parameters |= {name: jnp.asarray(value, jnp.float32) for name, value in auxiliary.items()}
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(derivatives(parameters)))


def test_negative_binomial_slopes_are_those_of_its_values():
    """The derivatives are written out by hand: they are compared with those of the reference in float64."""
    y, shape = COUNTS[:6], 1.3
    eta = np.log(y + 0.5) + 0.2
    step = 1e-5

    def slope(function, at):
        return (function(at + step) - function(at - step)) / (2 * step)

    def ours(e, a):
        return NegativeBinomial().log_likelihood(e, jnp.asarray(y, jnp.float32), {"shape": a}, None)

    at = jnp.asarray(eta, jnp.float32), jnp.float32(shape)
    by_eta = jax.jvp(lambda e: ours(e, at[1]), at[:1], (jnp.ones(6),))[1]
    by_shape = jax.jvp(lambda a: ours(at[0], a), at[1:], (jnp.float32(1),))[1]
    np.testing.assert_allclose(
        by_eta, slope(lambda e: negative_binomial(y, e, shape), eta), rtol=2e-5, atol=2e-5
    )
    np.testing.assert_allclose(
        by_shape, slope(lambda a: negative_binomial(y, eta, a), shape), rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("case", CASES)
def test_simulated_responses_have_the_expected_mean(case):
    family, y, eta, auxiliary, _ = CASES[case]
    if case in ("binomial, far off",):
        pytest.skip("all successes or none")
    draws = 4_000
    eta = np.broadcast_to(np.clip(eta[0], -5, 5), (draws, len(y)))
    shaped = {name: np.full((draws, 1), value) for name, value in auxiliary.items() if np.ndim(value) == 0}
    if isinstance(family, Ordinal):
        shaped["cutpoint"] = np.broadcast_to(CUTPOINTS, (draws, 3))
    trials = np.minimum(TRIALS[: len(y)], 50) if family.takes_trials else None
    seen = family.simulate(np.random.default_rng(2), eta, shaped, trials)
    mean = family.mean(eta, shaped, trials)
    if isinstance(family, Ordinal):
        seen, mean = (seen[..., None] == np.arange(4)).astype(float), mean
    error = (seen - mean).mean(axis=0) / (seen.std(axis=0) / np.sqrt(draws) + 1e-12)
    # About 120 comparisons of which each exceeds 6.5 with probability below 1e-8 if it is normal; the variance of
    # rare outcomes is itself uncertain, which the floor of 20 expected outcomes keeps in check.
    enough = (mean.mean(axis=0) * draws > 20) | (np.abs(error) < 1)
    assert (np.abs(error)[enough] < 6.5).all()
