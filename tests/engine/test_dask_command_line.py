"""`--engine dask`: the same draws as on this machine, and a sentence where there is no cluster."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.errors import OptionError

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    rng = np.random.default_rng(0)
    x = rng.normal(size=2_000)
    pq.write_table(pa.table({"x": x, "y": rng.poisson(np.exp(0.2 + 0.3 * x))}), folder / "rows.parquet")
    return folder


def fit(folder, out, *more):
    command = ["fit", "rows.parquet", "y ~ x", "--family", "poisson", "--shards", "4", "--draws", "200"]
    done = subprocess.run(
        [sys.executable, "-m", "shardmc", *command, "--no-report", "--out", out, *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return shardmc.load(folder / out)


def test_a_scheduler_is_named_by_its_address(client, folder):
    here = fit(folder, "here")
    dask = ("--engine", "dask", "--scheduler", client.scheduler.address)
    there = fit(folder, "there", *dask, "--memory", "0", "--scratch", "scratch")
    assert list((folder / "scratch").glob("*/complete.json"))  # the workers read the rows from there
    np.testing.assert_array_equal(there.theta, here.theta)
    np.testing.assert_array_equal(there.shards.draws, here.shards.draws)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nowhere://host"])
def test_an_address_without_a_scheduler_is_said(address):
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(OptionError, match=f"No Dask scheduler answers at '{address}'"),
    ):
        shardmc.Dask(address)
