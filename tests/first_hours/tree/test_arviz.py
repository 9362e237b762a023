"""ArviZ takes the tree as it is."""

from __future__ import annotations

import numpy as np
import pytest

import shardmc

FEW = {"shards": 2, "draws": 200, "check": False, "keep": None, "precision": "single"}


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
    assert float(weight.sum()) == len(table)
    assert tree["observed_data"].attrs == {"rows": len(table), "sampled_rows": 150}
    # The weighted sum of the sample estimates that of all rows.
    whole = posterior.to_arviz(table, draws=100)["log_likelihood"]["spent"].mean(["chain", "draw"])
    assert whole.sizes == {"row": len(table)}
    part = tree["log_likelihood"]["spent"].mean(["chain", "draw"])
    np.testing.assert_allclose(part, whole[rows])
    error = len(table) * float(whole.std()) / np.sqrt(150)
    assert abs(float((weight * part).sum() - whole.sum())) < 4 * error
    gap = tree["posterior_predictive"]["spent"] - tree["observed_data"]["spent"]
    assert abs(float(gap.mean())) < 0.3


@pytest.mark.slow
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


@pytest.mark.slow
def test_groups_with_rows_of_weighted_and_mixed_models(table, mixed):
    rows = table.assign(times=np.arange(len(table)) % 3)
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
