"""Beta posteriors, and the exact densities of their combinations; geometric rows as an example."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

_CHUNK = 2_000


@dataclass(frozen=True)
class Beta:
    """Beta(a, b) distributions of a proportion p, one per shard."""

    a: np.ndarray  # (shard,)
    b: np.ndarray  # (shard,)

    @property
    def mean(self) -> np.ndarray:
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> np.ndarray:
        total = self.a + self.b
        return self.a * self.b / (total**2 * (total + 1))

    @property
    def mode(self) -> np.ndarray:
        return (self.a - 1) / (self.a + self.b - 2)

    @property
    def logit_mode(self) -> np.ndarray:
        """Mode of the density of logit p."""
        return np.log(self.a) - np.log(self.b)

    @property
    def logit_curvature(self) -> np.ndarray:
        """Minus the second derivative of the log density of logit p at its mode."""
        return self.a * self.b / (self.a + self.b)

    @property
    def logit_mean(self) -> np.ndarray:
        return special.digamma(self.a) - special.digamma(self.b)

    @property
    def logit_variance(self) -> np.ndarray:
        return special.polygamma(1, self.a) + special.polygamma(1, self.b)

    def density(self, p: np.ndarray) -> np.ndarray:
        """Density at p (shard, point) or (1, point); zero outside (0, 1)."""
        a, b = self.a[:, None], self.b[:, None]
        inside = (p > 0) & (p < 1)
        x = np.where(inside, p, 0.5)
        log = (a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - special.betaln(a, b)
        return np.where(inside, np.exp(log), 0.0)

    def logit_density(self, eta: np.ndarray) -> np.ndarray:
        """Density of logit p at eta (shard, point)."""
        a, b = self.a[:, None], self.b[:, None]
        return np.exp(-a * np.logaddexp(0, -eta) - b * np.logaddexp(0, eta) - special.betaln(a, b))

    def parts(self) -> list[Beta]:
        """The same shards in parts of at most two thousand."""
        starts = range(0, len(self.a), _CHUNK)
        return [Beta(self.a[i : i + _CHUNK], self.b[i : i + _CHUNK]) for i in starts]


def shifted_density(shards: Beta, p: np.ndarray, target: float, *, modes: bool = False) -> np.ndarray:
    """Average of the shards' densities at p (point,), each moved so that its mean (or mode) is at the target."""
    total = np.zeros(len(p))
    for part in shards.parts():
        center = part.mode if modes else part.mean
        total += part.density(p[None] - target + center[:, None]).sum(axis=0)
    return total / len(shards.a)


def affine_density(shards: Beta, full: Beta, p: np.ndarray) -> np.ndarray:
    """Density at p (point,) of the default, which matches modes and curvatures on the logit scale."""
    inside = (p > 0) & (p < 1)
    x = np.where(inside, p, 0.5)
    root = np.sqrt(full.logit_curvature[0])
    u = (special.logit(x) - full.logit_mode[0]) * root
    total = np.zeros(len(p))
    for part in shards.parts():
        scale = 1 / np.sqrt(part.logit_curvature)[:, None]
        total += (part.logit_density(part.logit_mode[:, None] + scale * u) * scale).sum(axis=0)
    return np.where(inside, total / len(shards.a) * root / (x * (1 - x)), 0.0)


def affine_variance(shards: Beta, full: Beta) -> float:
    """Variance of logit p under the default: the mean of the rescaled variances, plus the variance of the means."""
    scale = np.sqrt(shards.logit_curvature / full.logit_curvature[0])
    means = scale * (shards.logit_mean - shards.logit_mode)
    return float((scale**2 * shards.logit_variance).mean() + means.var())


TRUE = 0.3
"""The true success probability."""
COMBINATIONS = ("AR", "AR at modes", "AR + Newton", "affine")
"""Algorithm 1; Algorithm 1 with modes instead of means; Algorithm 1 moved to the mode of all rows; the default."""

_HALF_WIDTH = 9.0  # of the grid, in posterior standard deviations
_STEP = 0.05


@dataclass(frozen=True)
class Shards:
    """The posterior of N rows and the rescaled subposteriors of K shards of them.

    With x_j the number of failures before a success, the posterior is Beta(1 + N, 1 + sum_j x_j), and the rescaled
    subposterior of shard i, whose x_j sum to S_i, is Beta(1 + N, 1 + K S_i).
    """

    full: Beta  # one
    rescaled: Beta

    @staticmethod
    def simulate(num_rows: int, num_shards: int, rng: np.random.Generator) -> Shards:
        """Simulate the sums of K shards of N / K rows. The posteriors depend on nothing else."""
        size = num_rows // num_shards
        sums = rng.negative_binomial(size, TRUE, size=num_shards).astype(np.float64)
        a = 1.0 + size * num_shards
        full = Beta(np.array([a]), np.array([1 + sums.sum()]))
        return Shards(full, Beta(np.full(num_shards, a), 1 + num_shards * sums))

    @property
    def num_rows(self) -> int:
        return round(self.full.a[0] - 1)

    def total_variation(self, combination: str) -> float:
        """Half the integral of |p - q| between the combination's density and the posterior's."""
        mean, sd = float(self.full.mean[0]), float(np.sqrt(self.full.variance[0]))
        target = self._target(combination)
        low, high = min(mean, target) - _HALF_WIDTH * sd, max(mean, target) + _HALF_WIDTH * sd
        p, step = np.linspace(low, high, round((high - low) / (_STEP * sd)), retstep=True)
        if combination == "affine":
            density = affine_density(self.rescaled, self.full, p)
        else:
            density = shifted_density(self.rescaled, p, target, modes=combination == "AR at modes")
        return float(np.abs(density - self.full.density(p[None])[0]).sum() * step / 2)

    def variance_ratio(self, combination: str) -> float:
        """Variance of the combination divided by that of the posterior, on the scale of the combination."""
        if combination == "affine":
            return affine_variance(self.rescaled, self.full) / float(self.full.logit_variance[0])
        return float(self.rescaled.variance.mean() / self.full.variance[0])

    def _target(self, combination: str) -> float:
        """The point to which the shards are moved."""
        if combination in ("AR + Newton", "affine"):
            return float(self.full.mode[0])
        return float((self.rescaled.mode if combination == "AR at modes" else self.rescaled.mean).mean())
