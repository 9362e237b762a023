"""`shardmc.subsample`: what it returns, what it counts, what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest

import shardmc
from shardmc.data import as_source
from shardmc.errors import DataError, OptionError, SamplingError
from shardmc.field import METHODS, SGLD, Confidence, named_method

ROWS, DRAWS = 4_000, 400
Y = np.random.default_rng(0).normal(2.0, 1.0, ROWS).astype(np.float32)
SMALL = {"chains": 2, "warmup": 2, "thin": 3, "minibatch": 50}
SINGLE = {"check": False, "precision": "single"}
PER_ROW = {"sgld-cv": 2, "sghmc-cv": 2}


@pytest.fixture(scope="module")
def model():
    return shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})


@pytest.fixture(scope="module")
def certified(model):
    calls: list[tuple[str, int, int]] = []
    posterior = shardmc.subsample(
        model,
        Y,
        "sgld-cv",
        draws=2_000,
        seed=3,
        thin=5,
        progress=lambda stage, done, total: calls.append((stage, done, total)),
    )
    return posterior, calls


def test_the_posterior_is_like_that_of_fit(certified, tmp_path):
    posterior, calls = certified
    assert posterior.num_draws == 2_000
    assert posterior.shards.num_shards == 1
    assert posterior.shards.sampler == ("SGLD",)
    assert posterior.certificate is not None
    assert posterior.certificate.verdict == "within"
    assert posterior.plan.method.startswith("SGLD(control_variates=True")
    assert abs(posterior.draws["mu"].mean() - Y.mean()) < 0.1 / np.sqrt(ROWS) * 3
    assert any("SGLD uses the step size" in note for note in posterior.notes)
    assert ("subsample", 20, 20) in calls
    assert {stage for stage, _, _ in calls} >= {"read", "split", "precision", "locate", "subsample", "check"}
    loaded = shardmc.load(posterior.save(tmp_path / "posterior.nc"))
    np.testing.assert_array_equal(loaded.theta, posterior.theta)
    assert loaded.plan == posterior.plan
    assert posterior.report(tmp_path / "report.html").stat().st_size > 0


@pytest.mark.parametrize("name", ["sgld", "sgld-cv", "sghmc", "sghmc-cv"])
def test_row_evaluations_of_gradients_are_counted_exactly(model, name):
    """50 rows a step, 3 steps a draw, 2 chains of 20 parts of 11 draws; control variates need a pass at the mode."""
    posterior = shardmc.subsample(model, Y, name, draws=DRAWS, step_size=0.1, **SINGLE, **SMALL)
    steps = 2 * 20 * 11 * 3
    per_row = PER_ROW.get(name, 1)
    assert posterior.passes["subsample"] == pytest.approx(steps * 50 * per_row / ROWS + (per_row == 2))


def test_row_evaluations_of_a_test_that_needs_all_rows_are_counted_exactly(model):
    """A tolerance so small that every decision reads all rows at both points; 6 passes measure the bound."""
    exact = Confidence(tolerance=1e-12, safety=1e3, **SMALL)
    posterior = shardmc.subsample(model, Y, exact, draws=DRAWS, **SINGLE)
    assert posterior.passes["subsample"] == pytest.approx(2 * 2 * 20 * 11 * 3 + 6)


@pytest.mark.parametrize("name", ["austerity", "confidence-proxies"])
def test_row_evaluations_of_tests_on_minibatches_are_whole_minibatches(model, name):
    """80 minibatches of 50 rows; a row that is read is evaluated 2 times, or 4 with proxies."""
    posterior = shardmc.subsample(model, Y, name, draws=DRAWS, **SINGLE, **SMALL)
    before = 0 if name == "austerity" else 7
    read = (posterior.passes["subsample"] - before) * ROWS / (2 if name == "austerity" else 4) / 50
    assert read == pytest.approx(round(read), abs=1e-6)
    assert 2 * 20 * 11 * 3 <= read < 80 * 2 * 20 * 11 * 3
    assert posterior.num_draws == DRAWS


def test_the_same_seed_gives_the_same_draws(model):
    options = {"draws": DRAWS, "step_size": 0.1, **SINGLE, **SMALL}
    one, same, other = (shardmc.subsample(model, Y, "sgld", seed=s, **options).theta for s in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.slow
def test_a_weight_counts_a_row_several_times(model):
    """Rows of weight 3 have the posterior of rows that are there three times, sd 1 / sqrt(3 N)."""
    options = {"draws": 4_000, "step_size": 0.2, "thin": 10, **SINGLE}
    posterior = shardmc.subsample(model, Y, "sgld-cv", weights=np.full(ROWS, 3.0), **options)
    # The variance of SGLD is 1 / (1 - 0.2 / 4) times the right one. The draws are worth more than 1,000.
    assert posterior.theta.std() * np.sqrt(3 * ROWS * 0.95) == pytest.approx(1, abs=6 / np.sqrt(2_000))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("sgdl", {}, "Unknown method 'sgdl'. Did you mean 'sgld'"),
        (3, {}, "Unknown method 3"),
        ("sgld", {"minibach": 3}, "Unknown option of method 'sgld' 'minibach'. Did you mean 'minibatch'"),
        ("sgld", {"minibatch": 0}, "minibatch of SGLD must be a whole number from 1"),
        ("sgld", {"step_size": 5.0}, "step_size of SGLD must be above 0 and below 4"),
        ("sghmc", {"friction": -1.0}, "friction of SGHMC must be above 0"),
        ("sgld", {"decay": 1.0}, "decay of SGLD must be at least 0 and below 1; 1.0 was given"),
        ("austerity", {"tolerance": 0.7}, "tolerance of Austerity must be above 0 and below 0.5"),
        ("confidence", {"tolerance": 1.5}, "tolerance of Confidence must be above 0 and below 1"),
        ("sgld", {"draws": 0}, "draws must be a positive whole number"),
        ("sgld", {"certify": shardmc.Certify(rows=0.5)}, "subsample certifies with all rows"),
    ],
)
def test_mistakes_are_refused_before_the_data_is_looked_at(model, method, options, message):
    with pytest.raises(OptionError, match=message):
        shardmc.subsample(model, "nowhere.parquet", method, **options)


def test_rows_that_are_not_in_memory_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    model = shardmc.Model(lambda params, rows: -0.5 * (rows["y"] - params["mu"]) ** 2, None, {"mu": ()})
    pq.write_table(pa.table({"y": Y}), tmp_path / "y.parquet")
    source = as_source(tmp_path / "y.parquet", memory=100)
    with pytest.raises(DataError, match="need all rows in memory"):
        shardmc.subsample(model, source, draws=10, **SINGLE)


def test_a_chain_that_diverges_is_an_error_that_names_the_option():
    rows = np.random.default_rng(0).normal(size=500).astype(np.float32)
    steep = shardmc.Model(lambda params, y: -((y - params["mu"]) ** 4), None, {"mu": ()})
    with pytest.raises(SamplingError, match=r"SGLD diverged: some draws .* Use a smaller step_size"):
        shardmc.subsample(steep, rows, "sgld", step_size=3.9, draws=200, minibatch=1, **SINGLE)


@pytest.mark.slow
def test_advice_names_options_of_the_method(model):
    """Plain SGLD with far too large a step: its certificate is off, and the advice is not about shards."""
    posterior = shardmc.subsample(model, Y, "sgld", step_size=0.5, thin=5, draws=2_000, precision="single")
    assert posterior.certificate is not None
    assert posterior.certificate.verdict == "off"
    assert posterior.certificate.advice == SGLD.advice
    assert not any(re.search(r"\bshards?\b", finding.advice) for finding in posterior.findings)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_frozen_values(name):
    assert named_method(name) == named_method(name)
    assert hash(named_method(name)) == hash(METHODS[name]())
