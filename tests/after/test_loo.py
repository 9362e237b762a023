"""Leave-one-out cross-validation: ArviZ's values on all rows, and unbiased estimates with honest errors on a sample."""

from importlib import import_module

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

import shardmc
from shardmc.errors import DataError, ModelError, OptionError
from shardmc.posterior.elpd import Loo

OPTIONS = {"shards": 4, "draws": 400, "check": False}


def exact_loo(posterior, log_likelihood):
    """ArviZ's result from all log-likelihoods, (draw, row)."""
    tree = posterior.tree.copy()
    values = log_likelihood.reshape(*posterior.chains, -1)
    tree["log_likelihood"] = xr.DataTree(xr.Dataset({"y": (("chain", "draw", "row"), values)}))
    return arviz_stats.loo(tree, pointwise=True)


def of_poisson(posterior, table):
    draws = posterior.draws
    eta = draws["Intercept"][:, None] + np.log(table["months"].to_numpy())
    if "age" in draws:
        eta = eta + draws["age"][:, None] * table["age"].to_numpy()
    for level in ("south", "west"):
        eta = eta + draws[f"region[T.{level}]"][:, None] * (table["region"] == level).to_numpy()
    return stats.poisson.logpmf(table["claims"].to_numpy(), np.exp(eta))


@pytest.fixture(scope="module")
def without_age(policies):
    return shardmc.glm("claims ~ region", policies, "poisson", exposure="months", **OPTIONS)


def test_all_rows_of_a_formula_are_arviz(policies, poisson):
    found, exact = poisson.loo(policies), exact_loo(poisson, of_poisson(poisson, policies))
    np.testing.assert_allclose(found.elpd_i, exact.elpd_i, rtol=1e-7)
    np.testing.assert_allclose(found.pareto_k, exact.pareto_k, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose([found.elpd, found.se, found.p], [exact.elpd, exact.se, exact.p], rtol=1e-6)
    assert found.subsampling_se == 0
    assert (found.good_k, found.warning) == (exact.good_k, exact.warning)
    again = found.to_arviz()
    assert str(again) == str(exact)


def test_a_gaussian_response_has_its_own_units(policies):
    """The fit shifts and scales the response; its density does not."""
    rows = policies.assign(cost=1e5 + 300 * policies["age"] + 50 * policies["months"] ** 2)
    posterior = shardmc.glm("cost ~ age", rows, **OPTIONS)
    mean = posterior.draws["Intercept"][:, None] + posterior.draws["age"][:, None] * rows["age"].to_numpy()
    values = stats.norm.logpdf(rows["cost"].to_numpy(), mean, posterior.draws["sigma"][:, None])
    np.testing.assert_allclose(posterior.loo(rows).elpd, exact_loo(posterior, values).elpd, rtol=1e-6)


def normal(params, rows):
    z = (rows["y"] - params["mu"]) / params["sigma"]
    return -0.5 * z**2 - jnp.log(params["sigma"]) - 0.5 * np.log(2 * np.pi)


def in_numpyro(y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10))
    numpyro.sample("obs", dist.Normal(mu, sigma), obs=y)


def in_pymc():
    import pymc as pm

    with pm.Model() as model:
        y = pm.Data("y", np.zeros(10))
        mu = pm.Normal("mu", 0, 10)
        sigma = pm.HalfNormal("sigma", 10)
        pm.Normal("obs", mu, sigma, observed=y)
    return shardmc.from_pymc(model, rows=["y"])


MODELS = {
    "plain": lambda: shardmc.Model(normal, None, {"mu": (), "sigma": "positive"}),
    "numpyro": lambda: shardmc.from_numpyro(in_numpyro),
    "pymc": in_pymc,
}


@pytest.mark.parametrize("kind", ["plain", "numpyro", pytest.param("pymc", marks=pytest.mark.slow)])
def test_models_without_a_formula_are_arviz(kind):
    rows = {"y": np.random.default_rng(1).normal(3.0, 2.0, size=300)}
    model = MODELS[kind]()
    posterior = shardmc.fit(model, rows, **OPTIONS)
    values = stats.norm.logpdf(rows["y"], *(posterior.draws[name][:, None] for name in ("mu", "sigma")))
    exact = exact_loo(posterior, values)
    for data in (rows, pd.DataFrame({"other": "text", "y": rows["y"]})):
        found = posterior.loo(data, model)
        np.testing.assert_allclose(
            [found.elpd, found.se, found.p], [exact.elpd, exact.se, exact.p], rtol=1e-5
        )


