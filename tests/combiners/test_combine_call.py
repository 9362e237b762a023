"""combine and compare as a user calls them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy import stats

from shardmc.combiners import COMBINERS, Consensus, Recenter, combine, compare
from shardmc.errors import OptionError, RunError

SHARDS = np.random.default_rng(0).normal(size=(4, 500, 2))


def test_named_parameters_come_back_named(tmp_path: Path):
    draws = [{"alpha": s[:, 0], "beta": s[:, 1:]} for s in SHARDS]
    combined = combine(draws, "recenter")
    assert combined.draws["alpha"].shape == (2000,)
    assert combined.draws["beta"].shape == (2000, 1)
    assert combined.names == ("alpha", "beta[0]")
    assert list(combined.to_pandas().columns) == ["alpha", "beta[0]"]
    tree = combined.tree
    assert dict(tree["posterior"].sizes)["draw"] == 2000
    np.testing.assert_array_equal(tree["sample_stats"]["shard"][0], combined.shard)
    path = combined.save(tmp_path / "posterior.nc")
    with xr.open_datatree(path, engine="h5netcdf") as loaded:
        np.testing.assert_array_equal(loaded["posterior"]["alpha"][0], combined.draws["alpha"])
    with pytest.raises(RunError, match="There is no folder"):
        combined.save(tmp_path / "nowhere" / "posterior.nc")
    again = combine([path, path])
    assert again.names == combined.names
    assert "recenter: 2000 draws of alpha, beta" in repr(combined)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def disk_is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = combine(SHARDS).save(tmp_path / "posterior.nc")
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", disk_is_full)
    with pytest.raises(RunError, match="The disk is full"):
        combine(SHARDS, "consensus").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tables_and_one_dimensional_draws():
    tables = [pd.DataFrame(s, columns=["a", "b"]) for s in SHARDS]
    assert combine(tables, "consensus").draws["b"].shape == (500,)
    assert combine(SHARDS[:, :, 0], "pie").draws["theta"].shape == (2000,)


def test_options_go_to_the_method_and_combiners_are_taken_as_they_are():
    one = combine(SHARDS, "consensus", weights="uniform")
    other = combine(SHARDS, Consensus("uniform"))
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_allclose(one.values, SHARDS.mean(axis=0))
    with pytest.raises(
        OptionError, match=r"Unknown option of combiner 'consensus' 'weigths'\. Did you mean 'weights'"
    ):
        combine(SHARDS, "consensus", weigths="uniform")
    with pytest.raises(OptionError, match="has no options"):
        combine(SHARDS, "laplace", scale=1)
    with pytest.raises(OptionError, match="needs the mode"):
        combine(SHARDS, "laplace")


def test_a_combiner_that_is_no_name_is_refused():
    with pytest.raises(OptionError, match=r"Unknown combiner \['consensus'\]"):
        combine(SHARDS, ["consensus"])


def test_the_seed_decides():
    one, same, other = (combine(SHARDS, "product", seed=s).values for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_shares():
    combined = combine(SHARDS, Recenter.algorithm_1(), shares=[0.4, 0.2, 0.2, 0.2])
    assert combined.shard is not None
    counts = np.bincount(combined.shard)
    assert counts[0] / counts[1] == pytest.approx(2, abs=0.02)
    with pytest.raises(OptionError, match="shares must be 4 positive numbers"):
        combine(SHARDS, shares=[1, 1])


def test_a_shard_far_away_is_named():
    moved = SHARDS.copy()
    moved[2] += 3000
    notes = combine(moved, "recenter").notes
    assert any("The mean of shard 2 lies up to 4." in note for note in notes), notes
    assert combine(SHARDS, "recenter").notes == ()


def test_compare_shows_draws_of_other_methods():
    rng = np.random.default_rng(1)
    others = {"exact": rng.normal(size=(500, 2)), "shifted": rng.normal(size=(500, 2)) + 1}
    draws, full = rng.normal(size=(4, 100, 2)), rng.normal(size=(2000, 2))
    result = compare(draws, full, ["recenter"], others=others)
    assert list(result.table.index[:3]) == ["recenter", "exact", "shifted"]
    assert result.table.loc["shifted", "worst_mean"] == pytest.approx(1, abs=0.3)
    assert result.table.loc["exact", "worst_sd"] < 0.2
    with pytest.raises(OptionError, match="wide has parameters"):
        compare(draws, full, ["recenter"], others={"wide": {"a": np.zeros((10, 3))}})


def test_compare_makes_one_table():
    rng = np.random.default_rng(1)
    draws = {
        "rescaled": rng.normal(size=(5, 400, 1)),
        "fractional": rng.normal(size=(5, 400, 1)) * np.sqrt(5),
    }
    result = compare(draws, rng.normal(size=(2000, 1)))
    methods = [name for name in COMBINERS if name != "laplace"]
    assert list(result.table.index[: len(methods)]) == methods
    assert {"l2", "relative_l2", "iad", "mean", "kl", "ks", "sliced", "draws", "seconds"} <= set(
        result.table.columns
    )
    values = result.table.loc[methods]
    assert np.isfinite(values.to_numpy()).all()
    floors = [name for name in result.table.index if name.startswith("noise floor")]
    assert "noise floor, 2000 draws" in floors
    assert "noise floor, 400 draws" in floors
    assert str(result).splitlines()[0].startswith("method")
    assert len(str(result).splitlines()) == len(result.table) + 1
    assert result.markdown().startswith("| method | l2 |")


def test_compare_refuses_draws_of_the_other_kind():
    with pytest.raises(OptionError, match="consensus combines draws of fractional subposteriors"):
        compare(SHARDS, SHARDS[0], ["consensus"])
    result = compare(SHARDS, SHARDS[0], ["consensus"], scaling="fractional")
    assert result.table.index[0] == "consensus"
    every = compare(SHARDS[:, :50], SHARDS[0], distance_names=["kl"]).table.index
    assert set(every) >= {"recenter", "swiss", "pie"}
    assert "product" not in every


def test_compare_checks_its_seed_and_that_there_are_draws():
    with pytest.raises(OptionError, match="seed"):
        compare(SHARDS, SHARDS[0], ["recenter"], seed=-1)
    with pytest.raises(OptionError, match="There are no draws"):
        compare({}, SHARDS[0], ["recenter"])


def test_a_method_that_refuses_leaves_the_others_alone():
    result = compare(SHARDS, SHARDS[0], ["laplace", "pie"], distance_names=["kl"])
    assert np.isnan(result.table.loc["laplace", "kl"])
    assert "needs the mode" in result.notes["laplace"][0]
    assert np.isfinite(result.table.loc["pie", "kl"])


def test_compare_takes_exact_references_and_named_ones():
    exact = compare(SHARDS[:, :, :1], stats.norm(0, 1), ["pie"])
    assert "l2" in exact.table.columns
    shards = [{"a": s[:, 0], "b": s[:, 1]} for s in SHARDS]
    named = compare(shards, {"b": SHARDS[0, :, 1], "a": SHARDS[0, :, 0]}, ["pie"], distance_names=["mean"])
    assert named.table.loc["pie", "mean"] < 0.3
    with pytest.raises(OptionError, match="The reference has parameters c"):
        compare(shards, {"c": SHARDS[0, :, 1]}, ["pie"])
