"""Leave-one-out cross-validation: ArviZ's values on all rows, and unbiased estimates with honest errors on a sample."""

from dataclasses import replace
from importlib import import_module

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import xarray as xr
from scipy import special, stats

import shardmc
from shardmc.errors import DataError, ModelError, OptionError
from shardmc.posterior.elpd import Loo

OPTIONS = {"shards": 4, "draws": 400, "check": False, "keep": None, "precision": "single"}


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture(scope="module")
def weighted(policies):
    rows = policies.assign(times=np.arange(len(policies)) % 4)
    return rows, shardmc.glm("claims ~ age", rows, "poisson", weights="times", **OPTIONS)


@pytest.mark.slow
def test_a_row_of_weight_w_counts_as_w_rows(weighted):
    """The same posterior on a table in which each row is repeated."""
    rows, posterior = weighted
    repeated = rows.loc[rows.index.repeat(rows["times"])]
    plain = replace(posterior, plan=replace(posterior.plan, weighted=False))
    found, exact = posterior.loo(rows, weights="times"), plain.loo(repeated)
    assert exact.rows == found.total_weight == rows["times"].sum()
    np.testing.assert_allclose([found.elpd, found.se, found.p], [exact.elpd, exact.se, exact.p], rtol=1e-9)
    assert "from 600 rows that count as 900" in found.sentence
    array = posterior.loo(rows, weights=rows["times"].to_numpy(), sample=300)
    assert abs(array.elpd - exact.elpd) < 6 * array.subsampling_se
    other = replace(found, elpd_i=found.elpd_i - 0.01 * rows["age"].to_numpy(), elpd=found.elpd - 1)
    shifted = replace(exact, elpd_i=exact.elpd_i - 0.01 * repeated["age"].to_numpy(), elpd=exact.elpd - 1)
    of_weights, of_rows = (
        shardmc.compare_models({"a": first, "b": second}).loc["b"]
        for first, second in ((found, other), (exact, shifted))
    )
    np.testing.assert_allclose(of_weights["elpd_diff"], of_rows["elpd_diff"])
    np.testing.assert_allclose(of_weights["dse"], of_rows["dse"], rtol=1e-2)
    with pytest.raises(OptionError, match=r"fitted with weights: give them here too, as weights="):
        posterior.loo(rows)
    with pytest.raises(OptionError, match="one entry for each of the 600 rows"):
        posterior.loo(rows, weights=np.ones(5))
    unknown = replace(posterior, plan=replace(posterior.plan, weighted=None))  # as combine_sites leaves it
    assert unknown.loo(rows, weights="times").elpd == found.elpd


@pytest.fixture(scope="module")
def shops(policies):
    rng = np.random.default_rng(2)
    shop = rng.integers(0, 40, len(policies))
    eta = 0.4 + 0.01 * policies["age"] + rng.normal(0, 0.6, 40)[shop]
    return policies.assign(
        shop=[f"s{k}" for k in shop],
        spent=eta + rng.normal(0, 0.5, len(shop)),
        visits=rng.poisson(np.exp(eta)),
    )


@pytest.mark.slow
def test_groups_of_a_normal_response_are_left_out_exactly(shops):
    """Given the parameters, the rows of a group are jointly normal."""
    posterior = shardmc.glm("spent ~ age + (1 | shop)", shops, **OPTIONS)
    found = posterior.loo(shops)
    draws, values = posterior.draws, []
    own, shared = draws["sigma"] ** 2, draws["sd_shop__Intercept"] ** 2
    for _, rows in shops.groupby("shop"):
        mean = draws["Intercept"][:, None] + draws["age"][:, None] * rows["age"].to_numpy()
        residual, size = rows["spent"].to_numpy() - mean, len(rows)
        last = own + size * shared  # the eigenvalue of the covariance that is not `own`
        squares = (residual**2).sum(axis=1) - shared / last * residual.sum(axis=1) ** 2
        log_determinant = (size - 1) * np.log(own) + np.log(last)
        values.append(-0.5 * (size * np.log(2 * np.pi) + log_determinant + squares / own))
    exact = exact_loo(posterior, np.transpose(values))
    np.testing.assert_allclose(found.elpd_i, exact.elpd_i, rtol=1e-7)
    np.testing.assert_allclose([found.elpd, found.se, found.p], [exact.elpd, exact.se, exact.p], rtol=1e-6)
    assert "from 40 groups of 'shop'" in found.sentence
    # Against a model without the groups, by the same groups.
    plain = shardmc.glm("spent ~ age", shops, **OPTIONS)
    by_row, by_shop = plain.loo(shops), plain.loo(shops, by="shop")
    assert list(shardmc.compare_models({"plain": by_shop, "shops": found}).index) == ["shops", "plain"]
    with pytest.raises(
        OptionError, match=r"one group of 'shop' at a time, and 'plain' one row: give loo the same by="
    ):
        shardmc.compare_models({"plain": by_row, "shops": found})
    with pytest.raises(OptionError, match="by= must be 'shop'"):
        posterior.loo(shops, by="region")


@pytest.mark.slow
def test_groups_of_counts_are_integrated_by_quadrature(shops):
    posterior = shardmc.glm("visits ~ age + (1 | shop)", shops, "poisson", nodes=7, **OPTIONS)
    draws = posterior.draws
    grid = np.linspace(-8, 8, 1_001)
    prior = stats.norm.logpdf(grid) + np.log(grid[1] - grid[0])
    effects = draws["sd_shop__Intercept"][:, None] * grid
    values = []
    for _, rows in shops.groupby("shop"):
        visits = rows["visits"].to_numpy()
        eta = draws["Intercept"][:, None] + draws["age"][:, None] * rows["age"].to_numpy()
        fixed = eta @ visits - special.gammaln(visits + 1).sum()
        terms = effects * visits.sum() - np.exp(effects) * np.exp(eta).sum(axis=1, keepdims=True)
        values.append(fixed + special.logsumexp(terms + prior, axis=1))
    exact, found = exact_loo(posterior, np.transpose(values)), posterior.loo(shops)
    np.testing.assert_allclose(found.elpd_i, exact.elpd_i, rtol=1e-5)
    part = posterior.loo(shops, sample=15)
    np.testing.assert_allclose(part.elpd_i, found.elpd_i[part.positions], rtol=1e-9)
    assert abs(part.elpd - found.elpd) < 6 * part.subsampling_se


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
    with pytest.raises(OptionError, match="sample must be a whole number, 2 or more"):
        poisson.loo(policies, sample=1)
    with pytest.raises(OptionError, match="Unknown column 'months'"):
        poisson.loo(policies.drop(columns="months"))
    with pytest.raises(OptionError, match=r"without weights, so weights= must be left out"):
        poisson.loo(policies, weights="months")
    with pytest.raises(OptionError, match=r"by= is for the posterior of a formula"):
        posterior.loo(y, model, by="y")
    results = {"a": poisson.loo(policies, sample=50), "b": poisson.loo(policies, sample=50, seed=1)}
    with pytest.raises(OptionError, match=r"'[ab]' and '[ab]' were computed on different rows"):
        shardmc.compare_models(results)
    with pytest.raises(OptionError, match=r"takes what posterior\.loo\(data\) returns; 'a' is Posterior"):
        shardmc.compare_models({"a": poisson})
