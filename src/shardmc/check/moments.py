"""Errors of mean and covariance of draws, from Stein's identities, each with its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from shardmc.check.surrogate import cross_fit


@dataclass(frozen=True)
class Estimate:
    """Numbers with standard errors and the degrees of freedom of those, all of one shape."""

    value: np.ndarray
    se: np.ndarray
    df: np.ndarray
    of_gradients: np.ndarray
    """The part of the standard error that more gradients would take away; the rest is the noise of the draws."""

    def p_value(self, null: float) -> np.ndarray:
        """Two-sided p-value of Student's t test that the number is `null`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(self.value - null) / self.se
        return np.where(self.value == null, 1.0, 2 * special.stdtr(self.df, -ratio))

    def width_p_value(self) -> np.ndarray:
        """Two-sided p-value that these ratios of variances are 1, on the scale of their logarithms.

        The standard error of a variance grows with it: too large where draws are too wide, too small where they are
        too narrow. That of its logarithm does not.
        """
        value = np.maximum(self.value, 1e-12)
        return Estimate(np.log(value), self.se / value, self.df, self.of_gradients / value).p_value(0.0)

    def root(self) -> Estimate:
        """Square roots; their standard errors are those of the values over twice the root."""
        root = np.sqrt(np.maximum(self.value, 1e-6))
        return Estimate(root, self.se / (2 * root), self.df, self.of_gradients / (2 * root))


@dataclass(frozen=True)
class SteinSample:
    """Draws in whitened coordinates, with what the gradients at some of them say about all of them.

    z = L^T (theta - mode) with curvature H = L L^T, s = L^-1 grad log posterior, r = s + z.
    """

    z: np.ndarray  # (draw, dim)
    predicted: np.ndarray  # (draw, dim) guess of r at every draw
    chosen: np.ndarray  # (chosen,) draws where s is known
    residual: np.ndarray  # (chosen, dim) r minus its held-out guess
    r: np.ndarray  # (chosen, dim)
    ess: float
    """Effective number of all draws, at most their number."""

    @staticmethod
    def of(
        z: np.ndarray, chosen: np.ndarray, scores: np.ndarray, ess: float, rng: np.random.Generator
    ) -> SteinSample:
        """Learn the residuals from `scores` (chosen, dim), the whitened gradients at z[chosen]."""
        r = scores + z[chosen]
        predicted, held_out = cross_fit(z, chosen, r, rng)
        return SteinSample(z, predicted, chosen, r - held_out, r, ess)

    def part(self, keep: np.ndarray) -> SteinSample:
        """The same with only the draws where `keep` (draw,) is true."""
        position = np.cumsum(keep) - 1
        inside = keep[self.chosen]
        return SteinSample(
            self.z[keep],
            self.predicted[keep],
            position[self.chosen[inside]],
            self.residual[inside],
            self.r[inside],
            self.ess * float(np.mean(keep)),
        )

    @cached_property
    def mean_error(self) -> np.ndarray:
        """m = mean(z - f) - mean_R(r - f), the error of the draws' mean in whitened coordinates, (dim,)."""
        return np.mean(self.z - self.predicted, axis=0) - np.mean(self.residual, axis=0)

    @cached_property
    def mean_covariance(self) -> np.ndarray:
        """Covariance of the estimate `mean_error`, (dim, dim)."""
        score = self.z - self.predicted
        return np.atleast_2d(np.cov(score.T)) / self.ess + np.atleast_2d(np.cov(self.residual.T)) / len(
            self.residual
        )

    @cached_property
    def covariance_ratio(self) -> np.ndarray:
        """C = sym [cov(z, z - f) - cov_R(z, r - f)], the draws' covariance over the posterior's, (dim, dim)."""
        score = self.z - self.predicted
        raw = _cross(self.z, score) - _cross(self.z[self.chosen], self.residual)
        return (raw + raw.T) / 2

    def mean_along(self, directions: np.ndarray, ess: np.ndarray | float | None = None) -> Estimate:
        """Error of the mean of v^T z for each unit row v of `directions` (direction, dim)."""
        at = self.z @ directions.T
        predicted = self.predicted @ directions.T
        guessed = 0.5 * np.mean(np.abs(predicted) * self._beyond(at), axis=0)
        residual = self.residual @ directions.T
        return _difference(at - predicted, residual, self.chosen, self.ess if ess is None else ess, guessed)

    def variance_along(self, directions: np.ndarray, ess: np.ndarray | float | None = None) -> Estimate:
        """Ratio v^T C v of the draws' variance to the posterior's for each unit row v of `directions`."""
        at = self.z @ directions.T
        predicted = self.predicted @ directions.T
        guessed = 0.5 * np.mean(np.abs(_products(at, predicted)) * self._beyond(at), axis=0)
        chosen = _products(at[self.chosen], self.residual @ directions.T)
        everywhere = _products(at, at - predicted)
        return _difference(everywhere, chosen, self.chosen, self.ess if ess is None else ess, guessed)

    def nonlinearity(self, directions: np.ndarray) -> np.ndarray:
        """Standard deviation of v^T r for each unit row v of `directions`: zero for a Gaussian posterior."""
        return (self.r @ directions.T).std(axis=0, ddof=1)

    def surprise(self, directions: np.ndarray) -> np.ndarray:
        """Largest |v^T (r - f)|: how far the gradient at one draw is from what those at the others made expect."""
        return np.abs(self.residual @ directions.T).max(axis=0)

    def _beyond(self, at: np.ndarray) -> np.ndarray:
        """Which draws lie, along each direction, beyond all draws where the gradient is known, (draw, direction)."""
        known = at[self.chosen]
        return (at < known.min(axis=0)) | (at > known.max(axis=0))


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Covariance (dim, dim) of the columns of a with those of b."""
    return (a - a.mean(axis=0)).T @ (b - b.mean(axis=0)) / max(len(a) - 1, 1)


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Terms whose mean is the covariance (ddof 1) of each column of a with that of b."""
    return (a - a.mean(axis=0)) * (b - b.mean(axis=0)) * (len(a) / max(len(a) - 1, 1))


def _difference(
    everywhere: np.ndarray,
    chosen: np.ndarray,
    indices: np.ndarray,
    ess: np.ndarray | float,
    guessed: np.ndarray,
) -> Estimate:
    """Mean over all draws minus mean over the chosen ones, columnwise, with Welch's degrees of freedom.

    The chosen draws are among all draws, so the two means are correlated. What was `guessed` for draws beyond the
    chosen ones is no evidence, and counts as an error of its own size.
    """
    count = len(chosen)
    of_all = everywhere.var(axis=0, ddof=1) / ess
    of_chosen = chosen.var(axis=0, ddof=1) / count
    paired = everywhere[indices]
    shared = (
        2 * np.mean((paired - paired.mean(axis=0)) * (chosen - chosen.mean(axis=0)), axis=0) / len(everywhere)
    )
    uncertain = of_chosen + guessed**2
    variance = np.maximum(of_all + uncertain - shared, 0.25 * (of_all + uncertain))
    spread = of_all**2 / np.maximum(np.asarray(ess) - 1, 1) + uncertain**2 / max(count - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        df = np.where(spread > 0, (of_all + uncertain) ** 2 / spread, np.inf)
    value = everywhere.mean(axis=0) - chosen.mean(axis=0)
    return Estimate(value, np.sqrt(variance), df, np.sqrt(uncertain))
