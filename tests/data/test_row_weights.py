"""Weights of a survey are not counts of rows, and a fit says so."""

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.data import as_source
from shardmc.data.row_weights import SurveyWeights, read_weights

ROWS = 400
SURVEY = np.random.default_rng(0).uniform(100, 3_000, ROWS)
INNOCENT = {
    "none": None,
    "counts": np.arange(ROWS) % 40,
    "counts as real numbers": (np.arange(ROWS) % 40).astype(float),
    "normalised": SURVEY / SURVEY.mean(),
    "no such column": "nowhere",
}


@pytest.mark.parametrize("name", INNOCENT)
def test_weights_that_can_be_counts_are_not_doubted(name):
    assert read_weights(as_source({"y": np.arange(ROWS)}), INNOCENT[name]).findings == ()


@pytest.mark.parametrize("given", ["array", "device", "column", "table"])
def test_weights_of_a_survey_are_a_warning(given):
    table = {"y": np.arange(ROWS, dtype=float), "weight": SURVEY}
    weights = {"array": SURVEY, "device": jnp.asarray(SURVEY)}.get(given, "weight")
    source = as_source(pd.DataFrame(table) if given == "table" else table)
    (finding,) = read_weights(source, weights).findings
    assert finding.level == "warning"
    assert "all posterior sds are about" in finding.message
    assert f"{np.sqrt(SURVEY.mean()):.3g}" in finding.message


def test_small_weights_make_sds_too_large():
    (finding,) = read_weights(as_source(np.arange(ROWS)), SURVEY / SURVEY.sum()).findings
    assert "times too large" in finding.message


def test_a_fit_says_so():
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=ROWS), "y": rng.normal(size=ROWS), "weight": SURVEY}
    options = {"shards": 2, "draws": 40, "weights": "weight", "precision": "single"}
    posterior = shardmc.glm("y ~ x", table, check=False, **options)
    assert "weights" in [finding.check for finding in posterior.findings]


@pytest.mark.parametrize("given", ["array", "column"])
def test_survey_weights_sum_to_the_effective_sample(given):
    source = as_source({"y": np.arange(ROWS, dtype=float), "weight": SURVEY})
    found = read_weights(source, SurveyWeights(SURVEY if given == "array" else "weight"))
    assert found.findings == ()
    assert found.factor * SURVEY.sum() == pytest.approx(SURVEY.sum() ** 2 / (SURVEY**2).sum())
