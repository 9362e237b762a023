"""fit against posteriors that are known exactly, by its default settings. Its checks do not change the draws.

Each test maps the draws of a coordinate through its exact distribution function and asks for the mean of U - 1/2 and of
(U - 1/2)^2 - 1/12 to be zero, up to Monte Carlo error at the stated level and the method's own bias, for which 0.02 is
allowed (a shift of 0.07 sd or a standard deviation 8 % off would use it up). The Monte Carlo error comes from the
effective number of draws. False alarms: 10^-6 for the file. The negative control is Algorithm 1 at a large K, which the
same test rejects.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats

import shardmc

DRAWS = 8_000
BIAS = 0.02
TESTS = 12
BOUND = -stats.norm.ppf(1e-6 / (4 * TESTS))


def deviation(posterior, values, cdf):
    """The larger excess of the two means over what Monte Carlo error and bias allow; negative is good."""
    u = cdf(values) - 0.5
    excess = []
    for v in (u, u**2 - 1 / 12):
        ess = float(array_stats.ess(v.reshape(posterior.chains), chain_axis=0, draw_axis=1, method="mean"))
        excess.append(abs(v.mean()) - BIAS - BOUND * v.std() / np.sqrt(min(ess, len(v))))
    return max(excess)


def gaussian():
    """Unknown mean and sigma under p(mu, sigma) = 1 / sigma: Student t and inverse chi."""
    y = np.random.default_rng(3).normal(4.0, 2.0, size=20_000)
    model = shardmc.Model(
        lambda params, y: -jnp.log(params["sigma"]) - 0.5 * ((y - params["mu"]) / params["sigma"]) ** 2,
        lambda params: -jnp.log(params["sigma"]),
        {"mu": (), "sigma": "positive"},
    )
    n, mean, ss = len(y), y.mean(), ((y - y.mean()) ** 2).sum()
    exact = {
        "mu": stats.t(n - 1, mean, np.sqrt(ss / (n - 1) / n)).cdf,
        "sigma": lambda s: stats.chi2(n - 1).sf(ss / s**2),
    }
    return model, y, exact


def poisson():
    """A rate under Gamma(2, 1): Gamma."""
    y = np.random.default_rng(4).poisson(0.2, size=20_000)
    model = shardmc.Model(
        lambda params, y: y * jnp.log(params["rate"]) - params["rate"],
        lambda params: jnp.log(params["rate"]) - params["rate"],
        {"rate": "positive"},
    )
    return model, y.astype(np.float32), {"rate": stats.gamma(2 + y.sum(), scale=1 / (1 + len(y))).cdf}


def simplex():
    """Category probabilities under a flat Dirichlet: Beta marginals."""
    y = np.random.default_rng(5).choice(4, p=[0.5, 0.3, 0.15, 0.05], size=20_000)
    model = shardmc.Model(
        lambda params, y: jnp.log(params["p"])[y], None, {"p": shardmc.Parameter((4,), "simplex")}
    )
    counts = np.bincount(y, minlength=4)
    exact = {f"p[{k}]": stats.beta(1 + counts[k], 3 + len(y) - counts[k]).cdf for k in range(4)}
    return model, y.astype(np.int32), exact


CASES = {"gaussian": gaussian, "poisson": poisson, "simplex": simplex}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_default_fit_matches_the_exact_posterior(case):
    model, y, exact = CASES[case]()
    posterior = shardmc.fit(model, y, shards=20, draws=DRAWS, seed=0, check=False)
    columns = posterior.flat()
    for name, cdf in exact.items():
        assert deviation(posterior, columns[name], cdf) < 0, name


@pytest.mark.slow
def test_the_same_test_rejects_algorithm_1_with_small_shards():
    model, y, exact = poisson()
    options = {"combiner": "algorithm-1", "keep": None, "check": False}
    posterior = shardmc.fit(model, y, shards=400, draws=DRAWS, seed=0, **options)
    assert deviation(posterior, posterior.draws["rate"], exact["rate"]) > 0


def logistic_posterior_on_a_grid(x, y):
    """Marginal distribution functions of a two-parameter logistic regression, by quadrature in float64."""
    axes = []
    for center, half in ((0.5, 0.5), (-2.0, 0.7)):
        # A step is a tenth of an sd: linear interpolation of the distribution function is off by less than 0.0005.
        axes.append(np.linspace(center - half, center + half, 201))
    a, b = np.meshgrid(*axes, indexing="ij")
    log_density = np.zeros_like(a)
    for xs, ys in zip(np.array_split(x, 50), np.array_split(y, 50), strict=True):
        eta = a[..., None] + b[..., None] * xs
        log_density += (ys * eta - np.logaddexp(0, eta)).sum(axis=-1)
    density = np.exp(log_density - log_density.max())
    result = []
    for axis, other in ((axes[0], 1), (axes[1], 0)):
        cumulative = np.cumsum(density.sum(axis=other))
        middle = np.concatenate([[0], cumulative[:-1]]) / 2 + cumulative / 2
        result.append((axis, middle / cumulative[-1]))
    return result


@pytest.mark.slow
def test_default_fit_matches_logistic_regression_by_quadrature():
    rng = np.random.default_rng(6)
    x = rng.normal(size=2_000)
    y = (rng.random(2_000) < 1 / (1 + np.exp(-(0.5 - 2 * x)))).astype(np.float64)

    def log_likelihood(params, rows):
        eta = params["a"] + params["b"] * rows[0]
        return rows[1] * eta - jax.nn.softplus(eta)

    model = shardmc.Model(log_likelihood, None, {"a": (), "b": ()})
    posterior = shardmc.fit(model, (x, y), shards=5, draws=DRAWS, seed=0, check=False)
    for name, (axis, distribution) in zip("ab", logistic_posterior_on_a_grid(x, y), strict=True):
        values = posterior.draws[name]
        assert axis[0] < values.min()
        assert values.max() < axis[-1]
        assert deviation(posterior, values, lambda v, a=axis, d=distribution: np.interp(v, a, d)) < 0
