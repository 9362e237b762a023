"""Effective sample size and split R-hat of very many short chains at once.

The definitions are those of arviz-stats, up to rounding. Its functions loop over series in Python. For a thousand
shards with fifty parameters that takes longer than the sampling.
"""

from __future__ import annotations

import numpy as np

from shardmc.check import special


def effective_size(series: np.ndarray) -> np.ndarray:
    """Effective number of draws for the mean, (...) from series (..., chain, draw) of at least four draws.

    Chains are split in halves; autocorrelations are summed by Geyer's initial monotone sequence of pairs. As
    `array_stats.ess(series, method="mean")`.

    Examples
    --------
    >>> from arviz_stats.base.array import array_stats
    >>> series = np.random.default_rng(0).normal(size=(3, 2, 500))
    >>> bool(np.allclose(effective_size(series), array_stats.ess(series, method="mean")))
    True
    """
    halves = split_chains(series)
    chains, draws = halves.shape[-2:]
    covariance = _autocovariance(halves).mean(axis=-2)  # (..., lag)
    within = covariance[..., :1] * draws / (draws - 1)
    total = within * (draws - 1) / draws + halves.mean(axis=-1).var(axis=-1, ddof=1)[..., None]
    constant = np.ptp(halves, axis=(-2, -1)) < np.finfo(float).resolution
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (within - covariance) / total
    correlation[..., 0] = 1
    time = _initial_monotone_sum(correlation)
    size = chains * draws
    return np.where(constant, size, size / np.maximum(time, 1 / np.log10(size)))


def _autocovariance(series: np.ndarray) -> np.ndarray:
    """Autocovariances at all lags, (..., lag), by the Fourier transform of the padded series."""
    from scipy import fft  # imported here because it is slow to import

    draws = series.shape[-1]
    size = fft.next_fast_len(2 * draws, real=True)
    spectrum = np.fft.rfft(series - series.mean(axis=-1, keepdims=True), size)
    return np.fft.irfft(np.abs(spectrum) ** 2, size)[..., :draws] / draws


def _initial_monotone_sum(correlation: np.ndarray) -> np.ndarray:
    """Integrated autocorrelation time -1 + 2 sum rho_t, (...), from autocorrelations (..., lag)."""
    lags = correlation.shape[-1]
    looked = max((lags - 1) // 2, 1)  # pairs (rho_2j, rho_2j+1); the last ones are too noisy
    even = correlation[..., 0 : 2 * looked : 2]
    pairs = even + correlation[..., 1 : 2 * looked : 2]
    stop = np.where((pairs > 0).all(axis=-1), looked - 1, np.argmin(pairs > 0, axis=-1))
    kept = np.arange(looked) < stop[..., None]
    monotone = np.minimum.accumulate(np.where(kept, pairs, np.inf), axis=-1)
    at_stop = np.take_along_axis(even, stop[..., None], axis=-1)[..., 0]
    above = np.take_along_axis(pairs, stop[..., None], axis=-1)[..., 0] >= 0
    tail = np.where(above, at_stop, np.maximum(at_stop, 0))
    return -1 + 2 * np.sum(np.where(kept, monotone, 0), axis=-1) + tail


def split_r_hat(series: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat, the larger of bulk and tail, (...) from series (..., chain, draw).

    As `array_stats.rhat(series)`. One chain is enough: its halves are compared.

    Examples
    --------
    >>> from arviz_stats.base.array import array_stats
    >>> series = np.random.default_rng(0).normal(size=(3, 2, 500))
    >>> bool(np.allclose(split_r_hat(series), array_stats.rhat(series)))
    True
    """
    halves = split_chains(series)
    folded = np.abs(halves - np.median(halves, axis=(-2, -1), keepdims=True))
    return np.maximum(_r_hat(_normal_scores(halves)), _r_hat(_normal_scores(folded)))


def split_chains(series: np.ndarray) -> np.ndarray:
    """The two halves of every chain as chains, (..., 2 chain, draw / 2). An odd draw in the middle is dropped."""
    half = series.shape[-1] // 2
    return np.concatenate([series[..., :half], series[..., -half:]], axis=-2)


def _normal_scores(series: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks of all draws of a series (Blom's)."""
    flat = series.reshape(*series.shape[:-2], -1)
    count = flat.shape[-1]
    # Ranks are multiples of a half, so few quantiles are needed.
    quantiles = special.ndtri((np.arange(2 * count - 1) / 2 + 5 / 8) / (count + 1 / 4))
    return quantiles[_twice_ranks(flat)].reshape(series.shape)


def _twice_ranks(values: np.ndarray) -> np.ndarray:
    """Twice the ranks from 0 along the last axis; ties get their mean rank.

    As `2 * scipy.stats.rankdata(values, axis=-1) - 2` for finite values, without importing `scipy.stats`, which is
    slow.

    >>> _twice_ranks(np.array([[3.0, 1.0, 3.0, 2.0]])).tolist()
    [[5, 0, 5, 2]]
    """
    order = np.argsort(values, axis=-1)
    ascending = np.take_along_axis(values, order, axis=-1)
    position = np.arange(values.shape[-1], dtype=np.int32)
    differs = ascending[..., 1:] != ascending[..., :-1]
    first, last = np.zeros(values.shape, np.int32), np.full(values.shape, position[-1])
    first[..., 1:] = np.where(differs, position[1:], 0)
    last[..., :-1] = np.where(differs, position[:-1], position[-1])
    backwards = last[..., ::-1]
    np.maximum.accumulate(first, axis=-1, out=first)
    np.minimum.accumulate(backwards, axis=-1, out=backwards)
    ranks = np.empty(values.shape, np.int32)
    np.put_along_axis(ranks, order, first + last, axis=-1)
    return ranks


def _r_hat(series: np.ndarray) -> np.ndarray:
    """Square root of the total over the within-chain variance, (...)."""
    draws = series.shape[-1]
    between = series.mean(axis=-1).var(axis=-1, ddof=1)
    within = series.var(axis=-1, ddof=1).mean(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(between / within + (draws - 1) / draws)
