"""The affine map that takes draws to the mean and covariance that the certificate says the posterior has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmc.check.moments import SteinSample
from shardmc.types import Frame

_FAR = 1.0
"""An error of the mean, in posterior standard deviations, that comes before the covariance."""
_OTHER_CURVATURE = 0.25
"""Relative difference of the curvature at the draws from that at the mode."""


@dataclass(frozen=True, eq=False)
class Correction:
    """theta -> center - shift + (I + left right^T) (theta - center); directions that are not off stay as they are."""

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
    """The part of -m and C^(-1/2) that stands out of its noise.

    m is the error of the mean times the curvature between the draws and the posterior, for which the mean of the
    curvature at either end is taken: A = S^(-1/2) C S^(-1/2) at the draws, S being their covariance, and I at the
    posterior. It is shrunk towards zero by (1 - tr cov(m) / |m|^2)+, after James and Stein. Of C = sum c u u^T only
    those c are corrected that differ from 1 by more than the noise does: C is the mean of its values on the two halves
    of the draws, so half their difference has the law of its noise. Draws further away than an sd, where the curvature
    is another one, are only moved: there C is made by that curvature and not by the posterior's.

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
