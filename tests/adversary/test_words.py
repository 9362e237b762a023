"""Mistakes that once ended in a traceback, or were told in the wrong words: each is refused in one sentence."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray as xr

import shardmc
from shardmc.data import as_source
from shardmc.errors import DataError, ModelError, OptionError, RunError
from shardmc.store.files import load_tree, save_tree

ROWS = 200
FEW = {"shards": 2, "draws": 40, "check": False, "sampler": "independence", "precision": "single"}
MODEL = shardmc.Model(
    lambda params, rows: -0.5 * (rows["y"] - params["b"] * rows["x"]) ** 2,
    lambda params: -0.5 * jnp.square(params["b"]),
    {"b": ()},
)


@pytest.fixture(scope="module")
def table() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    return {"x": x, "y": x + rng.normal(size=ROWS), "g": rng.choice(list("abc"), ROWS)}


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_columns_of_one_name_in_a_file(tmp_path, suffix):
    path = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        path.write_text("x,y,x\n1,2,3\n4,5,6\n")
    else:
        pq.write_table(pa.table([[1.0], [2.0], [3.0]], names=["x", "y", "x"]), path)
    with pytest.raises(DataError, match="2 columns are called 'x'; rename them"):
        as_source(path)


def test_a_column_that_is_also_in_the_names_of_folders(tmp_path):
    (tmp_path / "year=2020").mkdir()
    pq.write_table(pa.table({"year": [1.0], "y": [2.0]}), tmp_path / "year=2020" / "rows.parquet")
    assert as_source(tmp_path, columns=["y"]).sample(1, 0)["y"] == [2.0]
    with pytest.raises(DataError, match=r"Column 'year' is in 'rows.parquet' and in the name of its folder"):
        as_source(tmp_path, columns=["year"]).sample(1, 0)


@pytest.mark.slow
def test_a_column_called_like_what_a_formula_computes(table):
    named = {**table, "design (computed)": table["x"]}
    posterior = shardmc.glm("y ~ `design (computed)`", named, **FEW)
    plain = shardmc.glm("y ~ x", table, **FEW)
    np.testing.assert_array_equal(posterior.theta, plain.theta)


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("y ~ C(g, levels=x)", "levels must be a list of levels, such as"),
        ("y ~ C(g, levels=5)", "levels must be a list of levels, such as"),
        ("y ~ C(g, levels='abc')", "levels must be a list of levels, such as"),
        ("y ~ C(g, x)", "the coding must be"),
        ("y ~ C(g, 'a')", "the coding must be"),
        ("y ~ C(g, Treatment)", "the coding must be"),
        ("y ~ scale(x, 'abc')", "center must be True, False or a number"),
        ("y ~ scale(x, None)", "center must be True, False or a number"),
        ("y ~ standardize(x, center='q')", "center must be True, False or a number"),
        ("y ~ scale(x, True, 'a')", "scale must be True, False or a number"),
        ("y ~ standardize(x, rescale=[1])", "rescale must be True, False or a number"),
        ("y ~ scale(x, ddof='a')", "ddof must be a whole number"),
        ("y ~ scale('abc')", "it needs a column to be applied to"),
        ("y ~ C('abc')", "it needs a column to be applied to"),
    ],
)
def test_options_of_functions_in_a_formula(table, formula, sentence):
    with pytest.raises(ModelError, match=f"is not allowed: {re.escape(sentence)}"):
        shardmc.glm(formula, table, **FEW)


@pytest.mark.parametrize("seed", [2**70, 2**32, -1, 1.5, True, "1"])
def test_a_seed_that_is_none(table, seed):
    rows = {name: table[name] for name in ("x", "y")}
    calls = [
        lambda: shardmc.fit(MODEL, rows, seed=seed, **FEW),
        lambda: shardmc.glm("y ~ x", table, seed=seed, **FEW),
        lambda: shardmc.sample_shard(MODEL, rows, share=1.0, seed=seed),
        lambda: shardmc.subsample(MODEL, rows, seed=seed),
        lambda: shardmc.expectation_propagation(MODEL, rows, seed=seed),
    ]
    for call in calls:
        with pytest.raises(OptionError, match=r"seed must be a whole number from 0 to 2\^32 - 1, not"):
            call()


@pytest.fixture(scope="module")
def posterior(table) -> shardmc.Posterior:
    return shardmc.glm("y ~ x", table, **FEW)


def test_seeds_of_other_calls(posterior, table):
    rows = {name: table[name] for name in ("x", "y")}
    first = shardmc.fit(MODEL, rows, **FEW)
    for call in (
        lambda: shardmc.append(first, MODEL, rows, seed=2**70),
        lambda: posterior.predict(table, "response", seed=-1),
        lambda: shardmc.combine([{"b": table["x"]}, {"b": table["y"]}], seed=-1),
        lambda: shardmc.combine_sites([], seed=-1),
    ):
        with pytest.raises(OptionError, match="seed must be a whole number"):
            call()


BAD_JSON = ["{", "[]", "5", "null", '"x"', '{"a": 1}', '{"layout": 2}', "[" * 5_000]


@pytest.mark.parametrize("text", BAD_JSON, ids=lambda text: text[:12])
def test_malformed_json_in_a_result(posterior, tmp_path, text):
    tree = posterior.tree.copy()
    tree.attrs = {"shardmc": text}
    save_tree(tree, tmp_path / "posterior.nc")
    with pytest.raises(RunError, match=r"posterior\.nc"):
        shardmc.load(tmp_path / "posterior.nc")
    with pytest.raises(RunError, match="record"):
        shardmc.Posterior.from_tree(tree)


def test_a_result_that_lacks_a_part(posterior, tmp_path):
    groups = {name: node.to_dataset() for name, node in posterior.tree.children.items() if name != "shards"}
    tree = xr.DataTree.from_dict(groups)
    tree.attrs = dict(posterior.tree.attrs)
    with pytest.raises(RunError, match="shards"):
        shardmc.Posterior.from_tree(tree)


@pytest.fixture(scope="module")
def site_tree(table, tmp_path_factory) -> xr.DataTree:
    path = tmp_path_factory.mktemp("site") / "site.nc"
    rows = {name: table[name] for name in ("x", "y")}
    shardmc.sample_shard(MODEL, rows, share=1.0, draws=40, sampler="independence", path=path)
    return load_tree(path)


@pytest.mark.parametrize("text", BAD_JSON, ids=lambda text: text[:12])
def test_malformed_json_in_a_file_of_a_site(site_tree, tmp_path, text):
    tree = site_tree.copy()
    tree.attrs = {"shardmc_site": text}
    save_tree(tree, tmp_path / "site.nc")
    with pytest.raises(RunError, match=r"site\.nc is not a site's file"):
        shardmc.combine_sites([tmp_path / "site.nc"])
