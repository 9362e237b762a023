"""The affine map that takes draws to the mean and covariance that the certificate says the posterior has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmc.check.moments import SteinSample
from shardmc.types import Frame


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

    m is shrunk towards zero by (1 - tr cov(m) / |m|^2)+, after James and Stein. Of C = sum c u u^T only those c are
    corrected that differ from 1 by more than the noise does: C is the mean of its values on the two halves of the
    draws, so half their difference has the law of its noise.

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
    off = np.abs(ratios - 1) > 1.5 * noise
    factors = np.maximum(ratios[off], 0.01) ** -0.5 - 1
    axes = vectors[:, off]
    return Correction(
        center=center,
        shift=frame.basis @ error * max(keep, 0.0),
        left=frame.basis @ axes * factors,
        right=np.linalg.solve(frame.basis.T, axes),
    )
