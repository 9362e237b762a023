"""Compiled programs survive the command that made them."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.programs.cache import cache_folder, keep_programs_of_command


def test_a_folder_that_the_user_chose_stays_chosen(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "7")
    keep_programs_of_command()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "7"


def test_programs_lie_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().is_relative_to(tmp_path / "shardmc")


@pytest.mark.slow
def test_a_second_run_compiles_nothing_anew_and_gives_the_same_draws(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=4_000)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": x, "y": 1 + x + rng.normal(size=4_000)}), path)
    chosen = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    # All programs are kept, however fast they were compiled: which ones are not would depend on the machine's load.
    environment = {
        **chosen,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def run(name):
        command = [
            sys.executable,
            "-m",
            "shardmc",
            "fit",
            str(path),
            "y ~ x",
            "--draws",
            "400",
            "--no-report",
            "--precision",
            "single",
        ]
        subprocess.run(
            [*command, "--shards", "4", "--out", str(tmp_path / name)],
            env=environment,
            check=True,
            capture_output=True,
        )
        return {p.name for p in (tmp_path / "cache").rglob("*-cache")}

    first, second = run("one"), run("two")
    assert first
    assert first == second
    one, two = shardmc.load(tmp_path / "one"), shardmc.load(tmp_path / "two")
    np.testing.assert_array_equal(one.theta, two.theta)
