"""Models as NumPyro and PyMC users write them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import shardmc

FEW = {"shards": 2, "draws": 200, "check": False, "keep": None, "precision": "single"}


def linear(params, rows):
    mean = params["beta"] @ jnp.stack([jnp.ones_like(rows["age"]), rows["age"]])
    return -0.5 * ((rows["spent"] - mean) / params["sigma"]) ** 2 - jnp.log(params["sigma"])


PARAMETERS = {"beta": 2, "sigma": "positive"}


@pytest.mark.slow
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


@pytest.mark.slow
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
    with pm.Model(
        coords={"shop_name": [f"shop {k}" for k in range(12)], "row": np.arange(len(table))}
    ) as model:
        shop = pm.Data("shop", table["shop"].to_numpy(), dims="row")
        spent = pm.Data("spent", table["spent"].to_numpy(), dims="row")
        level = pm.Normal("level", 0, 2, dims="shop_name")
        pm.Deterministic("twice", 2 * level, dims="shop_name")
        pm.Normal("y", level[shop], 1.0, observed=spent, dims="row")
    return model


@pytest.mark.slow
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
