"""The median posterior: the geometric median of the subposteriors in a reproducing kernel Hilbert space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.combiners.moments import Varying, invertible_covariances
from shardmc.combiners.pool import pool
from shardmc.errors import OptionError
from shardmc.types import Combined, Combiner, Located, ShardDraws

MOST_POINTS = 8_000
"""Draws of all shards together from which the distances between the shards are computed."""
TOLERANCE = 1e-6
MOST_ITERATIONS = 1_000


@final
@dataclass(frozen=True)
class MPosterior(Combiner):
    """Pool the shards' draws with the weights of their geometric median (Minsker et al. 2014).

    With G_ij the mean of k(x, y) = exp(-g |x - y|^2) over draws x of shard i and y of shard j, in coordinates
    in which the average covariance of the shards is the identity, Weiszfeld's iteration is w_i proportional
    to a_i n_i^(-1/2), n_i = G_ii + w^T G w - 2 (G w)_i. A shard far from the others gets a small weight. No
    draws are moved, so the result is as wide as the scatter of the shards: it is robust, not efficient.

    Parameters
    ----------
    bandwidth
        g = 1 / (2 bandwidth^2 m), with m the median of |x - y|^2 over pairs of draws.

    Examples
    --------
    >>> shards = ShardDraws.of([[[0.0], [1.0]], [[0.2], [1.2]], [[90.0], [91.0]]])
    >>> combined = MPosterior()(shards, None, np.random.default_rng(0))
    >>> bool((combined.shard == 2).sum() < 2)
    True
    """

    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise OptionError(f"bandwidth must be positive; {self.bandwidth} was given.")

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the rescaled subposteriors; modes and `rng` are not used."""
        weights = self.weights(draws)
        pooled, shard, notes = pool(draws.values, weights)
        if weights.max() > 0.5 and draws.num_shards > 2:
            top = int(weights.argmax())
            notes = (*notes, f"The median posterior gives shard {top} a weight of {weights[top]:.2f}.")
        return Combined(pooled, shard, notes)

    def weights(self, draws: ShardDraws) -> np.ndarray:
        """The weight of each shard in the geometric median, (shard,)."""
        points = _whitened_points(draws)
        if points is None:
            return draws.shares
        gram = self._gram(points)
        weights = draws.shares
        for _ in range(MOST_ITERATIONS):
            distance = np.maximum(np.diag(gram) + weights @ gram @ weights - 2 * gram @ weights, 1e-15)
            updated = draws.shares / np.sqrt(distance)
            updated = updated / updated.sum()
            change = np.abs(updated - weights).max()
            weights = updated
            if change < TOLERANCE:
                break
        return weights

    def _gram(self, points: list[np.ndarray]) -> np.ndarray:
        """G, one pair of shards at a time."""
        from scipy.spatial.distance import pdist  # imported here because it is slow to import

        thinned = np.concatenate([p[:: max(len(p) * len(points) // 500, 1)] for p in points])
        median = float(np.median(pdist(thinned[:1000], "sqeuclidean"))) if len(thinned) > 1 else 0.0
        # If most draws coincide the median is zero. In whitened coordinates 1 is the natural scale.
        scale = 1 / (2 * self.bandwidth**2 * (median if median > 0 else 1.0))
        lengths = np.array([len(p) for p in points])
        starts = np.cumsum(lengths) - lengths
        stacked = np.concatenate(points)
        gram = np.empty((len(points), len(points)))
        for i, own in enumerate(points):
            # Distances from the shard's own centre, so that single precision is enough.
            center = own.mean(axis=0)
            near = (own - center).astype(np.float32)
            others = (stacked[starts[i] :] - center).astype(np.float32)
            kernel = near @ others.T
            kernel -= (near**2).sum(axis=1)[:, None] / 2
            kernel -= (others**2).sum(axis=1) / 2
            kernel *= 2 * scale
            np.exp(np.minimum(kernel, 0, out=kernel), out=kernel)
            sums = np.add.reduceat(kernel.mean(axis=0, dtype=np.float64), starts[i:] - starts[i])
            gram[i, i:] = gram[i:, i] = sums / lengths[i:]
        return gram


def _whitened_points(draws: ShardDraws) -> list[np.ndarray] | None:
    """Evenly thinned draws in whitened coordinates. None if all draws are the same."""
    if Varying.of(draws).is_everything:
        covariances, _ = invertible_covariances(draws)
        whitener = np.linalg.inv(np.linalg.cholesky(np.tensordot(draws.shares, covariances, axes=1)))
    else:
        spread = np.concatenate(draws.values).std(axis=0)
        if not spread.any():
            return None
        whitener = np.diag(1 / np.where(spread > 0, spread, 1.0))
    most = max(MOST_POINTS // draws.num_shards, 20)
    rows = [np.arange(n := min(len(v), most)) * len(v) // n for v in draws.values]
    center = draws.shares @ draws.means
    return [(v[r] - center) @ whitener.T for v, r in zip(draws.values, rows, strict=True)]
