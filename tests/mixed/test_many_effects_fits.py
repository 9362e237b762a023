"""Fits with more than three effects per group: counts, correlated effects, weights, predictions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import shardmc
from shardmc.engine import Engine

NAMES = ["x1", "x2", "x3"]
GROUPS, ROWS = 120, 6
SDS = np.array([0.9, 0.7, 0.5, 0.5])
CORRELATION = 0.7  # of intercept and x1
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Counting(Engine):
    """An engine that counts the shards on which each program ran."""

    counts: Counter[str]

    def map(self, program, blocks, per_shard, shared, shards=None, on_done=None, on_failure=None):
        for result in shardmc.Local().map(program, blocks, per_shard, shared, shards, on_done, on_failure):
            self.counts[type(program).__name__] += 1
            yield result


ENGINE = Counting(Counter())


def _fit(formula: str, data: pd.DataFrame, **options) -> shardmc.Posterior:
    return shardmc.glm(formula, data, family="poisson", draws=400, shards=1, check=False, seed=1, **options)


@pytest.fixture(scope="module")
def counts() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    g = np.repeat(np.arange(GROUPS), ROWS)
    data = pd.DataFrame(rng.normal(size=(len(g), 3)), columns=NAMES).assign(g=g)
    covariance = np.diag(SDS**2)
    covariance[0, 1] = covariance[1, 0] = CORRELATION * SDS[0] * SDS[1]
    effects = rng.multivariate_normal(np.zeros(4), covariance, size=GROUPS)
    eta = effects[g, 0] + np.sum(data[NAMES] * effects[g, 1:], axis=1)
    return data.assign(y=rng.poisson(np.exp(eta)), weight=1.0)


@pytest.fixture(scope="module")
def independent(counts) -> shardmc.Posterior:
    return _fit("y ~ x1 + x2 + x3 + (1 + x1 + x2 + x3 || g)", counts, weights="weight", engine=ENGINE)


def test_the_search_follows_scores(independent):
    """Second derivatives of all groups are computed twice: at the mode, and at the mode of the only shard."""
    assert ENGINE.counts["SubposteriorTerms"] == 2
    assert ENGINE.counts["SubposteriorScores"] > 4


def test_correlated_effects(counts):
    summary = _fit("y ~ x1 + x2 + x3 + (1 + x1 + x2 + x3 | g)", counts).summary()
    for name, truth in zip(("Intercept", *NAMES), SDS, strict=True):
        row = summary.loc[f"sd_g__{name}"]
        assert abs(row["mean"] - truth) < 5 * row["sd"]
    found, absent = (summary.loc[f"cor_g__{pair}"] for pair in ("Intercept__x1", "x2__x3"))
    assert abs(found["mean"] - CORRELATION) < 5 * found["sd"]
    assert found["mean"] > 4 * found["sd"]
    assert abs(absent["mean"]) < 5 * absent["sd"]


def test_rows_of_weight_zero_say_nothing(counts, independent):
    """Negative control: with weight 1 the same rows move an sd by many posterior sds."""
    rng = np.random.default_rng(4)
    wrong = counts.iloc[::ROWS].assign(y=rng.poisson(30.0, GROUPS))
    formula = "y ~ x1 + x2 + x3 + (1 + x1 + x2 + x3 || g)"
    more = pd.concat([counts, wrong.assign(weight=0.0)], ignore_index=True)
    before = independent.summary()
    shifts = []
    for weight in ("weight", None):
        after = _fit(formula, more, weights=weight).summary().loc[before.index]
        shifts.append(float(((after["mean"] - before["mean"]) / before["sd"]).abs().max()))
    # The draws are worth at least 100 each, and most of their noise is the same.
    assert shifts[0] < 0.5
    assert shifts[1] > 3


def test_predictions_know_the_groups(counts, independent):
    """Of known groups they are near the mean of the group's rows, of new groups less certain."""
    mean = counts.groupby("g")["y"].mean()
    high, low = int(mean.idxmax()), int(mean.idxmin())
    new = pd.DataFrame({name: [0.0] * 3 for name in NAMES}).assign(g=[high, low, GROUPS + 1], weight=1.0)
    found = independent.predict(new)
    assert found["mean"].iloc[0] > 3 * found["mean"].iloc[1]
    relative = found["sd"] / found["mean"]
    assert relative.iloc[2] > relative.iloc[0]
