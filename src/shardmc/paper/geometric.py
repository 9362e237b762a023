"""Geometric rows with a Beta prior: rescaled subposteriors, their recentred average and its error in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

TRUE = 0.3
"""The success probability from which the rows are generated."""
_PRIOR = (1.0, 1.0)
_POINTS = 401
_HALF_WIDTH = 9.0
_CHUNK = 2_000

COMBINATIONS = ("AR", "AR at modes", "AR + Newton", "affine")
"""Algorithm 1; the same with modes in place of means; Algorithm 1 moved to the mode of all rows; the default."""


@dataclass(frozen=True)
class Beta:
    """Beta distributions with first parameter a and second parameters b, one per shard, on the logit scale.

    With x_j the number of failures before a success, the posterior of N rows is Beta(1 + N, 1 + sum_j x_j), and the
    rescaled subposterior of shard i, whose x_j sum to S_i, is Beta(1 + N, 1 + K S_i).
    """

    a: float
    b: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> np.ndarray:
        total = self.a + self.b
        return self.a * self.b / (total**2 * (total + 1))

    @property
    def mode(self) -> np.ndarray:
        """Mode on the natural scale."""
        return (self.a - 1) / (self.a + self.b - 2)

    @property
    def logit_mode(self) -> np.ndarray:
        """Mode of the density of logit p."""
        return np.log(self.a) - np.log(self.b)

    @property
    def logit_curvature(self) -> np.ndarray:
        """Minus the second derivative of that log density at its mode."""
        return self.a * self.b / (self.a + self.b)

    def density(self, p: np.ndarray) -> np.ndarray:
        """Density of p, zero outside (0, 1); p broadcasts against b."""
        inside = (p > 0) & (p < 1)
        x = np.where(inside, p, 0.5)
        log = (self.a - 1) * np.log(x) + (self.b - 1) * np.log1p(-x) - special.betaln(self.a, self.b)
        return np.where(inside, np.exp(log), 0.0)

    def logit_density(self, eta: np.ndarray) -> np.ndarray:
        """Density of eta = logit p."""
        log = -self.a * np.logaddexp(0, -eta) - self.b * np.logaddexp(0, eta)
        return np.exp(log - special.betaln(self.a, self.b))


@dataclass(frozen=True)
class Shards:
    """The posterior of N rows and the rescaled subposteriors of K shards of them."""

    full: Beta
    rescaled: Beta

    @staticmethod
    def simulate(num_rows: int, num_shards: int, rng: np.random.Generator) -> Shards:
        """Sums of N / K geometric counts of failures for each shard: all that the posteriors depend on."""
        size = num_rows // num_shards
        sums = rng.negative_binomial(size, TRUE, size=num_shards).astype(np.float64)
        a = _PRIOR[0] + size * num_shards
        full = Beta(a, np.array([_PRIOR[1] + sums.sum()]))
        return Shards(full, Beta(a, _PRIOR[1] + num_shards * sums))

    def total_variation(self, combination: str) -> float:
        """Total variation, half the integral of |p - q|, between the combination and the posterior."""
        if combination == "affine":
            return self._affine()
        centers, target = self._centers(combination)
        mean, sd = float(self.full.mean[0]), float(np.sqrt(self.full.variance[0]))
        low, high = min(mean, target) - _HALF_WIDTH * sd, max(mean, target) + _HALF_WIDTH * sd
        # As fine a grid when the two lie far apart.
        points = int(_POINTS * (high - low) / (2 * _HALF_WIDTH * sd))
        p, step = np.linspace(low, high, points, retstep=True)
        mixture = self._mixture(lambda part, i: part.density(p[None] - target + centers[i, None]), points)
        return float(np.abs(mixture - self.full.density(p)).sum() * step / 2)

    def variance_ratio(self, combination: str) -> float:
        """Variance of the combination over the posterior's, on the scale on which it combines."""
        if combination == "affine":
            return self._affine_variance() / _logit_variance(self.full)[0]
        return float(self.rescaled.variance.mean() / self.full.variance[0])

    def _centers(self, combination: str) -> tuple[np.ndarray, float]:
        """Where each shard is moved from and where all are moved to, on the natural scale."""
        centers = self.rescaled.mode if combination == "AR at modes" else self.rescaled.mean
        target = self.full.mode[0] if combination == "AR + Newton" else centers.mean()
        return centers, float(target)

    def _mixture(self, density, points: int) -> np.ndarray:
        """Average over the shards of a density on a grid, some shards at a time."""
        total = np.zeros(points)
        for start in range(0, len(self.rescaled.b), _CHUNK):
            index = np.arange(start, min(start + _CHUNK, len(self.rescaled.b)))
            part = Beta(self.rescaled.a, self.rescaled.b[index, None])
            total += density(part, index).sum(axis=0)
        return total / len(self.rescaled.b)

    def _affine(self) -> float:
        """Modes to the mode and curvatures to the curvature, on the logit scale."""
        mode, curvature = self.full.logit_mode[0], self.full.logit_curvature[0]
        u, step = np.linspace(-_HALF_WIDTH, _HALF_WIDTH, _POINTS, retstep=True)

        def standardised(part: Beta, index: np.ndarray) -> np.ndarray:
            scale = 1 / np.sqrt(part.logit_curvature)
            return part.logit_density(part.logit_mode + scale * u[None]) * scale

        mixture = self._mixture(standardised, _POINTS)
        exact = self.full.logit_density(mode + u / np.sqrt(curvature)) / np.sqrt(curvature)
        return float(np.abs(mixture - exact).sum() * step / 2)

    def _affine_variance(self) -> float:
        """Variance of logit p under the affine combination: each shard's own, rescaled, and that of their means."""
        part, full = self.rescaled, self.full
        scale = np.sqrt(part.logit_curvature / full.logit_curvature[0])
        mean, variance = _logit_mean(part), _logit_variance(part)
        moved = scale * (mean - part.logit_mode)
        return float((scale**2 * variance).mean() + moved.var())


def _logit_mean(beta: Beta) -> np.ndarray:
    return special.digamma(beta.a) - special.digamma(beta.b)


def _logit_variance(beta: Beta) -> np.ndarray:
    return special.polygamma(1, beta.a) + special.polygamma(1, beta.b)
