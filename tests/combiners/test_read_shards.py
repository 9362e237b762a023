"""Draws from arrays, tables, trees and files, with their names."""

from __future__ import annotations

from pathlib import Path

import arviz_base
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from shardmc.combiners import combine
from shardmc.combiners.read import Layout, from_columns, read_draws, read_shards
from shardmc.errors import OptionError, RunError

CMDSTAN = """# stan_version_major = 2
# method = sample (Default)
#   sample
#     num_samples = 3
#     num_warmup = 4
#     save_warmup = {save_warmup}
#     thin = 2
lp__,accept_stat__,stepsize__,treedepth__,n_leapfrog__,divergent__,energy__,alpha,beta.1,beta.2,m.1.1,m.2.1,m.1.2,m.2.2
{warmup}# Adaptation terminated
# Step size = 0.9
# Diagonal elements of inverse mass matrix:
# 1, 1, 1
-7.1,0.9,0.8,2,3,0,8.1,0.1,1.1,2.1,11,21,12,22
-7.2,0.9,0.8,2,3,0,8.1,0.2,1.2,2.2,11,21,12,22
-7.3,0.9,0.8,2,3,0,8.1,0.3,1.3,2.3,11,21,12,22
#
#  Elapsed Time: 0.005 seconds (Warm-up)
"""


def tree(seed: int) -> xr.DataTree:
    rng = np.random.default_rng(seed)
    posterior = {"alpha": rng.normal(size=(2, 50)), "beta": rng.normal(size=(2, 50, 3))}
    return arviz_base.from_dict({"posterior": posterior})


def test_arrays():
    shards, layout = read_shards(np.zeros((3, 10, 2)))
    assert [s.shape for s in shards] == [(10, 2)] * 3
    assert layout == Layout((("theta", (2,)),))
    shards, layout = read_shards(np.zeros((3, 10)))
    assert [s.shape for s in shards] == [(10, 1)] * 3
    assert layout == Layout((("theta", ()),))
    shards, _ = read_shards([np.zeros((10, 2)), np.zeros((7, 2))])
    assert [len(s) for s in shards] == [10, 7]


def test_names_of_columns():
    _, layout = read_shards(np.zeros((3, 10, 3)), ["alpha", "beta[0]", "beta[1]"])
    assert layout == Layout((("alpha", ()), ("beta", (2,))))
    with pytest.raises(OptionError, match="2 names were given for 3 columns"):
        read_shards(np.zeros((3, 10, 3)), ["alpha", "beta"])


def test_trees_and_netcdf_files(tmp_path: Path):
    trees = [tree(seed) for seed in range(3)]
    paths = [tmp_path / f"shard-{i}.nc" for i in range(3)]
    for one, path in zip(trees, paths, strict=True):
        one.to_netcdf(path, engine="h5netcdf")
    shards, layout = read_shards(trees)
    from_files, same_layout = read_shards(paths)
    assert layout == same_layout == Layout((("alpha", ()), ("beta", (3,))))
    for a, b, one in zip(shards, from_files, trees, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a[:50, 0], one["posterior"]["alpha"].to_numpy()[0])
        np.testing.assert_array_equal(a[50:, 1:], one["posterior"]["beta"].to_numpy()[1])


def test_cmdstan_csv(tmp_path: Path):
    path = tmp_path / "shard.csv"
    path.write_text(CMDSTAN.format(save_warmup=0, warmup=""))
    draws = read_draws(path)
    assert list(draws) == ["alpha", "beta", "m"]
    np.testing.assert_array_equal(draws["alpha"], [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(draws["beta"][1], [1.2, 2.2])
    np.testing.assert_array_equal(draws["m"][0], [[11, 12], [21, 22]])


def test_saved_warmup_draws_are_left_out(tmp_path: Path):
    path = tmp_path / "shard.csv"
    row = "0,0,0,0,0,0,0,9,9,9,9,9,9,9\n"
    path.write_text(CMDSTAN.format(save_warmup="true", warmup=2 * row))
    np.testing.assert_array_equal(read_draws(path)["alpha"], [0.1, 0.2, 0.3])


def test_chains_of_one_shard_in_several_files(tmp_path: Path):
    path = tmp_path / "shard.csv"
    path.write_text(CMDSTAN.format(save_warmup=0, warmup=""))
    shards, _ = read_shards([[path, path], [str(path)]])
    assert [len(s) for s in shards] == [6, 3]


def test_tables_without_bookkeeping(tmp_path: Path):
    table = pd.DataFrame(
        {".chain": [1, 1], "a": [1.0, 2.0], "b[1]": [3.0, 4.0], "b[2]": [5.0, 6.0], "lp__": [0, 0]}
    )
    assert sorted(read_draws(table)) == ["a", "b"]
    table.to_csv(tmp_path / "plain.csv")
    np.testing.assert_array_equal(read_draws(tmp_path / "plain.csv")["b"], [[3, 5], [4, 6]])


def test_columns_that_make_no_rectangle_stay_as_they_are():
    assert sorted(from_columns(["x.1", "x.3", "y", "y.1"], np.zeros((2, 4)))) == ["x.1", "x.3", "y", "y.1"]


def test_parameters_in_another_order_are_put_in_the_first_shards(tmp_path: Path):
    one = {"a": np.array([1.0]), "b": np.array([[2.0, 3.0]])}
    other = {"b": np.array([[5.0, 6.0]]), "a": np.array([4.0])}
    shards, _ = read_shards([one, other])
    np.testing.assert_array_equal(shards[1], [[4, 5, 6]])


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (np.zeros(5), "must be"),
        ([], "no shards"),
        ("shard.nc", "list with one entry per shard"),
        (["nothing.nc"], "There is no file"),
        ([{"a": np.zeros(3)}, {"b": np.zeros(3)}], "Shard 1 and shard 0 have different parameters"),
        ([{"a": np.zeros((3, 2))}, {"a": np.zeros(3)}], r"shape \(\) in shard 1 and \(2,\) in shard 0"),
        ([{"a": np.zeros(3), "b": np.zeros(4)}], "different numbers of draws"),
        ([pd.DataFrame({"a": ["x", "y"]})], "'a' that is not numeric"),
        ([xr.Dataset({"a": ("row", np.zeros(3))})], "no group 'posterior'"),
        ([np.zeros((2, 3, 4))], "Shard 0 has draws of shape"),
    ],
)
def test_what_cannot_be_read_is_said(draws, message):
    with pytest.raises((OptionError, RunError), match=message):
        read_shards(draws)


def test_files_of_another_kind_are_refused(tmp_path: Path):
    for name, content in (
        ("draws.txt", "a\n1\n"),
        ("broken.nc", "no netCDF"),
        ("empty.csv", ""),
        ("head.csv", "a,b\n"),
    ):
        path = tmp_path / name
        path.write_text(content)
        with pytest.raises(RunError, match=name):
            read_shards([path])


def test_draws_that_are_not_finite_are_refused():
    values = np.zeros((2, 10, 1))
    values[1, 3] = np.nan
    with pytest.raises(OptionError, match="shard 1 hold 1 values that are not finite"):
        combine(values)
