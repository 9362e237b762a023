"""`--engine dask`: the same draws as on this machine, and a sentence where there is no cluster."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmc
from shardmc.errors import OptionError

pytestmark = pytest.mark.cluster


@pytest.fixture
def fit(command, tmp_path):
    """Fits `rows.parquet` by the command line, with more options."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=2_000)
    pq.write_table(pa.table({"x": x, "y": rng.poisson(np.exp(0.2 + 0.3 * x))}), tmp_path / "rows.parquet")
    options = ["--family", "poisson", "--shards", "4", "--draws", "200", "--no-report"]

    def run(out, *more):
        done = command("fit", "rows.parquet", "y ~ x", *options, "--out", out, *more)
        assert done.returncode == 0, done.stderr
        return shardmc.load(tmp_path / out)

    return run


def test_a_scheduler_is_named_by_its_address(client, fit, tmp_path):
    here = fit("here")
    dask = ("--engine", "dask", "--scheduler", client.scheduler.address)
    there = fit("there", *dask, "--memory", "0", "--scratch", "scratch")
    assert list((tmp_path / "scratch").glob("*/complete.json"))  # the workers read the rows from there
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
