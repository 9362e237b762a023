"""The same model under fit and by a log density of which `exact_draws` draws: NumPyro's own; for PyMC's model, SciPy's.

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
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import constrain_fn, potential_energy
from scipy import stats

import shardmc
from shardmc.model.precision import double_precision

COMPARISONS = 40
Z = stats.norm.isf(1e-6 / (2 * COMPARISONS))
ROWS = 600
HALF = {
    "shards": 4,
    "draws": 4_000,
    "check": False,
    "keep": None,
    "precision": "single",
    "weights": np.arange(ROWS) % 2,
}
"""Options of the control. Weights of 0 and 1 leave out half of the rows."""


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
def test_a_numpyro_function_by_its_own_density_and_under_fit(rows, exact_draws):
    shapes = {"beta": np.zeros(2), "level": np.zeros(3), "sigma": 0.0, "slope": 0.0, "share": 0.0}
    given = {**rows, "num_groups": 3}
    with double_precision():
        _, unravel = ravel_pytree(jax.tree.map(np.asarray, shapes))
    one = jax.jit(lambda u: -potential_energy(joint, (), given, unravel(u)))
    many = jax.jit(jax.vmap(one))

    def log_density(points):
        return np.asarray(many(points) if len(points) > 1 else one(points[0])[None])

    with double_precision():
        natural = jax.vmap(lambda u: constrain_fn(joint, (), given, unravel(u), return_deterministic=True))
        theirs = jax.jit(natural)(exact_draws(log_density, np.zeros(8), 600, 5))
    model = shardmc.from_numpyro(joint, num_groups=3)
    ours = shardmc.fit(model, rows, shards=4, draws=4_000, seed=3, check=False, precision="single")
    assert set(ours.draws) == set(theirs) == {"beta", "level", "sigma", "slope", "share", "contrast"}
    assert is_close(ours.draws, theirs)
    assert not is_close(shardmc.fit(model, rows, **HALF).draws, theirs)


@pytest.mark.slow
def test_a_pymc_model_by_scipys_density_and_under_fit(rows, exact_draws):
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        x, y, group = (pm.Data(name, rows[name]) for name in ("x", "y", "group"))
        beta = pm.Normal("beta", 0, 2, shape=2)
        level = pm.Normal("level", 0, 2, shape=3)
        sigma = pm.HalfNormal("sigma", 2)
        pm.Deterministic("contrast", level[1] - level[0])
        pm.StudentT("response", nu=5, mu=x @ beta + level[group], sigma=sigma, observed=y)
    recipe = shardmc.from_pymc(model, rows=["x", "y", "group"])
    ours = shardmc.fit(recipe, rows, shards=4, draws=4_000, seed=3, check=False, precision="single")

    def log_density(points):
        beta, level, sigma = points[:, :2], points[:, 2:5], np.exp(points[:, 5:])
        mean = beta @ rows["x"].T.astype(np.float64) + level[:, rows["group"]]
        likelihood = stats.t.logpdf(rows["y"], 5, mean, sigma).sum(axis=1)
        prior = stats.norm.logpdf(points[:, :5], 0, 2).sum(axis=1) + stats.halfnorm.logpdf(sigma, 0, 2)[:, 0]
        return likelihood + prior + points[:, 5]

    found = exact_draws(log_density, np.zeros(6), 600, 5)
    theirs = {"beta": found[:, :2], "level": found[:, 2:5], "sigma": np.exp(found[:, 5])}
    theirs["contrast"] = found[:, 3] - found[:, 2]
    assert set(ours.draws) == set(theirs)
    assert is_close(ours.draws, theirs)
    assert not is_close(shardmc.fit(recipe, rows, **HALF).draws, theirs)
