"""Compiled programs survive the command that made them."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc


@pytest.mark.slow
def test_a_second_run_compiles_nothing_anew_and_gives_the_same_draws(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=4_000)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": x, "y": 1 + x + rng.normal(size=4_000)}), path)
    ours = ("JAX_", "SHARDMC_PROGRAMS")
    chosen = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment = {**chosen, "XDG_CACHE_HOME": str(tmp_path / "cache")}

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
        # A program that is compiled again is written again.
        return {p.name: p.stat().st_ino for p in (tmp_path / "cache").rglob("*.program")}

    first, second = run("one"), run("two")
    assert first
    assert first == second
    one, two = shardmc.load(tmp_path / "one"), shardmc.load(tmp_path / "two")
    np.testing.assert_array_equal(one.theta, two.theta)
