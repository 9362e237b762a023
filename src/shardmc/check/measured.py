"""The numbers of a certificate: what gradients at some draws say about all draws, from all rows or from a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from shardmc.check import special
from shardmc.check.directions import Combination, Correction, correct, worst_combinations
from shardmc.check.mixing import effective_size
from shardmc.check.skewness import Straightened, straighten
from shardmc.check.stein import SteinSample, SteinTest, stein_test
from shardmc.types import Frame, Gradients, Mode

if TYPE_CHECKING:
    from shardmc.check.verdict import Bounds

_PART = 0.2
"""Of a bound: a smaller standard error from sampled rows adds less than 2 % to what is uncertain anyway."""


def errors_of_rows(
    noise: np.ndarray, z: np.ndarray, directions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Standard errors that come from sampled rows: of means and sds along the directions, and along any other."""
    # m changes by the mean of the noise, C by its covariance with z: see `certify`.
    shift = noise.mean(axis=1)  # (sampled shard, dim)
    centered = z - z.mean(axis=0)
    bend = np.einsum("tj,itk->ijk", centered, noise) / len(z)
    bend = (bend + np.swapaxes(bend, 1, 2)) / 2
    of_mean = np.linalg.norm(shift @ directions.T, axis=0)
    of_variance = np.linalg.norm(np.einsum("pj,ijk,pk->ip", directions, bend, directions), axis=0)
    # Along any combination: at most the largest eigenvalue.
    any_mean = float(np.linalg.norm(shift, ord=2))
    any_variance = float(np.sqrt(np.sum(np.linalg.norm(bend, ord=2, axis=(1, 2)) ** 2)))
    return of_mean, of_variance / 2, any_mean, any_variance / 2


def rows_suffice(noise: np.ndarray, points: np.ndarray, mode: Mode, bounds: Bounds) -> bool:
    """Whether sampled rows leave standard errors of at most a fifth of the bounds, for every parameter.

    Parameters
    ----------
    noise
        As in `Gradients`, (sampled shard, point, dim).
    points
        The points of the gradients, (point, dim).
    """
    basis = mode.frame.basis
    z = np.linalg.solve(basis, (points - mode.theta).T).T
    directions = basis / np.linalg.norm(basis, axis=1)[:, None]
    of_mean, of_sd, any_mean, any_sd = errors_of_rows(noise @ basis, z, directions)
    return bool(
        of_mean.max() <= _PART * bounds.mean
        and of_sd.max() <= _PART * bounds.sd
        and max(any_mean, any_sd) <= _PART * bounds.combination
    )


def joined_noise(found: list[Gradients]) -> np.ndarray | None:
    """The noise of several rounds of gradients, (sampled shard, point, dim). Those of all rows have none.

    The sample of a round is the beginning of that of any later one, so shards that a round did not read have no noise.
    """
    if all(each.noise is None for each in found):
        return None
    sampled = max(len(each.noise) for each in found if each.noise is not None)
    every = [np.zeros((sampled, *each.values.shape)) for each in found]
    for noise, each in zip(every, found, strict=True):
        if each.noise is not None:
            noise[: len(each.noise)] = each.noise
    return np.concatenate(every, axis=1)


_MORE = 2.0
"""If the standard errors from sampled rows are so many times as large as those from having few gradients, more
gradients hardly help."""
FEWEST_GRADIENTS = 10
"""With fewer gradients nothing is measured. About 100 are usual."""
_FEWEST_DRAWS = 8
_LEAST_SPREAD = 0.01
_MUCH_LESS = 0.25
"""The part of the chains' effective number below which differences between the shards are to blame."""
_MOST_POINTS = 1000  # of the Stein test, whose cost is quadratic


