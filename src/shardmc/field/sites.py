"""Gaussian sites of expectation propagation in natural parameters, and their moments from draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardmc.combiners.moments import symmetric


@dataclass(frozen=True)
class Gaussian:
    """exp(shift^T u - u^T precision u / 2), up to a constant; a stack of them has a first axis of sites."""

    precision: np.ndarray  # (..., dim, dim)
    shift: np.ndarray  # (..., dim)

    @staticmethod
    def stack(each: Sequence[Gaussian]) -> Gaussian:
        """Several as one with a first axis of sites."""
        return Gaussian(np.stack([g.precision for g in each]), np.stack([g.shift for g in each]))

    @property
    def is_proper(self) -> bool:
        return bool(np.linalg.eigvalsh(self.precision)[..., 0].min() > 0)

    @property
    def mean(self) -> np.ndarray:
        return np.linalg.solve(self.precision, self.shift)

    @property
    def root(self) -> np.ndarray:
        """L with covariance L L^T."""
        return np.linalg.inv(np.linalg.cholesky(self.precision)).T

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(np.diag(np.linalg.inv(self.precision)))

    def total(self) -> Gaussian:
        """The product of a stack of sites."""
        return Gaussian(self.precision.sum(axis=0), self.shift.sum(axis=0))

    def over(self, other: Gaussian) -> Gaussian:
        """The ratio of two, or of one and each of a stack."""
        return Gaussian(self.precision - other.precision, self.shift - other.shift)

    def towards(self, other: Gaussian, step: float) -> Gaussian:
        """A part of the way to another, in natural parameters."""
        return Gaussian(
            self.precision + step * (other.precision - self.precision),
            self.shift + step * (other.shift - self.shift),
        )

    def at(self, index: int) -> Gaussian:
        """One of a stack."""
        return Gaussian(self.precision[index], self.shift[index])

    def seen_from(self, center: np.ndarray, root: np.ndarray) -> Gaussian:
        """The same in coordinates z, u = center + root z."""
        return Gaussian(
            symmetric(root.T @ self.precision @ root), root.T @ (self.shift - self.precision @ center)
        )

    def distance(self, other: Gaussian) -> float:
        """The largest change of a mean, in sds, or of the logarithm of an sd."""
        means = np.abs(self.mean - other.mean) / other.sd
        return float(max(means.max(), np.abs(np.log(self.sd / other.sd)).max()))


_LEAST_OVERLAP = 0.5
"""With less effective weight than this the Gaussian is too far from the draws to be a control variate."""


def tilted_moments(z: np.ndarray, log_ratio: np.ndarray) -> Gaussian | None:
    """The Gaussian with the moments of draws z (draw, dim) of a density p(z) = N(z; 0, I) exp(log_ratio).

    Averages of z and z z^T under N(0, I) are known, and draws reweighted by exp(-log_ratio) estimate them: their errors
    are subtracted. Where the ratio is nearly constant this removes nearly all Monte Carlo noise. None if the covariance
    of the draws cannot be inverted.
    """
    count, dim = z.shape
    weights = np.exp(-(log_ratio - log_ratio.min()))
    weights /= weights.sum()
    mean, squares = z.mean(axis=0), z.T @ z / count
    close = 1 / (count * np.sum(weights**2)) > _LEAST_OVERLAP
    if close:
        mean = mean - weights @ z
        squares = squares - (z * weights[:, None]).T @ z + np.eye(dim)
    covariance = symmetric(squares - np.outer(mean, mean))
    if not np.isfinite(covariance).all() or np.linalg.eigvalsh(covariance)[0] <= 1e-6:
        return None
    precision = symmetric(np.linalg.inv(covariance))
    if not close and count > dim + 2:  # the inverse of an estimated covariance is too large
        precision = precision * (count - dim - 2) / (count - 1)
    return Gaussian(precision, precision @ mean)


def from_coordinates(found: Gaussian, center: np.ndarray, root: np.ndarray) -> Gaussian:
    """A Gaussian of coordinates z, u = center + root z, as one of u."""
    inverse = np.linalg.inv(root)
    precision = symmetric(inverse.T @ found.precision @ inverse)
    return Gaussian(precision, inverse.T @ found.shift + precision @ center)


@dataclass(frozen=True)
class Sites:
    """All sites, the Gaussian that they make, and how they came about."""

    each: Gaussian  # (site, ...)
    whole: Gaussian
    rounds: int = 0
    change: float = np.inf
    """How far the whole moved in the last round."""
    held: tuple[int, ...] = ()
    """Sites that could not be updated in the last round."""

    @staticmethod
    def of(each: Gaussian) -> Sites:
        return Sites(each, each.total())

    @property
    def indefinite(self) -> np.ndarray:
        """Sites whose precision is not positive definite."""
        return np.flatnonzero(np.linalg.eigvalsh(self.each.precision)[:, 0] <= 0)

    def updated(self, wanted: Gaussian, held: tuple[int, ...], damping: float) -> Sites | None:
        """All sites moved by the longest step after which their product is a Gaussian; None if there is none."""
        for step in damping * 0.5 ** np.arange(6):
            moved = self.each.towards(wanted, float(step))
            whole = moved.total()
            if whole.is_proper:
                return replace(
                    self,
                    each=moved,
                    whole=whole,
                    rounds=self.rounds + 1,
                    change=whole.distance(self.whole),
                    held=held,
                )
        return None
