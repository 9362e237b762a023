"""The same model function under NumPyro's MCMC and under fit, the same PyMC model under pm.sample and under fit.

Means must agree within 0.1 standard deviations and standard deviations within 10 %, beyond Monte Carlo error at a level
of 10^-6 for the file. The negative control is the posterior of half of the rows, which the same test rejects.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats
from numpyro.infer import MCMC, NUTS
from scipy import stats

import shardmc

COMPARISONS = 40
Z = stats.norm.isf(1e-6 / (2 * COMPARISONS))
ROWS = 600
HALF = {"shards": 4, "draws": 4_000, "check": False, "precision": "single", "weights": np.arange(ROWS) % 2}
"""Options of the control. Weights of 0 and 1 leave out half of the rows, and the programs are those of all rows."""


@pytest.fixture(scope="module")
def rows():
    """A measurement, a category and a pair of coordinates that share their parameters."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(ROWS, 2)).astype(np.float32)
    beta, level = np.array([0.7, -0.4]), np.array([0.0, 0.5, -0.5])
    group = rng.integers(0, 3, ROWS)
    y = x @ beta + level[group] + rng.normal(scale=1.5, size=ROWS)
    label = rng.random(ROWS) < 0.3
    pair = np.where(label, 2.0, -1.0)[:, None] + rng.normal(size=(ROWS, 2))
    grade = (x @ beta)[:, None] * [0.0, 0.5, 1.0] + rng.gumbel(size=(ROWS, 3))
    return {
        "x": x,
        "group": group.astype(np.int32),
        "y": y.astype(np.float32),
        "pair": pair.astype(np.float32),
        "grade": grade.argmax(axis=1).astype(np.int32),
    }


def joint(x, group, y, pair, grade, num_groups, scale=2.0):
    """Three observed sites: a regression with groups, categories, and vectors from a mixture."""
    beta = numpyro.sample("beta", dist.Normal(0, scale).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("groups", num_groups):
        level = numpyro.sample("level", dist.Normal(0, scale))
    sigma = numpyro.sample("sigma", dist.HalfNormal(scale))
    slope = numpyro.sample("slope", dist.Normal(0, scale))
    share = numpyro.sample("share", dist.Beta(1, 1))
    numpyro.deterministic("contrast", level[1] - level[0])
    eta = x @ beta
    components = dist.Normal(jnp.array([[-1.0, -1.0], [2.0, 2.0]]), 1.0).to_event(1)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(eta + level[group], sigma), obs=y)
        logits = slope * eta[:, None] * jnp.array([0.0, 0.5, 1.0])
        numpyro.sample("grade", dist.Categorical(logits=logits), obs=grade)
        labels = dist.Categorical(probs=jnp.stack([1 - share, share]))
        numpyro.sample("pair", dist.MixtureSameFamily(labels, components), obs=pair)


def effective(values):
    return float(array_stats.ess(values.reshape(1, -1), chain_axis=0, draw_axis=1, method="mean"))


def is_close(ours, theirs):
    """Whether means and standard deviations agree, parameter by parameter (draw, ...)."""
    for name, reference in theirs.items():
        a, b = (np.asarray(v, np.float64).reshape(len(v), -1) for v in (ours[name], reference))
        for k in range(b.shape[1]):
            error = Z * np.sqrt(1 / effective(a[:, k]) + 1 / effective(b[:, k]))
            mean = abs(a[:, k].mean() - b[:, k].mean()) / b[:, k].std()
            spread = abs(np.log(a[:, k].std() / b[:, k].std()))
            if mean > 0.1 + error or spread > np.log(1.1) + error / np.sqrt(2):
                return False
    return True


@pytest.mark.slow
def test_the_same_numpyro_function_under_mcmc_and_under_fit(rows):
    @jax.jit  # one program: by itself, MCMC compiles hundreds of small ones
    def sampled(rows):
        mcmc = MCMC(NUTS(joint), num_warmup=200, num_samples=600, progress_bar=False)
        mcmc.run(jax.random.key(5), **rows, num_groups=3)
        return mcmc.get_samples()

    theirs = sampled(rows)
    model = shardmc.from_numpyro(joint, num_groups=3)
    ours = shardmc.fit(model, rows, shards=4, draws=4_000, seed=3, check=False, precision="single")
    assert set(ours.draws) == set(theirs) == {"beta", "level", "sigma", "slope", "share", "contrast"}
    assert is_close(ours.draws, theirs)
    assert not is_close(shardmc.fit(model, rows, **HALF).draws, theirs)


@pytest.mark.slow
def test_the_same_pymc_model_under_sample_and_under_fit(rows):
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        x, y, group = (pm.Data(name, rows[name]) for name in ("x", "y", "group"))
        beta = pm.Normal("beta", 0, 2, shape=2)
        level = pm.Normal("level", 0, 2, shape=3)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Deterministic("contrast", level[1] - level[0])
        pm.StudentT("response", nu=5, mu=x @ beta + level[group], sigma=sigma, observed=y)
        sampled = pm.sample(
            1_000, tune=300, chains=1, random_seed=5, progressbar=False, compute_convergence_checks=False
        )
    theirs = {name: sampled.posterior[name].values[0] for name in ("beta", "level", "sigma", "contrast")}
    recipe = shardmc.from_pymc(model, rows=["x", "y", "group"])
    ours = shardmc.fit(recipe, rows, shards=4, draws=4_000, seed=3, check=False, precision="single")
    assert is_close(ours.draws, theirs)
    assert not is_close(shardmc.fit(recipe, rows, **HALF).draws, theirs)