@dataclass(frozen=True, eq=False)
class Measured:
    """Errors of the draws' means and sds, per parameter and for the worst combinations, and a test of shape."""

    names: tuple[str, ...]
    mean_error: np.ndarray
    """Mean of the draws minus that of the posterior, in posterior standard deviations, (dim,)."""
    mean_error_se: np.ndarray
    mean_measured_se: np.ndarray
    """The part that comes from having few gradients: the error of these draws' own mean is known up to it, (dim,)."""
    mean_p_value: np.ndarray
    """P-value of the hypothesis that the mean is correct, (dim,), not corrected for the number of parameters."""
    sd_ratio: np.ndarray
    """Standard deviation of the draws relative to that of the posterior, (dim,)."""
    sd_ratio_se: np.ndarray
    sd_measured_se: np.ndarray
    sd_p_value: np.ndarray
    nonlinearity: np.ndarray
    """Standard deviation of the gradient's departure from that of a Gaussian, (dim,). Above 0.5 is far from it."""
    surprise: np.ndarray
    """Largest difference of a gradient from the prediction of the other gradients, (dim,). More than 2 is alarming."""
    shifted: Combination
    """The linear combination of parameters whose mean is most wrong: its error in posterior standard deviations."""
    widest: Combination
    """The combination whose draws are most too wide: its ratio of standard deviations."""
    narrowest: Combination
    """The combination whose draws are most too narrow: its ratio of standard deviations."""
    stein: SteinTest
    correction: Correction
    """The affine map that `polish` applies."""
    ess: np.ndarray
    """Effective number of draws, (dim,)."""
    shards_differ: np.ndarray
    """Whether that number is small because the shards' means differ and not because of their chains, (dim,)."""
    num_draws: int
    num_gradients: int
    num_lost: int
    """The number of gradients that are not finite and were left out."""
    rows_suffice: bool = field(default=True, kw_only=True)
    """Whether the standard errors come from having few gradients, and not from reading only a part of the rows."""


def measure(
    values: np.ndarray,
    chosen: np.ndarray,
    scores: np.ndarray,
    mode: Mode,
    names: Sequence[str],
    ess: np.ndarray,
    shard: np.ndarray | None,
    rng: np.random.Generator,
    row_noise: np.ndarray | None = None,
) -> Measured:
    """Measure the errors of draws. The arguments are those of `certify`."""
    finite = np.isfinite(scores).all(axis=1)
    lost = int(np.sum(~finite))
    chosen, scores = chosen[finite], scores[finite]
    if len(chosen) < FEWEST_GRADIENTS:
        return _unmeasured(values, names, len(chosen), lost)
    frame, straight = _straight(values, chosen, scores, mode, rng)
    basis = frame.basis
    z = np.linalg.solve(basis, (values - mode.theta).T).T
    whitened = scores @ basis
    sizes = np.minimum(ess, effective_number(values, shard))
    sample = SteinSample.of(z, chosen, straight.scores, 1 / float(np.mean(1 / sizes)), rng)

    scale = np.linalg.norm(basis, axis=1)
    # Posterior sds relative to those at the mode.
    scale_ratio = scale / np.linalg.norm(mode.frame.basis, axis=1)
    directions = basis / scale[:, None]
    mean = sample.mean_along(directions, sizes)
    variance = sample.variance_along(directions, sizes)
    ratio = variance.root()
    # The curvature between the draws and the posterior: m is the error times it; its inverse root is the sd.
    slope = np.maximum(variance.value, 0) / np.maximum((z @ directions.T).var(axis=0, ddof=1), 1e-300)
    unit = 1 / np.sqrt((1 + slope) / 2)
    halves = halves_of(len(values), shard, chosen, rng)
    shifted, widest, narrowest = worst_combinations(sample, halves, np.linalg.inv(basis) * scale, names)
    points = rng.permutation(len(chosen))[:_MOST_POINTS]
    # Draws to be polished may be far away, where the skewness differs. There the scores are not straightened.
    plain = sample
    if straight.skewed.any():
        unchanged = np.linalg.solve(mode.frame.basis, (values - mode.theta).T).T
        worth = 1 / float(np.mean(1 / sizes))
        plain = SteinSample.of(unchanged, chosen, scores @ mode.frame.basis, worth, rng)
    measured = Measured(
        names=tuple(names),
        mean_error=mean.value * unit,
        mean_error_se=mean.se * unit,
        mean_measured_se=np.hypot(mean.of_gradients, straight.tail_mean / scale_ratio / 2) * unit,
        mean_p_value=mean.p_value(0.0),
        sd_ratio=ratio.value,
        sd_ratio_se=ratio.se,
        sd_measured_se=np.hypot(ratio.of_gradients, straight.tail_sd * ratio.value / 2),
        sd_p_value=variance.width_p_value(),
        nonlinearity=sample.nonlinearity(directions),
        surprise=sample.surprise(directions) / np.where(straight.skewed, _rare(len(chosen)), 1.0),
        shifted=shifted,
        widest=widest,
        narrowest=narrowest,
        stein=stein_test(z[chosen[points]], whitened[points], rng),
        correction=correct(plain, halves, mode.frame, values.mean(axis=0)),
        ess=sizes,
        shards_differ=sizes < _MUCH_LESS * np.minimum(ess, len(values)),
        num_draws=len(values),
        num_gradients=len(chosen),
        num_lost=lost,
    )
    if row_noise is None:
        return measured
    return with_row_noise(measured, row_noise[:, finite] @ basis, z[chosen], directions, unit)


