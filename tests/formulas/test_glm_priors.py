"""Priors as text, their densities, and those chosen where none is given."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shardmc.errors import OptionError
from shardmc.formulas.families import Bernoulli, Gaussian, Poisson, ResponseSummary, StudentT
from shardmc.formulas.priors import Prior, choose_priors, log_density

DENSITIES = {
    "normal(1, 2.5)": stats.norm(1, 2.5),
    "student_t(3, -1, 2)": stats.t(3, -1, 2),
    "cauchy(0.5, 2)": stats.cauchy(0.5, 2),
    "laplace(0.5, 2)": stats.laplace(0.5, 2),
    "logistic(0.5, 2)": stats.logistic(0.5, 2),
    "half_normal(2)": stats.halfnorm(0, 2),
    "half_cauchy(2)": stats.halfcauchy(0, 2),
    "exponential(0.3)": stats.expon(scale=1 / 0.3),
    "gamma(2, 0.1)": stats.gamma(2, scale=10),
    "inverse_gamma(3, 2)": stats.invgamma(3, scale=2),
    "lognormal(0.2, 0.7)": stats.lognorm(0.7, scale=np.exp(0.2)),
}
POINTS = np.array([0.1, 0.7, 2.0, 9.0])


@pytest.mark.parametrize("text", DENSITIES)
def test_densities_are_scipys_up_to_a_constant(text):
    prior = Prior.parse(text)
    ours = np.asarray(prior.log_density(jnp.asarray(POINTS)))
    exact = DENSITIES[text].logpdf(POINTS)
    np.testing.assert_allclose(ours - ours[0], exact - exact[0], rtol=1e-5, atol=1e-5)
    assert Prior.parse(str(prior)) == prior
    assert DENSITIES[text].pdf(prior.middle) > 0


def test_the_sum_is_that_of_the_single_densities():
    priors = [Prior.parse(t) for t in ("normal(0, 1)", "cauchy(0, 2)", "normal(2, 3)", "flat()")]
    values = jnp.asarray([0.3, -1.0, 2.5, 7.0])
    single = sum(float(prior.log_density(value)) for prior, value in zip(priors, values, strict=True))
    assert float(log_density(priors, values)) == pytest.approx(single, rel=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norml(0, 1)", "Unknown prior 'norml'. Did you mean 'normal'"),
        ("normal(0)", r"takes 2 numbers, normal\(loc, scale\); 1 were given"),
        ("normal(0, -1)", "scale must be positive; -1 was given"),
        ("normal(0, 1e999)", "must be"),
        ("normal(0, x)", "is not understood"),
        ("__import__('os').system('true')", "is not understood"),
        (3.0, "must be text such as"),
    ],
)
def test_priors_that_cannot_be_are_refused(text, message):
    with pytest.raises(OptionError, match=message):
        Prior.parse(text)


def seen(values):
    found = ResponseSummary("y")
    found.add(np.asarray(values, float), None, None)
    return found


def choose(given, family, response, names=("x", "C(g)[T.b]", "C(g)[T.c]"), sds=(2.0, 0.5, 0.25)):
    terms = {"C(g)": ["C(g)[T.b]", "C(g)[T.c]"]}
    found = choose_priors(given, family, seen(response), names, terms, np.array(sds), [family.location])
    return {name: str(prior) for name, prior in found.items()}


def test_defaults_are_those_of_rstanarm():
    response = np.array([1.0, 3.0, 5.0, 7.0])
    sd = response.std(ddof=1)
    assert choose(None, Gaussian(), response) == {
        "Intercept": f"normal(4, {2.5 * sd:.4g})",
        "x": f"normal(0, {2.5 * sd / 2:.4g})",
        "C(g)[T.b]": f"normal(0, {2.5 * sd / 0.5:.4g})",
        "C(g)[T.c]": f"normal(0, {2.5 * sd / 0.25:.4g})",
        "sigma": f"exponential({1 / sd:.4g})",
    }
    assert choose(None, StudentT(), response)["nu"] == "gamma(2, 0.1)"
    binary = choose(None, Bernoulli(), [0, 0, 0, 1])
    assert (binary["Intercept"], binary["x"]) == ("normal(-1.099, 2.5)", "normal(0, 1.25)")
    assert choose(None, Poisson(), [0, 1, 2, 5])["Intercept"] == "normal(0.6931, 2.5)"


def test_the_users_priors_win_the_narrower_the_key():
    given = {
        "C(g)[T.c]": "cauchy(0, 1)",
        "coefficients": "normal(0, 9)",
        "C(g)": "student_t(3, 0, 1)",
        "sigma": "half_normal(2)",
    }
    chosen = choose(given, Gaussian(), [1.0, 2.0, 4.0])
    assert chosen["x"] == "normal(0, 9)"
    assert chosen["C(g)[T.b]"] == "student_t(3, 0, 1)"
    assert chosen["C(g)[T.c]"] == "cauchy(0, 1)"
    assert chosen["sigma"] == "half_normal(2)"
    assert chosen["Intercept"].startswith("normal(2.333")


def test_priors_of_unknown_parameters_are_refused():
    with pytest.raises(OptionError, match=r"Unknown parameter in priors 'sgima'. Did you mean 'sigma'"):
        choose({"sgima": "exponential(1)"}, Gaussian(), [1.0, 2.0, 4.0])
    with pytest.raises(OptionError, match="is for positive numbers"):
        choose({"x": "exponential(1)"}, Gaussian(), [1.0, 2.0, 4.0])
    with pytest.raises(OptionError, match="must be a dict"):
        choose(["normal(0, 1)"], Gaussian(), [1.0, 2.0, 4.0])
