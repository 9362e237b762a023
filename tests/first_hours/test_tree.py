"""The first hours after a fit: results that ArviZ, bambi and pandas users understand, and models as they write them."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import shardmc

FEW = {"shards": 2, "draws": 200, "check": False}
ROWS = 600


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.uniform(18, 80, ROWS),
            "region": rng.choice(["north", "south", "west"], ROWS),
            "sex": rng.choice(["f", "m"], ROWS),
            "shop": rng.integers(0, 12, ROWS),
        }
    )
    effect = rng.normal(0, 0.7, 12)[table["shop"]]
    eta = 1 + 0.02 * table["age"] - 0.5 * (table["region"] == "south") + effect
    table["spent"] = eta + rng.normal(0, 0.5, ROWS)
    table["bought"] = rng.poisson(np.exp(0.3 * eta))
    return table


@pytest.fixture(scope="module")
def posterior(table) -> shardmc.Posterior:
    return shardmc.glm("spent ~ region * sex + bs(age, df=4, degree=2):sex", table, **FEW)


@pytest.fixture(scope="module")
def mixed(table) -> shardmc.Posterior:
    return shardmc.glm("spent ~ age + (1 | shop)", table, **FEW | {"shards": 1})


@pytest.fixture(scope="module")
def simple(table) -> shardmc.Posterior:
    return shardmc.glm("spent ~ age", table, **FEW)


def test_a_category_is_one_variable_with_its_levels(posterior):
    region = posterior.tree.posterior["region"]
    assert region.dims == ("chain", "draw", "region_dim")
    assert region.region_dim.values.tolist() == ["south", "west"]
    south = region.sel(region_dim="south").values.ravel()
    np.testing.assert_array_equal(south, posterior.draws["region[T.south]"])
    assert posterior.tree.posterior["sex"].sex_dim.values.tolist() == ["m"]


def test_splines_and_products_have_names(posterior):
    variables = posterior.tree.posterior
    assert variables["region:sex"]["region:sex_dim"].values.tolist() == ["south, m", "west, m"]
    spline = variables["bs(age, df=4, degree=2):sex"]
    assert spline.dims[2] == "bs(age, df=4, degree=2):sex_dim"
    assert spline[spline.dims[2]].values.tolist()[:2] == ["1, f", "2, f"]
    assert not [dim for dim in variables.dims if dim.endswith("_dim_0")]


def test_flat_names_are_the_same_everywhere(posterior, tmp_path):
    names = list(posterior.summary().index)
    assert names[:3] == ["Intercept", "region[T.south]", "region[T.west]"]
    assert list(posterior.to_pandas().columns) == names
    again = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    assert list(again.draws) == list(posterior.draws)
    for name, values in again.draws.items():
        np.testing.assert_array_equal(values, posterior.draws[name])
    assert again.tree.identical(posterior.tree)
    pooled = shardmc.combine([tmp_path / "posterior.nc", tmp_path / "posterior.nc"])
    assert list(pooled.names) == names


def test_arviz_names_in_sample_stats(posterior):
    stats = posterior.tree.sample_stats
    assert set(stats.data_vars) == {"shard", "acceptance_rate", "diverging"}
    assert stats["acceptance_rate"].dims == ("chain", "draw")
    np.testing.assert_allclose(stats["acceptance_rate"][:, 0], posterior.shards.acceptance)
    assert not stats["diverging"].any()


def test_cutpoints_and_effects_of_groups_have_labels(table):
    graded = table.assign(grade=pd.cut(table["spent"], [-9, 1, 2, 9], labels=["low", "mid", "high"]))
    ordinal = shardmc.glm("grade ~ age", graded, "ordinal", **FEW).tree.posterior
    assert ordinal["cutpoint"].cutpoint_dim.values.tolist() == ["low | mid", "mid | high"]
    crossed = shardmc.glm("spent ~ 1 + (1 | shop) + (1 | region)", table, **FEW | {"shards": 1})
    effects = crossed.tree.posterior["effects_region"]
    assert effects.dims == ("chain", "draw", "region__factor_dim")
    assert effects["region__factor_dim"].values.tolist() == ["north", "south", "west"]


def test_a_category_as_response_is_a_dimension_too(table):
    graded = table.assign(choice=np.where(table["spent"] < 1.5, "none", table["sex"]))
    posterior = shardmc.glm("choice ~ age + region", graded, "categorical", **FEW | {"shards": 1})
    variables = posterior.tree.posterior
    assert variables["region"].dims == ("chain", "draw", "region_dim", "choice_dim")
    assert variables["age"].dims == variables["Intercept"].dims == ("chain", "draw", "choice_dim")
    west = variables["region"].sel(region_dim="west", choice_dim="none").values.ravel()
    np.testing.assert_array_equal(west, posterior.draws["region[T.west][none]"])
    again = shardmc.Posterior.from_tree(posterior.tree)
    assert list(again.draws) == list(posterior.draws)
    np.testing.assert_array_equal(again.draws["age[m]"], posterior.draws["age[m]"])


def test_adjusted_draws_have_no_log_likelihood(table):
    robust = shardmc.glm("spent ~ age", table, robust="shop", **FEW)
    assert "log_likelihood" not in robust.to_arviz(table, rows=50).children


# Models as NumPyro and PyMC users write them.


def linear(params, rows):
    mean = params["beta"] @ jnp.stack([jnp.ones_like(rows["age"]), rows["age"]])
    return -0.5 * ((rows["spent"] - mean) / params["sigma"]) ** 2 - jnp.log(params["sigma"])


PARAMETERS = {"beta": 2, "sigma": "positive"}


def test_a_vector_has_the_names_that_the_user_gave(table):
    named = shardmc.Model(
        linear,
        None,
        PARAMETERS,
        derived=lambda params: {
            "doubled": 2 * params["beta"],
            "outer": jnp.outer(params["beta"], params["beta"]),
        },
        dims={"beta": ["predictor"], "doubled": "predictor"},
        coords={"predictor": ["one", "age"]},
    )
    posterior = shardmc.fit(named, table, **FEW)
    variables = posterior.tree.posterior
    for name in ("beta", "doubled"):
        assert variables[name].dims == ("chain", "draw", "predictor")
    assert variables["predictor"].values.tolist() == ["one", "age"]
    assert variables["outer"].dims == ("chain", "draw", "outer_dim_0", "outer_dim_1")
    unnamed = shardmc.fit(shardmc.Model(linear, None, PARAMETERS), table, **FEW)
    assert unnamed.tree.posterior["beta"].dims == ("chain", "draw", "beta_dim")
    np.testing.assert_array_equal(unnamed.draws["beta"], posterior.draws["beta"])


@pytest.mark.parametrize(
    ("dims", "coords", "message"),
    [
        ({"gamma": ["p"]}, None, "Unknown parameter in dims 'gamma'"),
        ({"beta": ["p", "q"]}, None, r"names 2 axes, but 'beta' has shape \(2,\)"),
        ({"beta": ["sigma"]}, None, "not 'chain', 'draw' or the name of a parameter"),
        ({"beta": ["p"]}, {"p": ["a", "b", "c"]}, "axis 'p' has 3 entries, but 2 in parameter 'beta'"),
        ({"beta": ["p"]}, {"p": ["a", "a"]}, "the label 'a' twice"),
        (None, {"p": ["a", "b"]}, "no parameter has an axis of that name"),
    ],
)
def test_names_of_axes_that_do_not_fit(dims, coords, message):
    with pytest.raises(shardmc.ShardmcError, match=message):
        shardmc.Model(linear, None, PARAMETERS, dims=dims, coords=coords)


def varying(shop, age, spent=None):
    with numpyro.plate("shops", 12):
        level = numpyro.sample("level", dist.Normal(0, 2))
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    numpyro.deterministic("twice", 2 * slope)
    eta = level[shop] + slope[0] + slope[1] * age / 50
    numpyro.sample("y", dist.Normal(eta, 1.0), obs=spent)


def test_plates_of_numpyro_are_axes(table):
    names = [f"shop {k}" for k in range(12)]
    model = shardmc.from_numpyro(
        varying, dims={"slope": ["what"], "twice": ["what"]}, coords={"shops": names, "what": ["one", "age"]}
    )
    variables = shardmc.fit(model, table, **FEW).tree.posterior
    assert variables["level"].dims == ("chain", "draw", "shops")
    assert variables["shops"].values.tolist() == names
    assert variables["slope"].dims == variables["twice"].dims == ("chain", "draw", "what")


def non_centred(shop, age, spent=None):
    a = numpyro.sample("a", dist.Normal(0, 5))
    s, t = (numpyro.sample(name, dist.HalfNormal(1.0)) for name in "st")
    with numpyro.plate("shops", 12):
        z = numpyro.sample("z", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(a + 0.02 * age + s * z[shop], t), obs=spent)


@pytest.mark.slow
def test_non_centred_effects_have_a_mode(table):
    posterior = shardmc.fit(
        shardmc.from_numpyro(non_centred), table, sampler="independence", **FEW | {"shards": 1}
    )
    assert posterior.mode is not None
    assert abs(np.exp(posterior.mode[list(posterior.names).index("t")]) - 0.5) < 0.1


def pymc_model(table):
    pm = pytest.importorskip("pymc")
    with pm.Model(coords={"shop_name": [f"shop {k}" for k in range(12)], "row": np.arange(ROWS)}) as model:
        shop = pm.Data("shop", table["shop"].to_numpy(), dims="row")
        spent = pm.Data("spent", table["spent"].to_numpy(), dims="row")
        level = pm.Normal("level", 0, 2, dims="shop_name")
        pm.Deterministic("twice", 2 * level, dims="shop_name")
        pm.Normal("y", level[shop], 1.0, observed=spent, dims="row")
    return model


def test_coords_and_dims_of_pymc_survive(table, tmp_path):
    model = shardmc.from_pymc(pymc_model(table), rows=["shop", "spent"])
    posterior = shardmc.fit(model, table, **FEW, run_dir=tmp_path)
    for each in (posterior, shardmc.load(tmp_path)):
        variables = each.tree.posterior
        assert variables["level"].dims == variables["twice"].dims == ("chain", "draw", "shop_name")
        assert variables["shop_name"].values.tolist() == [f"shop {k}" for k in range(12)]


def test_a_bare_numpyro_function_is_answered_with_the_call_to_write(table):
    message = r"give shardmc\.from_numpyro\(varying\) instead, as in shardmc\.fit\("
    with pytest.raises(shardmc.ShardmcError, match=message):
        shardmc.fit(varying, table)
    with pytest.raises(shardmc.ShardmcError, match=r"'y' has one value per row .*its argument 'spent'"):
        shardmc.fit(shardmc.from_numpyro(varying), table.drop(columns="spent"))
    with pytest.raises(shardmc.ShardmcError, match=r"given to from_numpyro 'scale'. Valid: age, shop, spent"):
        shardmc.from_numpyro(varying, scale=3.0)


def test_a_bare_pymc_model_is_answered_with_the_call_to_write(table):
    model = pymc_model(table)
    call = r'shardmc\.fit\(shardmc\.from_pymc\(model, rows=\["shop", "spent"\]\), data\)'
    with pytest.raises(shardmc.ShardmcError, match=call):
        shardmc.fit(model, table)
    with pytest.raises(
        shardmc.ShardmcError, match=r"rows= of from_pymc must name .* There are: 'shop', 'spent'"
    ):
        shardmc.from_pymc(model)
    with pytest.raises(shardmc.ShardmcError, match=r"leaves out 'shop', .* write rows=\['spent', 'shop'\]"):
        shardmc.from_pymc(model, rows=["spent"])
    with pytest.raises(shardmc.ShardmcError, match=r"observations are pm.Data 'spent'.* rows= of from_pymc"):
        shardmc.from_pymc(model, rows=["shop"])
    with pytest.raises(shardmc.ShardmcError, match=r"in rows= of from_pymc 'spend'. Did you mean 'spent'"):
        shardmc.from_pymc(model, rows=["shop", "spend"])
    import pymc as pm

    with pm.Model() as without:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=table["spent"].to_numpy())
    with pytest.raises(
        shardmc.ShardmcError, match=r"from_pymc needs .* as pm.Data, and this PyMC model has none"
    ):
        shardmc.from_pymc(without, rows=["spent"])


def test_an_unknown_option_names_the_function_that_was_called(table):
    with pytest.raises(
        shardmc.ShardmcError, match=r"Unknown option of glm 'num_draws'. Did you mean 'draws'"
    ):
        shardmc.glm("spent ~ age", table, num_draws=100)
    with pytest.raises(shardmc.ShardmcError, match=r"Unknown option of fit 'shard'. Did you mean 'shards'"):
        shardmc.fit(shardmc.Model(linear, None, PARAMETERS), table, shard=3)


def test_predict_takes_functions_that_return_vectors(table):
    posterior = shardmc.fit(shardmc.Model(linear, None, PARAMETERS), table, **FEW)
    new = pd.DataFrame({"age": [20.0, 40.0, 60.0]}, index=["ann", "bob", "eve"])

    def both(params, rows):
        mean = params["beta"][0] + params["beta"][1] * rows["age"]
        return jnp.stack([mean, jnp.exp(mean)], axis=1)

    found = posterior.predict(new, function=both)
    assert list(found.index) == ["ann", "bob", "eve"]
    assert list(found.columns) == [
        f"{name}[{k}]" for k in range(2) for name in ("mean", "sd", "lower", "upper")
    ]
    beta = posterior.draws["beta"]
    exact = beta[:, :1] + beta[:, 1:] * new["age"].to_numpy()
    np.testing.assert_allclose(found["mean[1]"], np.exp(exact).mean(axis=0), rtol=1e-4)
    drawn = posterior.predict(new, "draws", function=both)
    assert drawn.shape == (200, 3, 2)
    np.testing.assert_allclose(drawn[..., 0], exact, rtol=1e-4)


# ArviZ.


def test_arviz_stats_takes_the_tree_as_it_is(posterior):
    arviz_stats = pytest.importorskip("arviz_stats")
    summary = arviz_stats.summary(posterior.tree)
    assert "region[south]" in summary.index
    assert arviz_stats.ess(posterior.tree)["region"].sizes == {"region_dim": 2}


def test_groups_with_rows_are_a_sample_with_weights(table, posterior):
    tree = posterior.to_arviz(table, rows=150, draws=100, seed=4)
    groups = {
        "posterior",
        "sample_stats",
        "observed_data",
        "constant_data",
        "log_likelihood",
        "posterior_predictive",
    }
    assert set(tree.children) == groups
    assert tree["posterior"]["region"].sizes == {"chain": 2, "draw": 50, "region_dim": 2}
    for group in ("log_likelihood", "posterior_predictive"):
        assert tree[group]["spent"].dims == ("chain", "draw", "row")
        assert tree[group]["spent"].shape == (2, 50, 150)
    rows = tree["observed_data"]["row"].values
    np.testing.assert_allclose(tree["observed_data"]["spent"], table["spent"].iloc[rows])
    weight = tree["constant_data"]["row_weight"]
    assert float(weight.sum()) == ROWS
    assert tree["observed_data"].attrs == {"rows": ROWS, "sampled_rows": 150}
    # The weighted sum of the sample estimates that of all rows.
    whole = posterior.to_arviz(table, draws=100)["log_likelihood"]["spent"].mean(["chain", "draw"])
    assert whole.sizes == {"row": ROWS}
    part = tree["log_likelihood"]["spent"].mean(["chain", "draw"])
    np.testing.assert_allclose(part, whole[rows])
    error = ROWS * float(whole.std()) / np.sqrt(150)
    assert abs(float((weight * part).sum() - whole.sum())) < 4 * error
    gap = tree["posterior_predictive"]["spent"] - tree["observed_data"]["spent"]
    assert abs(float(gap.mean())) < 0.3


def test_loo_and_compare_of_arviz_are_those_of_shardmc(table, posterior, simple):
    arviz_stats = pytest.importorskip("arviz_stats")
    fits = {"many": posterior, "age": simple}
    trees = {name: fit.to_arviz(table) for name, fit in fits.items()}
    ours = {name: fit.loo(table) for name, fit in fits.items()}
    exact = {name: arviz_stats.loo(tree, pointwise=True) for name, tree in trees.items()}
    for name, result in exact.items():
        np.testing.assert_allclose([ours[name].elpd, ours[name].se], [result.elpd, result.se], rtol=1e-4)
    compared, arviz = shardmc.compare_models(ours), arviz_stats.compare(exact)
    assert list(compared.index) == list(arviz.index)
    np.testing.assert_allclose(compared["dse"], arviz["dse"], rtol=1e-2)


def test_rows_times_draws_have_a_limit(table, posterior, monkeypatch):
    import shardmc.posterior.arviz as module

    monkeypatch.setattr(module, "MOST", 10_000)
    with pytest.raises(shardmc.ShardmcError, match=r"600 rows and 200 draws are 120,000 numbers .*\(rows=\)"):
        posterior.to_arviz(table)


def test_a_response_may_be_called_row(table):
    posterior = shardmc.glm("row ~ age", table.assign(row=table["spent"]), **FEW)
    tree = posterior.to_arviz(table.assign(row=table["spent"]), rows=50, draws=40)
    assert tree["observed_data"]["%72ow"].dims == ("row",)
    assert tree["log_likelihood"]["%72ow"].dims == ("chain", "draw", "row")


def test_groups_of_a_model_without_a_formula(table):
    model = shardmc.Model(linear, None, PARAMETERS)
    posterior = shardmc.fit(model, table, **FEW)

    def simulate(params, rows, key):
        mean = params["beta"][0] + params["beta"][1] * rows["age"]
        return mean + params["sigma"] * jax.random.normal(key, mean.shape)

    tree = posterior.to_arviz(table, model, simulate=simulate, rows=50, draws=40)
    assert (
        tree["log_likelihood"]["likelihood"].shape
        == tree["posterior_predictive"]["likelihood"].shape
        == (2, 20, 50)
    )
    assert set(tree["observed_data"].data_vars) == {"age", "spent"}
    with pytest.raises(shardmc.ShardmcError, match=r"posterior\.to_arviz\(data, model\)"):
        posterior.to_arviz(table)


def test_groups_with_rows_of_weighted_and_mixed_models(table, mixed):
    rows = table.assign(times=np.arange(ROWS) % 3)
    weighted = shardmc.glm("bought ~ age", rows, "poisson", weights="times", **FEW)
    with pytest.raises(shardmc.ShardmcError, match=r"fitted with weights: give them here too, as weights="):
        weighted.to_arviz(rows)
    tree = weighted.to_arviz(rows, weights="times")
    np.testing.assert_array_equal(tree["constant_data"]["row_weight"], rows["times"])
    tree = mixed.to_arviz(table, rows=100, draws=100)
    assert "log_likelihood" not in tree.children  # rows of a shop depend on each other
    simulated = tree["posterior_predictive"]["spent"].mean(["chain", "draw"])
    assert float(abs(simulated - tree["observed_data"]["spent"]).mean()) < 0.7


def test_arviz_plots_takes_the_tree_as_it_is(table, posterior):
    try:
        import arviz_plots as plots
    except Exception as error:  # 0.8 does not fit matplotlib 3.11
        pytest.skip(f"arviz-plots cannot be imported: {error}")
    for plot in (plots.plot_forest, plots.plot_dist, plots.plot_rank):
        shown = plot(posterior.tree, var_names=["region", "sigma"], backend="matplotlib")
        assert isinstance(shown, plots.PlotCollection)
    shown = plots.plot_ppc_dist(posterior.to_arviz(table, rows=100, draws=50), backend="matplotlib")
    assert isinstance(shown, plots.PlotCollection)


def test_arviz_0_takes_the_tree(posterior):
    """As docs/after.md says it in one line."""
    arviz = pytest.importorskip("arviz")
    data = arviz.InferenceData.from_datatree(posterior.tree)
    assert "region[south]" in arviz.summary(data).index


# Cross-validation, tables, predictions, contrasts.


def test_loo_of_a_sample_of_rows_and_the_comparison_of_models(table, posterior, simple):
    results = {"region": posterior.loo(table, sample=200), "age": simple.loo(table, sample=200)}
    compared = shardmc.compare_models(results)
    assert {"elpd", "elpd_diff", "dse", "subsampling_dse"} <= set(compared.columns)
    assert "a sample of 200, which adds" in results["age"].sentence


def test_loo_of_weighted_rows_and_of_groups(table, mixed, simple):
    weighted = shardmc.glm("spent ~ age", table.assign(times=2), weights="times", **FEW)
    assert weighted.loo(table.assign(times=2), weights="times").total_weight == 2 * ROWS
    for times, said in (("region", "must hold numbers"), (np.full(ROWS, np.nan), "negative or missing")):
        with pytest.raises(shardmc.ShardmcError, match=said):
            weighted.loo(table, weights=times)
    for options, said in (({"by": ["shop"]}, "by must be"), ({"sample": 10.5}, "must be a whole number")):
        with pytest.raises(shardmc.ShardmcError, match=said):
            simple.loo(table, **options)
    results = {"plain": simple.loo(table, by="shop"), "shops": mixed.loo(table)}
    assert list(shardmc.compare_models(results).index) == ["shops", "plain"]


def test_intervals_have_one_default_everywhere(table, posterior):
    methods = ("summary", "predict", "effects")
    functions = [getattr(shardmc.Posterior, name) for name in methods] + [
        shardmc.formulas.contrast,
        shardmc.formulas.marginal_effects,
    ]
    assert {inspect.signature(each).parameters["interval"].default for each in functions} == {0.95}
    assert {"2.5%", "97.5%"} <= set(posterior.summary().columns)
    assert {"hdi95_lb", "hdi95_ub"} <= set(posterior.summary(interval_kind="hdi").columns)


def test_draws_as_a_table_of_pandas(posterior):
    draws = posterior.to_pandas()
    assert draws.index.names == ["chain", "draw"]
    assert draws["region[T.south]"].mean() == pytest.approx(
        posterior.summary().loc["region[T.south]", "mean"]
    )


def test_predictions_keep_the_index_and_go_to_files(table, posterior, tmp_path):
    new = table[["age", "region", "sex"]].head(5).set_axis(list("abcde")).assign(name=list("vwxyz"))
    for kind in ("link", "mean", "response"):
        assert list(posterior.predict(new, kind).index) == list("abcde")
    assert posterior.predict(new, "draws").shape == (200, 5)
    new.loc["b", "age"] = np.nan
    with pytest.warns(UserWarning, match="1 of 5 rows have missing values in 'age'"):
        assert posterior.predict(new).isna().any(axis=1).tolist() == [False, True, False, False, False]
    for suffix, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        count = posterior.predict_file(new, tmp_path / f"out.{suffix}", key="name")
        found = read(tmp_path / f"out.{suffix}")
        assert (count.rows, count.incomplete) == (5, 1)
        assert found["name"].tolist() == list("vwxyz")


def test_odds_ratios_contrasts_and_marginal_effects(table, posterior):
    data = table.assign(big=table["spent"] > 2)
    logistic = shardmc.glm("big ~ age + region", data, "bernoulli", **FEW)
    ratios = logistic.contrast("region", at={"age": 40.0}, scale="link", compare="odds_ratio")
    south = np.exp(logistic.draws["region[T.south]"]).mean()
    assert np.isclose(ratios["mean"], south, rtol=0.02).any()
    effects = logistic.marginal_effects("age", data=data, by="region")
    assert len(effects) == 3
    assert {"lower", "upper"} <= set(effects.columns)
    for figure in (
        logistic.plot_contrast("region", data=data),
        logistic.plot_marginal_effects("age", data=data, by="region"),
    ):
        assert figure.axes