def with_row_noise(
    measured: Measured, noise: np.ndarray, z: np.ndarray, directions: np.ndarray, unit: np.ndarray
) -> Measured:
    """The same numbers with the standard errors that gradients of sampled rows have.

    Parameters
    ----------
    noise
        As in `Gradients`, in the coordinates of z, (sampled shard, chosen, dim).
    z
        The chosen draws, (chosen, dim).
    directions
        Those of the parameters, unit vectors (dim, dim).
    unit
        The posterior sds between which errors of means are measured, in these coordinates, (dim,).
    """
    of_mean, of_sd, any_mean, any_sd = errors_of_rows(noise, z, directions)
    of_mean = of_mean * unit
    of_sd = of_sd / measured.sd_ratio
    mean_se, sd_se = np.hypot(measured.mean_error_se, of_mean), np.hypot(measured.sd_ratio_se, of_sd)
    before, sampled = (measured.mean_measured_se, measured.sd_measured_se), len(noise)
    mean_p_value = _two_sided(measured.mean_error, mean_se, of_mean, sampled)
    sd_p_value = _two_sided(measured.sd_ratio - 1, sd_se, of_sd, sampled)
    shifted, of_shift = _without_row_noise(measured.shifted, noise.mean(axis=1))
    return replace(
        measured,
        mean_error_se=mean_se,
        mean_measured_se=np.hypot(measured.mean_measured_se, of_mean),
        mean_p_value=np.maximum(measured.mean_p_value, mean_p_value),
        sd_ratio_se=sd_se,
        sd_measured_se=np.hypot(measured.sd_measured_se, of_sd),
        sd_p_value=np.maximum(measured.sd_p_value, sd_p_value),
        shifted=_noisier(shifted, max(any_mean, of_shift), 0.0, sampled),
        widest=_noisier(measured.widest, any_sd, 1.0, sampled),
        narrowest=_noisier(measured.narrowest, any_sd, 1.0, sampled),
        rows_suffice=bool((of_mean <= _MORE * before[0]).all() and (of_sd <= _MORE * before[1]).all()),
    )


def _without_row_noise(shifted: Combination, noise: np.ndarray) -> tuple[Combination, float]:
    """The worst combination without the part of its error that sampled rows add, and the standard error of that part.

    All draws have the same noise in the mean error, with covariance S = noise^T noise, noise (sampled shard, dim). The
    combination was found with it: its squared error is tr S too large, with variance 2 tr S^2.
    """
    square = max(shifted.value**2 - float(np.sum(noise**2)), 0.0)
    return replace(shifted, value=float(np.sqrt(square))), float((2 * np.sum((noise @ noise.T) ** 2)) ** 0.25)


def _noisier(combination: Combination, noise: float, right: float, sampled: int) -> Combination:
    se = float(np.hypot(combination.se, noise))
    error = np.asarray(combination.value - right)
    p_value = float(_two_sided(error, np.asarray(se), np.asarray(noise), sampled))
    return replace(combination, se=se, p_value=max(combination.p_value, p_value))


def _two_sided(error: np.ndarray, se: np.ndarray, of_rows: np.ndarray, sampled: int) -> np.ndarray:
    """P-values by Student's t with Welch's degrees of freedom: the rows' part is known from a few sampled shards."""
    degrees = max(sampled - 1, 1) * (se / np.maximum(of_rows, 1e-100)) ** 4
    return 2 * special.stdtr(np.minimum(degrees, 1e9), -np.abs(error) / se)


