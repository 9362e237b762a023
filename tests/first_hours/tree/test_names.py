"""Names and labels of parameters in the tree, as ArviZ and bambi have them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import shardmc

FEW = {"shards": 2, "draws": 200, "check": False, "keep": None, "precision": "single"}


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


@pytest.mark.slow
def test_cutpoints_and_effects_of_groups_have_labels(table):
    graded = table.assign(grade=pd.cut(table["spent"], [-9, 1, 2, 9], labels=["low", "mid", "high"]))
    ordinal = shardmc.glm("grade ~ age", graded, "ordinal", **FEW).tree.posterior
    assert ordinal["cutpoint"].cutpoint_dim.values.tolist() == ["low | mid", "mid | high"]
    crossed = shardmc.glm("spent ~ 1 + (1 | shop) + (1 | region)", table, **FEW | {"shards": 1})
    effects = crossed.tree.posterior["effects_region"]
    assert effects.dims == ("chain", "draw", "region__factor_dim")
    assert effects["region__factor_dim"].values.tolist() == ["north", "south", "west"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_adjusted_draws_have_no_log_likelihood(table):
    robust = shardmc.glm("spent ~ age", table, robust="shop", **FEW)
    assert "log_likelihood" not in robust.to_arviz(table, rows=50).children
