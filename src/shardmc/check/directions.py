"""Directions in which draws are wrong: the worst linear combinations, and the affine map that corrects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmc.check.stein import Estimate, SteinSample
from shardmc.types import Frame


@dataclass(frozen=True)
class Combination:
    """A linear combination of parameters, and how wrong the draws are along it."""

    value: float
    """Its error, without the bias from having been picked as the worst."""
    se: float
    p_value: float
    largest: float
    """The error with that bias: over all draws, no combination has a larger one."""
    loadings: tuple[tuple[str, float], ...]
    """The heaviest parameters and their weights per standard deviation. The squares of all weights sum to 1."""

    @property
    def words(self) -> str:
        """Its parameters, heaviest first.

        >>> Combination(0.4, 0.1, 0.001, 0.5, (("a", 0.8), ("b", -0.6))).words
        'a - 0.7 b'
        """
        lead = self.loadings[0][1]
        text = self.loadings[0][0]
        for name, weight in self.loadings[1:]:
            share = round(weight / lead, 1)
            if share:
                text += f" {'+' if share > 0 else '-'} {f'{abs(share):g} ' if abs(share) != 1 else ''}{name}"
        return text

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Combination:
        """The combination that `dataclasses.asdict` wrote."""
        loadings = tuple((str(name), float(weight)) for name, weight in stored["loadings"])
        return Combination(stored["value"], stored["se"], stored["p_value"], stored["largest"], loadings)


def worst_combinations(
    sample: SteinSample, halves: np.ndarray, weights: np.ndarray, names: Sequence[str]
) -> tuple[Combination, Combination, Combination]:
    """The linear combinations with the largest error of the mean, and with the largest and smallest ratio of variances.

    The largest of many noisy numbers is biased upwards. So each half of the draws finds a direction v, the other half
    measures m^T v or v^T C v, which is unbiased for a v that it did not choose, and the two are averaged.
    The squared size of the mean's error is |m|^2 - tr cov(m), which is also unbiased.

    Parameters
    ----------
    sample
        The draws in whitened coordinates.
    halves
        Which half each draw is in, (draw,) bool.
    weights
        Matrix (dim, dim) that turns a whitened direction v into weights of the parameters: v @ weights.
    names
        One name per parameter.
    """
    first, second = sample.part(halves), sample.part(~halves)
    shifts, widths = _crossed(first, second)
    error = sample.mean_error
    size = np.sqrt(max(float(error @ error - np.trace(sample.mean_covariance)), 0.0))
    shifted = Combination(
        value=size,
        se=float(shifts.se[0]),
        p_value=float(shifts.p_value(0.0)[0]),
        largest=float(np.linalg.norm(error)),
        loadings=_loadings(error @ weights, names),
    )
    ratios, vectors = np.linalg.eigh(sample.covariance_ratio)
    roots, p_values = widths.root(), widths.width_p_value()
    widest, narrowest = (
        Combination(
            value=float(roots.value[k]),
            se=float(roots.se[k]),
            p_value=float(p_values[k]),
            largest=float(np.sqrt(max(ratios[end], 0.0))),
            loadings=_loadings(vectors[:, end] @ weights, names),
        )
        for k, end in ((0, -1), (1, 0))
    )
    return shifted, widest, narrowest


def _crossed(first: SteinSample, second: SteinSample) -> tuple[Estimate, Estimate]:
    """Error of the mean (1,), largest and smallest ratio of variances (2,): found on one half, tested on the other."""
    shifts, widths = [], []
    for finder, tester in ((first, second), (second, first)):
        lead = finder.mean_error / max(float(np.linalg.norm(finder.mean_error)), 1e-300)
        _, vectors = np.linalg.eigh(finder.covariance_ratio)
        shifts.append(tester.mean_along(lead[None]))
        widths.append(tester.variance_along(vectors[:, [-1, 0]].T))
    return _average(*shifts), _average(*widths)


def _average(a: Estimate, b: Estimate) -> Estimate:
    """Mean of two independent estimates."""
    gradients = np.hypot(a.of_gradients, b.of_gradients) / 2
    return Estimate((a.value + b.value) / 2, np.hypot(a.se, b.se) / 2, np.minimum(a.df, b.df), gradients)


def _loadings(weights: np.ndarray, names: Sequence[str], most: int = 3) -> tuple[tuple[str, float], ...]:
    """The heaviest parameters of a combination and their weights, scaled to a unit vector."""
    unit = weights / max(float(np.linalg.norm(weights)), 1e-300)
    return tuple((str(names[k]), float(unit[k])) for k in np.argsort(-np.abs(unit))[:most].tolist())


_FAR = 1.0
"""An error of the mean, in posterior standard deviations, that is corrected before the covariance."""
_OTHER_CURVATURE = 0.25
"""Relative difference of the curvature at the draws from that at the mode."""


@dataclass(frozen=True, eq=False)
class Correction:
    """theta -> center - shift + (I + left right^T) (theta - center). Directions without error do not change."""

    center: np.ndarray  # (dim,)
    shift: np.ndarray  # (dim,)
    left: np.ndarray  # (dim, rank)
    right: np.ndarray  # (dim, rank)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Apply it to draws (draw, dim)."""
        return values - self.shift + ((values - self.center) @ self.right) @ self.left.T

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Correction:
        """The correction that `dataclasses.asdict` wrote, its arrays as lists."""
        dim = len(stored["center"])
        left, right = (np.asarray(stored[k], dtype=np.float64).reshape(dim, -1) for k in ("left", "right"))
        return Correction(np.asarray(stored["center"]), np.asarray(stored["shift"]), left, right)


