"""The order of the rows in a file does not matter: sorted by the response it gives the same posterior as shuffled."""

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import shardmc
from shardmc.data import as_source

LEVEL = 1e-8
NUM_ROWS = 8_000


@pytest.fixture(scope="module")
def model():
    def log_likelihood(params, rows):
        eta = params["alpha"] + params["beta"] * rows["x"]
        return rows["y"] * eta - jax.nn.softplus(eta)

    def log_prior(params):
        return -0.5 * (params["alpha"] ** 2 + params["beta"] ** 2) / 25

    return shardmc.Model(log_likelihood, log_prior, {"alpha": (), "beta": ()})


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=NUM_ROWS)
    y = rng.random(NUM_ROWS) < 1 / (1 + np.exp(1.0 - 0.7 * x))
    return {"x": x.astype(np.float32), "y": y.astype(np.float32)}


def fit_in_order(model, table, order, folder, **options):
    """A fit of the rows in this order, streamed from files."""
    rows = pa.table({name: column[order] for name, column in table.items()})
    pq.write_table(rows, folder / "rows.parquet", row_group_size=1_000)
    source = as_source(folder / "rows.parquet", memory=0)
    options = {"shards": 8, "draws": 4_000, "sampler": "independence", "keep": None, **options}
    return shardmc.fit(model, source, **options)


def differ(first, second) -> bool:
    """Whether two sets of draws are of different posteriors, by means and standard deviations.

    With effective sizes n and m the difference of the means has covariance V (1/n + 1/m), that of the logarithms of a
    standard deviation variance (1/n + 1/m) / 2. The effective sizes are taken at half of what was estimated, which
    makes the level conservative; the three tests share it.
    """
    noise = sum(2 / p.summary()["ess"].min() for p in (first, second))
    gap = first.theta.mean(axis=0) - second.theta.mean(axis=0)
    sds = np.log(first.theta.std(axis=0) / second.theta.std(axis=0))
    tails = [
        stats.chi2.sf(gap @ second.curvature @ gap / noise, 2),
        *2 * stats.norm.sf(np.abs(sds) / np.sqrt(noise / 2)),
    ]
    return bool(min(tails) < LEVEL / 3)


@pytest.mark.slow
def test_rows_sorted_by_the_response_give_the_same_posterior(model, table, tmp_path):
    shuffled = fit_in_order(model, table, np.random.default_rng(1).permutation(NUM_ROWS), tmp_path, seed=1)
    by_response = np.argsort(table["y"], kind="stable")
    in_order = fit_in_order(model, table, by_response, tmp_path, seed=2)
    assert not differ(in_order, shuffled)
    assert in_order.certificate.verdict != "off"
    np.testing.assert_allclose(in_order.mode, shuffled.mode, atol=1e-4)
    # The control: shards taken in the file's order hold zeros or ones alone.
    naive = fit_in_order(model, table, by_response, tmp_path, seed=2, shuffle=False, combiner="algorithm-1")
    assert differ(naive, shuffled)
