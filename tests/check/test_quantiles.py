"""The distributions of the checks agree with SciPy's, also far in the tails."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import fft, special

from shardmc.check.quantiles import (
    fisher_quantile,
    next_fast_length,
    normal_cdf,
    normal_quantile,
    student_tails,
)


def test_normal_distribution():
    x = np.linspace(-30, 8, 400)
    np.testing.assert_allclose(normal_cdf(x), special.ndtr(x), rtol=1e-12)
    p = np.concatenate([np.linspace(0.001, 0.999, 500), [1e-300, 1e-9, 1 - 1e-9]])
    np.testing.assert_allclose(normal_quantile(p), special.ndtri(p), rtol=1e-12, atol=1e-14)
    assert np.isnan(normal_cdf(np.array([np.nan]))).all()


@pytest.mark.parametrize("df", [1.0, 2.5, 9.0, 99.0, 1_000.0, 1e6])
def test_students_distribution(df):
    t = np.array([0.0, 0.1, 1.0, 2.0, 5.0, 20.0, 300.0, np.inf, np.nan])
    np.testing.assert_allclose(student_tails(df, t), 2 * special.stdtr(df, -t), rtol=2e-9, atol=1e-300)


def test_students_distribution_of_arrays():
    df, t = np.array([[3.0], [np.nan]]), np.array([1.0, -4.0])
    np.testing.assert_allclose(student_tails(df, t), 2 * special.stdtr(df, -np.abs(t)), rtol=1e-12)


@pytest.mark.parametrize("top", [1, 3, 7, 15])
@pytest.mark.parametrize("beyond", [0.05, 1e-4, 1e-9])
def test_fishers_distribution(top, beyond):
    bottom = np.array([2.0, 3.7, 40.0, 1_000.0, 1e5])
    found = fisher_quantile(top, bottom, beyond)
    np.testing.assert_allclose(special.fdtrc(top, bottom, found), beyond, rtol=1e-9)
    assert np.isnan(fisher_quantile(top, np.array([np.nan]), beyond)).all()


def test_fast_lengths():
    assert [next_fast_length(n) for n in range(1, 3_000)] == [
        fft.next_fast_len(n, real=True) for n in range(1, 3_000)
    ]
