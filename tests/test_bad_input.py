"""Bad input is one clear sentence, raised before anything is compiled."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.errors import DataError, ModelError, OptionError, ShardmcError

GOOD = {"x": np.linspace(-1, 1, 500), "y": np.tile([0.0, 1.0], 250)}


def logistic(params, rows):
    eta = params["a"] + params["b"] * rows["x"]
    return rows["y"] * eta - jax.nn.softplus(eta)


MODEL = shardmc.Model(
    logistic, lambda params: -0.5 * (params["a"] ** 2 + params["b"] ** 2), {"a": (), "b": ()}
)


def with_value(column, index, value):
    data = {name: values.copy() for name, values in GOOD.items()}
    data[column][index] = value
    return data


DATA = {
    "NaN entries": (with_value("x", [3, 4], np.nan), r"x.*2 "),
    "infinite entries": (with_value("y", 7, np.inf), r"y.*1 "),
    "columns of different length": ({"x": GOOD["x"], "y": GOOD["y"][:-1]}, r"500.*499|499.*500"),
    "an empty table": ({"x": np.empty(0), "y": np.empty(0)}, r"no rows|empty"),
    "integers that overflow": ({"x": GOOD["x"], "y": np.full(500, 2**40)}, r"y.*1099511627776"),
    "missing values in a table": (
        pd.DataFrame(GOOD).assign(x=pd.array([None] * 3 + [1.0] * 497)),
        r"x.*3 missing",
    ),
    "a file that is not there": ("no-such-file.parquet", r"no-such-file\.parquet"),
}


@pytest.mark.parametrize("name", DATA)
def test_data(name):
    data, sentence = DATA[name]
    with pytest.raises(DataError, match=sentence):
        shardmc.fit(MODEL, data, shards=5, draws=100)


def test_a_truncated_parquet_file(tmp_path):
    path = tmp_path / "rows.parquet"
    pd.DataFrame(GOOD).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match=r"rows\.parquet"):
        shardmc.fit(MODEL, str(path), shards=5, draws=100)


def flat(**changes):
    defaults = {"log_likelihood": logistic, "log_prior": None, "parameters": {"a": (), "b": ()}}
    return shardmc.Model(**{**defaults, **changes})


MODELS = {
    "one number instead of one per row": (
        flat(log_likelihood=lambda p, r: jnp.sum(logistic(p, r))),
        "per row",
    ),
    "NaN at the starting point": (
        flat(log_likelihood=lambda p, r: logistic(p, r) + jnp.log(p["a"] - 5)),
        "NaN|finite",
    ),
    "a column that is not there": (flat(log_likelihood=lambda p, r: r["z"] * p["a"]), "'z'"),
    "a parameter that is not there": (flat(log_likelihood=lambda p, r: r["x"] * p["c"]), "'c'"),
    "a parameter that nothing holds": (flat(parameters={"a": (), "b": (), "c": ()}), "'c'"),
    "no mode": (flat(log_likelihood=lambda p, r: p["a"] + 0 * r["x"] - p["b"] ** 2), "'a'"),
}


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    model, sentence = MODELS[name]
    with pytest.raises(ModelError, match=sentence):
        shardmc.fit(model, GOOD, shards=5, draws=100)


def test_weights_and_strata():
    for options in ({"weights": np.ones(3)}, {"weights": -np.ones(500)}, {"stratify": "nothing"}):
        with pytest.raises(ShardmcError):
            shardmc.fit(MODEL, pd.DataFrame(GOOD), shards=5, draws=100, **options)


def test_every_sentence_is_one_paragraph_that_ends():
    for data, _ in DATA.values():
        with pytest.raises(DataError) as caught:
            shardmc.fit(MODEL, data, shards=5, draws=100)
        assert re.search(r"[.!?]$", str(caught.value))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shares", [[np.nan, 0.5], [np.inf, 0.5], [0.0, 1.0], [1.0]])
def test_shares_that_are_not_positive_numbers_are_refused_and_shown(shares):
    draws = np.random.default_rng(0).normal(size=(2, 50, 1))
    with pytest.raises(OptionError, match=r"shares must be 2 positive numbers, one per shard, not \["):
        shardmc.combine(draws, shares=shares)


def test_an_unknown_engine_option():
    with pytest.raises(OptionError, match="batch of Local must be a positive whole number"):
        shardmc.Local(batch=0)


@pytest.mark.parametrize(
    ("function", "option", "instead"),
    [
        ("fit", "chains", "sampler=shardmc.HMC(chains=4)"),
        ("glm", "chains", "sampler=shardmc.HMC(chains=4)"),
        ("fit", "tune", "sampler=shardmc.HMC(warmup=200)"),
        ("glm", "target_accept", "sampler=shardmc.HMC(target_acceptance=0.9)"),
        ("glm", "link", "family='bernoulli(link=probit)'"),
        ("fit", "random_seed", "seed="),
        ("glm", "iter", "draws="),
        ("fit", "cores", "engine="),
    ],
)
def test_options_of_other_programs_are_answered_with_what_to_use(function, option, instead):
    with pytest.raises(OptionError, match=f"Unknown option of {function} '{option}'") as caught:
        getattr(shardmc, function)("y ~ x", {"y": [1.0]}, **{option: 4})
    assert instead in str(caught.value)
    assert "Valid:" not in str(caught.value)


def test_a_link_of_a_model_without_family_is_only_unknown():
    with pytest.raises(OptionError, match=r"Unknown option of fit 'link'\. Valid: certify"):
        shardmc.fit("y ~ x", {"y": [1.0]}, link="probit")