def test_differences_are_those_of_arviz(policies, poisson, without_age):
    results = {"without age": without_age.loo(policies), "with age": poisson.loo(policies)}
    table = shardmc.compare_models(results)
    exact = arviz_stats.compare(
        {
            "without age": exact_loo(without_age, of_poisson(without_age, policies)),
            "with age": exact_loo(poisson, of_poisson(poisson, policies)),
        }
    )
    assert table.index.tolist() == exact.index.tolist() == ["with age", "without age"]
    for column in ("elpd", "p", "elpd_diff", "se", "dse"):
        np.testing.assert_allclose(table[column], exact[column], rtol=1e-5)
    assert (table["subsampling_dse"] == 0).all()


def test_samples_of_rows_estimate_the_sum_over_all(policies, poisson, without_age):
    """Over 40 samples: the mean is right within 5 standard errors, and errors are as large as they are said to be."""
    whole, other = poisson.loo(policies), without_age.loo(policies)
    sums = {name: (each.elpd_i.sum(), each.cheap_i) for name, each in (("a", whole), ("b", other))}
    errors, differences = [], []
    for seed in range(40):
        chosen = np.sort(np.random.default_rng(seed).choice(600, 100, replace=False))
        parts = {
            name: Loo.estimated(
                each.elpd_i[chosen],
                each.cheap_i[chosen],
                np.ones(100),
                each.pareto_k[chosen],
                total=sums[name][1].sum(),
                squares=(sums[name][1] ** 2).sum(),
                rows=600,
                positions=chosen,
                draws=400,
            )
            for name, each in (("a", whole), ("b", other))
        }
        errors.append((parts["a"].elpd - whole.elpd) / parts["a"].subsampling_se)
        row = shardmc.compare_models(parts).loc["b"]
        differences.append((row["elpd_diff"] - (whole.elpd - other.elpd)) / row["subsampling_dse"])
        assert abs(parts["a"].se / np.hypot(whole.se, parts["a"].subsampling_se) - 1) < 0.05
    for z in (np.array(errors), np.array(differences)):
        assert abs(z.mean()) < 5 / np.sqrt(40)
        assert 0.5 < z.std() < 2.0


def test_a_sample_is_read_in_pieces(policies, poisson, tmp_path, monkeypatch):
    policies.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    module = import_module("shardmc.posterior.loo")
    monkeypatch.setattr(module, "AT_ONCE", 400 * 7)
    found = poisson.loo(tmp_path / "rows.parquet", sample=50, seed=3)
    whole = poisson.loo(policies)
    assert len(found.positions) == len(np.unique(found.positions)) == 50
    np.testing.assert_allclose(found.elpd_i, whole.elpd_i[found.positions], rtol=1e-9)
    assert 0 < found.subsampling_se < found.se
    assert abs(found.elpd - whole.elpd) < 6 * found.subsampling_se
    assert "a sample of 50, which adds" in found.sentence
    assert "50 subsampled log-likelihood" in str(found.to_arviz())
    assert poisson.loo(policies, draws=80).draws == 80


def test_what_loo_refuses(policies, poisson):
    model = shardmc.Model(normal, None, {"mu": (), "sigma": "positive"})
    y = {"y": np.random.default_rng(1).normal(3.0, 2.0, size=300)}
    posterior = shardmc.fit(model, y, **OPTIONS)
    with pytest.raises(OptionError, match=r"give the model too, as in posterior\.loo\(data, model\)"):
        posterior.loo(y)
    with pytest.raises(ModelError, match="give the model that was fitted"):
        posterior.loo(y, shardmc.Model(lambda params, rows: rows["y"] * params["b"], None, {"b": ()}))
    with pytest.raises(ModelError, match="not function"):
        posterior.loo(y, normal)
    with pytest.raises(DataError, match="The log-likelihood of row 7 is not finite"):
        posterior.loo({"y": np.where(np.arange(300) == 7, np.nan, y["y"])}, model)
    with pytest.raises(OptionError, match="sample and draws must be 2 or more"):
        poisson.loo(policies, sample=1)
    with pytest.raises(OptionError, match="Unknown column 'months'"):
        poisson.loo(policies.drop(columns="months"))
    weighted = shardmc.glm("claims ~ 1", policies, "poisson", weights="months", **OPTIONS)
    with pytest.raises(OptionError, match="fitted with weights"):
        weighted.loo(policies)
    grouped = shardmc.glm("claims ~ 1 + (1 | region)", policies, "poisson", **OPTIONS | {"shards": 1})
    with pytest.raises(OptionError, match="not available for formulas with group terms"):
        grouped.loo(policies)
    results = {"a": poisson.loo(policies, sample=50), "b": poisson.loo(policies, sample=50, seed=1)}
    with pytest.raises(OptionError, match=r"'[ab]' and '[ab]' were computed on different rows"):
        shardmc.compare_models(results)
    with pytest.raises(OptionError, match=r"takes what posterior\.loo\(data\) returns; 'a' is Posterior"):
        shardmc.compare_models({"a": poisson})