def correct(sample: SteinSample, halves: np.ndarray, frame: Frame, center: np.ndarray) -> Correction:
    """The part of -m and C^(-1/2) that is larger than its noise.

    m is the error of the mean times the curvature between the draws and the posterior. That is taken as the mean of the
    curvatures at both ends: A = S^(-1/2) C S^(-1/2) at the draws, where S is their covariance, and I at the posterior.
    m is shrunk towards zero by (1 - tr cov(m) / |m|^2)+, after James and Stein. Of C = sum c u u^T only those c are
    corrected that differ from 1 by more than the noise: C is the mean of its values on the two halves of the draws, so
    half their difference is distributed like the noise. Draws more than an sd away, where the curvature differs, are
    only moved: there C reflects that curvature and not the posterior's.

    Parameters
    ----------
    sample
        The draws in whitened coordinates.
    halves
        Which half each draw is in, (draw,) bool.
    frame
        The whitened coordinates.
    center
        Mean of the draws, (dim,).
    """
    error = sample.mean_error
    keep = 1 - float(np.trace(sample.mean_covariance)) / max(float(error @ error), 1e-300)
    first, second = sample.part(halves).covariance_ratio, sample.part(~halves).covariance_ratio
    noise = float(np.abs(np.linalg.eigvalsh((first - second) / 2)).max())
    ratios, vectors = np.linalg.eigh(sample.covariance_ratio)
    identity, curvature = np.eye(len(error)), _curvature(sample)
    shift = np.linalg.solve((identity + curvature) / 2, error) * max(keep, 0.0)
    differs = float(np.linalg.norm(curvature - identity, 2)) > _OTHER_CURVATURE
    only_move = differs and float(np.linalg.norm(shift)) > _FAR
    off = (np.abs(ratios - 1) > 1.5 * noise) & (not only_move)
    factors = np.maximum(ratios[off], 0.01) ** -0.5 - 1
    axes = vectors[:, off]
    return Correction(
        center=center,
        shift=frame.basis @ shift,
        left=frame.basis @ axes * factors,
        right=np.linalg.solve(frame.basis.T, axes),
    )


def _curvature(sample: SteinSample) -> np.ndarray:
    """Mean curvature of minus the log posterior where the draws are, in whitened coordinates, (dim, dim)."""
    variances, axes = np.linalg.eigh(np.atleast_2d(np.cov(sample.z.T)))
    root = (axes / np.sqrt(np.maximum(variances, 1e-12))) @ axes.T
    values, vectors = np.linalg.eigh(root @ sample.covariance_ratio @ root)
    return (vectors * np.maximum(values, 0.0)) @ vectors.T
