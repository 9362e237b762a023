"""Posteriors that are hard to climb: the cheap ones of `benchmarks/hard_modes.py`, each with its right outcome."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import hard_modes

CHEAP = [case for case in hard_modes.CASES if case.cheap]
SLOW = ("non-centred effects, 5 groups", "Student t, an outlier of 1,000 sd")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] * (case.name in SLOW)) for case in CHEAP],
)
def test_outcome(case):
    outcome = hard_modes.outcome(case)
    assert outcome.right, outcome.what


def test_there_are_fifty_of_each_kind():
    assert len(hard_modes.CASES) >= 50
    assert len({case.name for case in hard_modes.CASES}) == len(hard_modes.CASES)
    assert sum(bool(case.improper) for case in hard_modes.CASES) >= 5


def test_a_wrong_mode_is_seen():
    """The negative control: a point a fifth of a standard deviation off counts as wrong."""
    case = next(case for case in CHEAP if "correlation 0.9999" in case.name)
    model, rows = case.build()
    x, _ = rows
    curvature = x.T.astype(float) @ x / 4.5  # about that of the logistic likelihood
    off = 0.2 * np.linalg.cholesky(np.linalg.inv(curvature))[:, 0]
    from shardmc.data import Partition, as_source
    from shardmc.engine import Local
    from shardmc.locate import locate

    mode = locate(model, as_source(rows).split(Partition(4), 0), Local())
    assert hard_modes.distance_to_mode(model, rows, mode.theta) < hard_modes.CLOSE
    assert hard_modes.distance_to_mode(model, rows, mode.theta + off) > hard_modes.CLOSE
