"""After the fit: cross-validation, tables, predictions and contrasts."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import pytest

import shardmc

FEW = {"shards": 2, "draws": 200, "check": False, "keep": None, "precision": "single"}


@pytest.mark.slow
def test_loo_of_weighted_rows_and_of_groups(table, mixed, simple):
    weighted = shardmc.glm("spent ~ age", table.assign(times=2), weights="times", **FEW)
    assert weighted.loo(table.assign(times=2), weights="times").total_weight == 2 * len(table)
    for times, said in (
        ("region", "must hold numbers"),
        (np.full(len(table), np.nan), "negative or missing"),
    ):
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
    with pytest.warns(UserWarning, match="1 of 5 rows has missing values in 'age'"):
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