def _straight(
    values: np.ndarray, chosen: np.ndarray, scores: np.ndarray, mode: Mode, rng: np.random.Generator
) -> tuple[Frame, Straightened]:
    """A frame in which the posterior's covariance is about I, and scores without the skewness of parameters.

    With E[z s*^T] = -Phi and Phi = P P^T, z' = P^-1 z and s' = P^-1 s* have E[z' s'^T] = -I.
    """
    basis = mode.frame.basis
    z = np.linalg.solve(basis, (values - mode.theta).T).T
    found = straighten(z, chosen, scores @ basis, basis, rng)
    sizes, axes = np.linalg.eigh(found.spread)
    roots = np.sqrt(np.maximum(sizes, _LEAST_SPREAD))
    straight = replace(found, scores=found.scores @ (axes / roots) @ axes.T)
    return Frame(mode.theta, basis @ (axes * roots) @ axes.T), straight


def _rare(count: int) -> float:
    """How much larger the surprise of the outermost draws may be along a skewed parameter."""
    return 1.5 * max(np.sqrt(count / 100), 1.0)


def _unmeasured(values: np.ndarray, names: Sequence[str], num_gradients: int, num_lost: int) -> Measured:
    """Missing numbers, and a correction that changes nothing."""
    dim = len(names)
    missing = np.full(dim, np.nan)
    nothing = Combination(np.nan, np.nan, np.nan, np.nan, ((names[0], 1.0),))
    return Measured(
        names=tuple(names),
        mean_error=missing,
        mean_error_se=missing,
        mean_measured_se=missing,
        mean_p_value=missing,
        sd_ratio=missing,
        sd_ratio_se=missing,
        sd_measured_se=missing,
        sd_p_value=missing,
        nonlinearity=missing,
        surprise=missing,
        shifted=nothing,
        widest=nothing,
        narrowest=nothing,
        stein=SteinTest(np.nan, np.nan),
        correction=Correction(np.zeros(dim), np.zeros(dim), np.zeros((dim, 0)), np.zeros((dim, 0))),
        ess=np.full(dim, float(len(values))),
        shards_differ=np.zeros(dim, dtype=bool),
        num_draws=len(values),
        num_gradients=num_gradients,
        num_lost=num_lost,
    )


def effective_number(values: np.ndarray, shard: np.ndarray | None) -> np.ndarray:
    """Effective number of draws, (dim,), at most their number. The draws of each shard, in order, are a chain.

    Short chains hide their own autocorrelation, but not that their means differ.
    """
    count = np.full(values.shape[1], float(len(values)))
    if shard is None:
        return count
    order = np.argsort(shard, kind="stable")
    _, starts, sizes = np.unique(np.asarray(shard)[order], return_index=True, return_counts=True)
    shortest = int(sizes.min())
    if shortest < _FEWEST_DRAWS:
        return count
    chains = values[order][starts[:, None] + np.arange(shortest)]  # (shard, draw, dim)
    worth = effective_size(np.moveaxis(chains, -1, 0)) / chains[..., 0].size
    return count * np.minimum(worth, 1)


def halves_of(
    count: int, shard: np.ndarray | None, chosen: np.ndarray, rng: np.random.Generator, block: int = 10
) -> np.ndarray:
    """Split draws into two nearly independent halves that both hold draws of every shard, (draw,) bool.

    The first half of each shard's draws against the rest. Without shards, alternate blocks of ten draws, as neighbours
    may be correlated. Both halves hold at least a quarter of the chosen draws.
    """
    if shard is None:
        halves = np.arange(count) // block % 2 == 0
    else:
        order = np.argsort(shard, kind="stable")
        _, starts, sizes = np.unique(np.asarray(shard)[order], return_index=True, return_counts=True)
        # The middle draw of an odd number goes to either half.
        firsts = (sizes + rng.integers(2, size=len(sizes))) // 2
        halves = np.empty(count, dtype=bool)
        halves[order] = np.arange(count) - np.repeat(starts, sizes) < np.repeat(firsts, sizes)
    if not 0.25 <= halves[chosen].mean() <= 0.75:
        halves[chosen] = np.arange(len(chosen)) % 2 == 0
    return halves
