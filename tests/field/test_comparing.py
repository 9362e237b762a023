"""Methods of both families by name, on the same rows, in one table; and what proxies save on the paper's Example 2."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.errors import OptionError
from shardmc.field import SGLD, Confidence, Propagation

Y = np.random.default_rng(0).normal(2.0, 1.0, 4_000).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    return shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})


@pytest.mark.slow
def test_one_table_for_both_families(model):
    reference = np.random.default_rng(1).normal(Y.mean(), 1 / np.sqrt(len(Y)), size=(20_000, 1))
    methods = {
        "recenter": "recenter",
        "ep": Propagation(site_draws=50),
        "far too large a step": SGLD(step_size=1.0, thin=5),
        "lost": SGLD(step_size=3.99, control_variates=True, chains=1, thin=1),
    }
    options = {"shards": 4, "draws": 1_000, "precision": "single"}
    result = shardmc.compare_methods(model, Y, reference, methods, **options)
    table = result.table
    assert list(table.index) == [*methods, "noise floor, 1000 draws"]
    assert list(table.columns) == ["kl", "worst_mean", "worst_sd", "draws", "ess", "passes", "seconds"]
    # The noise of 1,000 independent draws is 0.03 in a mean and 0.02 in the logarithm of an sd.
    assert (table.loc[["recenter", "ep"], "worst_mean"] < 6 * 0.032).all()
    assert (table.loc[["recenter", "ep"], "worst_sd"] < 6 * 0.023).all()
    assert table.loc["far too large a step", "worst_sd"] > 0.5
    assert (table["passes"].iloc[:4] > 0).all()
    assert "Expectation propagation converged in 1 round" in result.notes["ep"][-1]
    assert "passes" in str(result).splitlines()[0]


@pytest.mark.slow
def test_a_method_that_refuses_has_a_note_and_no_numbers(model):
    steep = shardmc.Model(lambda params, y: -((y - params["mu"]) ** 4), None, {"mu": ()})
    methods = {"diverges": SGLD(step_size=3.9, minibatch=1), "laplace": "laplace"}
    result = shardmc.compare_methods(
        steep, Y[:500], np.zeros((50, 1)) + Y[:50, None], methods, draws=200, shards=2, precision="single"
    )
    assert np.isnan(result.table.loc["diverges", "kl"])
    assert "SGLD diverged" in result.notes["diverges"][0]


def test_an_unknown_method_is_refused_before_anything_runs(model):
    with pytest.raises(
        OptionError, match=r"Unknown method 'sgld-vc'\. Did you mean 'sgld-cv'\? Valid: algorithm-1"
    ):
        shardmc.compare_methods(model, "nowhere.parquet", methods=["recenter", "sgld-vc"])


@pytest.mark.slow
def test_proxies_save_rows_on_example_2_and_the_plain_confidence_sampler_does_not():
    """All make the same decisions with the same proposals, so rows per step compare rows per effective draw.

    Metropolis on all rows evaluates each of them once per step, as the value at the old point is known.
    """
    rng = np.random.default_rng(1)
    count, beta = 100_000, np.array([0.3, 5.0, -7.0, 2.4, -20.0])
    x = np.column_stack([np.ones(count), rng.random((count, 4))]).astype(np.float32)
    y = (rng.random(count) < 1 / (1 + np.exp(-x @ beta))).astype(np.float32)
    model = shardmc.Model(
        lambda params, rows: rows[1] * (rows[0] @ params["b"]) - jax.nn.softplus(rows[0] @ params["b"]),
        lambda params: -0.5 * jnp.sum(params["b"] ** 2) / 100,
        {"b": 5},
    )
    options = {"check": False, "precision": "single", "thin": 5, "chains": 1, "warmup": 0}
    once = 7  # passes before the first step: the bound, and the expansion at the mode
    proxies = shardmc.subsample(model, (x, y), Confidence(proxies=True), draws=200, **options)
    plain = shardmc.subsample(model, (x, y), Confidence(), draws=20, minibatch=1_000, **options)
    steps = {200: 5 * 200, 20: 5 * 20}
    per_step = (proxies.passes["subsample"] - once) / steps[200]
    assert per_step < 1 / 5
    assert (plain.passes["subsample"] - once + 1) / steps[20] > 1
    assert 0.15 < proxies.shards.acceptance[0] < 0.4
