"""Geometric rows with a uniform prior: posterior and rescaled subposteriors are Beta distributions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardmc.paper.beta import Beta, affine_density, affine_variance, shifted_density

TRUE = 0.3
"""The success probability from which the rows are generated."""
COMBINATIONS = ("AR", "AR at modes", "AR + Newton", "affine")
"""Algorithm 1; the same with modes in place of means; Algorithm 1 moved to the mode of all rows; the default."""

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
        """Shards of N / K rows each, by their sums: all that the posteriors depend on."""
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
        """Variance of the combination over the posterior's, on the scale on which it combines."""
        if combination == "affine":
            return affine_variance(self.rescaled, self.full) / float(self.full.logit_variance[0])
        return float(self.rescaled.variance.mean() / self.full.variance[0])

    def _target(self, combination: str) -> float:
        """Where the shards are moved to."""
        if combination in ("AR + Newton", "affine"):
            return float(self.full.mode[0])
        return float((self.rescaled.mode if combination == "AR at modes" else self.rescaled.mean).mean())
