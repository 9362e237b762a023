"""What the command line prints."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest

import shardmc


@pytest.fixture
def rows(table, tmp_path):
    table.to_parquet(tmp_path / "rows.parquet")
    return tmp_path


FIT = ("fit", "rows.parquet", "y ~ x + g", "--shards", "4", "--draws", "400", "--no-report")


@pytest.mark.slow
def test_json_on_stdout_is_json_and_nothing_else(rows, command):
    done = command(*FIT, "--out", "run", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["formula"] == "y ~ x + g"
    assert found["data"] == "rows.parquet"
    assert found["rows"] == 4_000
    assert [each["parameter"] for each in found["parameters"]] == ["Intercept", "x", "g[T.south]", "sigma"]
    assert found["parameters"][1]["mean"] == pytest.approx(0.5, abs=0.1)
    assert "Wrote run/posterior.nc." in done.stderr
    assert json.loads(command("summary", "run", "--json").stdout) == found


def test_csv_on_stdout_is_a_table(rows, command):
    done = command(*FIT, "--out", "run", "--csv", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    read = pd.read_csv(io.StringIO(done.stdout), index_col="parameter")
    pd.testing.assert_frame_equal(read, shardmc.load(rows / "run").summary(), check_exact=False)


def test_quiet_prints_nothing_and_verbose_every_stage(rows, command):
    done = command(*FIT, "--out", "run", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = command(*FIT, "--out", "again", "--verbose")
    assert "shardmc: sample ..." in done.stderr
    assert "Model: y ~ x + g, family gaussian, rows of rows.parquet" in done.stdout
    both = command(*FIT, "--out", "again", "--verbose", "--quiet")
    assert both.returncode == 2
    assert "--quiet and --verbose cannot be used together" in both.stderr


@pytest.mark.slow
def test_long_names_are_whole_and_all_parameters_are_there_on_request(tmp_path, command, monkeypatch):
    rng = np.random.default_rng(0)
    levels = [f"a department with a very long name, number {k:02d}" for k in range(70)]
    rows = pd.DataFrame({"department": np.repeat(levels, 20), "y": rng.normal(size=1_400)})
    rows.to_parquet(tmp_path / "rows.parquet")
    fit = (
        "fit",
        "rows.parquet",
        "y ~ department",
        "--shards",
        "1",
        "--draws",
        "100",
        "--precision",
        "single",
        "--no-report",
        "--out",
        "run",
    )
    some = command(*fit, "--certify-draws", "20")
    assert "... and 11 more parameters: --all shows them." in some.stdout
    monkeypatch.delenv("COLUMNS")
    every = command("summary", "run", "--all").stdout
    for level in levels[1:]:
        assert f"department[T.{level}]" in every  # in a pipe nothing is folded
    assert "…" not in every
    monkeypatch.setenv("COLUMNS", "80")
    folded = command("summary", "run", "--all").stdout
    assert "…" not in folded
    assert max(map(len, folded.splitlines())) <= 80


@pytest.mark.slow
def test_force_replaces_a_run_and_nothing_else(rows, command):
    assert command(*FIT, "--out", "run").returncode == 0
    (rows / "run" / "notes.txt").write_text("mine")
    other = ("fit", "rows.parquet", "y ~ x", *FIT[3:], "--out", "run")
    refused = command(*other)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    # A mistake in the new call costs nothing.
    assert command("fit", "rows.parquet", "y ~ z", "--out", "run", "--force").returncode == 2
    assert command(*other, "--weights", "nosuch", "--force").returncode == 2
    assert "g[T.south]" in shardmc.load(rows / "run").draws
    assert command(*other, "--force").returncode == 0
    assert list(shardmc.load(rows / "run").draws) == ["Intercept", "x", "sigma"]
    assert (rows / "run" / "notes.txt").read_text() == "mine"


def test_force_leaves_a_folder_alone_that_is_not_a_run(rows, command):
    folder = rows / "thesis"
    folder.mkdir()
    (folder / "posterior.nc").write_text("mine")
    refused = command(*FIT, "--out", "thesis", "--force")
    assert refused.returncode == 2
    assert "is not a run folder" in refused.stderr
    assert (folder / "posterior.nc").read_text() == "mine"


def test_a_file_is_not_replaced_by_accident(rows, command):
    command(*FIT, "--out", "run", "--quiet")
    predict = ("predict", "run", "rows.parquet", "--out", "predicted.csv")
    assert command(*predict).returncode == 0
    refused = command(*predict)
    assert refused.returncode == 2
    assert "predicted.csv exists already" in refused.stderr
    assert command(*predict, "--force").returncode == 0
