"""The distributions that the checks of every fit need. `scipy.special` takes a fifth of a second to load."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

_STANDARD = NormalDist()
_erfc = np.frompyfunc(math.erfc, 1, 1)
_log_gamma = np.frompyfunc(math.lgamma, 1, 1)
_inverse = np.frompyfunc(_STANDARD.inv_cdf, 1, 1)
_MOST_STEPS = 10_000
_TINY = 1e-300


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """Probability that a standard normal variable is below x.

    >>> normal_cdf(np.array([-1.959963984540054, 0.0])).round(12)
    array([0.025, 0.5  ])
    """
    return np.asarray(_erfc(np.asarray(x, float) * -math.sqrt(0.5)), float) / 2


def normal_quantile(p: np.ndarray) -> np.ndarray:
    """The point below which a standard normal variable is with probability p, 0 < p < 1.

    >>> normal_quantile(np.array([0.025, 0.5])).round(6)
    array([-1.959964,  0.      ])
    """
    return np.asarray(_inverse(np.asarray(p, float)), float)


def student_tails(df: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Probability that |T| exceeds |t|, for T with Student's distribution of `df` degrees of freedom.

    >>> student_tails(np.array([1.0, 30.0]), np.array([1.0, -2.042272])).round(6)
    array([0.5 , 0.05])
    """
    df, t = np.broadcast_arrays(np.asarray(df, float), np.abs(np.asarray(t, float)))
    known = np.isfinite(df) & np.isfinite(t) & (df > 0) & (t > 0)
    a, square = np.where(known, df, 1.0), np.where(known, t, 1.0) ** 2
    inside = np.exp(_log_beta_part(a / 2, np.full(a.shape, 0.5), a / (a + square), square / (a + square)))
    edges = np.where(t == 0, 1.0, np.where(np.isposinf(t) & (df > 0), 0.0, np.nan))
    return np.where(known, inside, edges)


def fisher_quantile(top: float, bottom: np.ndarray, beyond: float) -> np.ndarray:
    """The point that a variable with Fisher's F distribution exceeds with the small probability `beyond`.

    >>> fisher_quantile(3, np.array([10.0, 100.0]), 0.05).round(4)
    array([3.7083, 2.6955])
    """
    bottom = np.asarray(bottom, float)
    known = np.isfinite(bottom)
    a, b = np.where(known, bottom, 2.0) / 2, np.full(bottom.shape, top / 2)
    log_beta = _log_beta(a, b)
    # Newton's method for u = log w, w = bottom / (bottom + top x): the log of the probability is concave in u.
    u = np.minimum((math.log(beyond) + np.log(a) + log_beta) / a, -1e-9)
    for _ in range(100):
        w, rest = np.exp(u), -np.expm1(u)
        log_part = _log_beta_part(a, b, w, rest)
        slope = np.exp(a * u + (b - 1) * np.log(rest) - log_beta - log_part)
        step = (math.log(beyond) - log_part) / slope
        u = np.where(u + step < 0, u + step, u / 2)
        if np.all(np.abs(step) <= 1e-13 * np.abs(u)):
            break
    return np.where(known, bottom / top * np.expm1(-u), np.nan)


def next_fast_length(size: int) -> int:
    """The next whole number without prime factors above 5: Fourier transforms of such lengths are fast.

    >>> next_fast_length(202), next_fast_length(1_000)
    (216, 1000)
    """
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


def _log_beta(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(_log_gamma(a) + _log_gamma(b) - _log_gamma(a + b), float)


def _log_beta_part(a: np.ndarray, b: np.ndarray, w: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Log of the regularised incomplete beta function I_w(a, b), with rest = 1 - w."""
    swapped = w > (a + 1) / (a + b + 2)
    p, q = np.where(swapped, b, a), np.where(swapped, a, b)
    x, y = np.where(swapped, rest, w), np.where(swapped, w, rest)
    with np.errstate(divide="ignore"):
        log_part = p * np.log(x) + q * np.log(y) - _log_beta(p, q) - np.log(p) - np.log(_fraction(p, q, x))
    return np.where(swapped, np.log1p(-np.exp(np.minimum(log_part, 0.0))), log_part)


def _fraction(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The continued fraction 1 + d_1 / (1 + d_2 / (1 + ...)) of the incomplete beta function, by Lentz's method."""
    value, c, d = np.ones_like(x), np.ones_like(x), np.zeros_like(x)
    for step in range(1, _MOST_STEPS):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _nonzero(1 + term * d)
        c = _nonzero(1 + term / c)
        value = value * c * d
        if np.all(np.abs(c * d - 1) < 1e-15):
            break
    return value


def _nonzero(values: np.ndarray) -> np.ndarray:
    return np.where(values == 0, _TINY, values)
