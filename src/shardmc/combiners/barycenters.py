"""The median posterior and the Wasserstein barycentre: averages of the subposteriors as distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np

from shardmc.combiners.moments import (
    VaryingDirections,
    in_varying_directions,
    inflation,
    invertible_covariances,
    pool,
    symmetric,
)
from shardmc.errors import OptionError, unknown
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
    if VaryingDirections.of(draws).is_everything:
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


Kind = Literal["location-scatter", "quantile", "empirical"]

MOST_ASSIGNMENTS = 4_000
"""The most assignments of 200 points that the empirical barycentre solves. Larger ones count for more."""


@final
@dataclass(frozen=True)
class Wasserstein(Combiner):
    """The 2-Wasserstein barycentre of the subposteriors, weighted by their shares (WASP, PIE).

    Distances are measured in coordinates in which the average covariance of the shards is the identity. The
    barycentre has the average location and shape of the rescaled subposteriors, so it is correct if they differ in
    location only. Its mean is the mean of the shards' means.

    Parameters
    ----------
    kind
        "location-scatter", the barycentre of the normal distributions with the shards' means and covariances,
        to which each shard's draws are carried by the map that is optimal between such distributions;
        "quantile", average the shards' quantile functions, one coordinate at a time (PIE, Li et al. 2017):
        exact barycentres of the marginals, while every shard keeps its own dependence between coordinates;
        "empirical", the barycentre of the draws themselves, as `points` points for which optimal assignments
        to every shard's draws are solved, repeated on further draws. Averages over assigned points shrink in
        more than a few dimensions: the notes say by how much.
    points
        Number of points of one empirical barycentre.
    iterations
        Number of rounds of assignment and averaging of one empirical barycentre.

    Examples
    --------
    >>> shards = ShardDraws.of([[[0.0], [1.0]], [[4.0], [8.0]]])
    >>> Wasserstein("quantile")(shards, None, np.random.default_rng(0)).values.ravel()
    array([2. , 4.5, 2. , 4.5])
    """

    kind: Kind = "location-scatter"
    points: int = 200
    iterations: int = 5

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise unknown("kind of Wasserstein", self.kind, get_args(Kind))
        if self.points < 2 or self.iterations < 1:
            raise OptionError(
                f"points must be at least 2 and iterations at least 1; {self.points} and {self.iterations} were given."
            )
        object.__setattr__(self, "pools", self.kind != "empirical")

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the rescaled subposteriors; modes are not used."""
        if self.kind == "quantile":
            return _average_quantiles(draws)
        if self.kind == "location-scatter":
            return in_varying_directions(draws, _location_scatter)
        return in_varying_directions(draws, lambda inner: self._empirical(inner, rng))

    def _empirical(self, draws: ShardDraws, rng: np.random.Generator) -> Combined:
        """Barycentres of disjoint blocks of the shards' draws, until the draws or the work are used up."""
        covariances, notes = invertible_covariances(draws)
        average = np.tensordot(draws.shares, covariances, axes=1)
        root = np.linalg.cholesky(average)
        whitener = np.linalg.inv(root)
        order = [rng.permutation(len(v)) for v in draws.values]
        longest = max(len(v) for v in draws.values)
        size = min(self.points, longest)
        affordable = MOST_ASSIGNMENTS // (draws.num_shards * self.iterations) // max((size // 200) ** 2, 1)
        blocks = min(longest // size, max(affordable, 1))
        parts = []
        for block in range(blocks):
            rows = np.arange(block * size, (block + 1) * size)
            shards = [v[o[rows % len(v)]] @ whitener.T for v, o in zip(draws.values, order, strict=True)]
            parts.append(free_support_barycenter(shards, draws.shares, self.iterations))
        values = np.concatenate(parts)
        target = barycenter_covariance(symmetric(whitener @ covariances @ whitener.T), draws.shares)
        ratio = np.trace(np.atleast_2d(np.cov(values.T))) / np.trace(target)
        if ratio < 0.95:
            shrunk = (
                f"The points of the empirical barycentre have {ratio:.0%} of the variance of the "
                f"location-scatter one: {size} points are too few for {draws.dim} dimensions."
            )
            notes = (*notes, shrunk)
        return Combined(values @ root.T, notes=notes)


def free_support_barycenter(shards: Sequence[np.ndarray], shares: np.ndarray, iterations: int) -> np.ndarray:
    """Equally weighted points with the (locally) least sum of squared transport distances to the shards' points.

    Each round assigns the points to each shard's (optimally, one to one) and replaces them by the
    share-weighted averages of what they were assigned to.

    Parameters
    ----------
    shards
        One (point, dim) array per shard, of equal shape.
    shares
        (shard,)
    iterations
        Number of rounds.

    Examples
    --------
    >>> free_support_barycenter([np.array([[0.0], [2.0]]), np.array([[6.0], [4.0]])], np.array([0.5, 0.5]), 2)
    array([[2.],
           [4.]])
    """
    # Imported here because they are slow to import.
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    means = np.stack([s.mean(axis=0) for s in shards])
    support = shards[0] - means[0] + shares @ means
    for _ in range(iterations):
        updated = np.zeros_like(support)
        for shard, share in zip(shards, shares, strict=True):
            if support.shape[1] == 1:
                assigned = np.argsort(shard[:, 0])[np.argsort(np.argsort(support[:, 0]))]
            else:
                assigned = linear_sum_assignment(cdist(support, shard, "sqeuclidean"))[1]
            updated += share * shard[assigned]
        if np.allclose(updated, support, rtol=0, atol=1e-10):
            break
        support = updated
    return support


def barycenter_covariance(covariances: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Covariance of the Wasserstein barycentre of normal distributions.

    The fixed point of S = sum_i a_i (S^(1/2) S_i S^(1/2))^(1/2), by the iteration of Alvarez-Esteban et al.,
    S <- S^(-1/2) (sum_i a_i (S^(1/2) S_i S^(1/2))^(1/2))^2 S^(-1/2).

    Parameters
    ----------
    covariances
        Positive definite, (shard, dim, dim).
    shares
        (shard,)

    Examples
    --------
    >>> barycenter_covariance(np.array([[[1.0]], [[9.0]]]), np.array([0.5, 0.5]))
    array([[4.]])
    """
    current = np.tensordot(shares, covariances, axes=1)
    for _ in range(100):
        root, inverse_root = _root(current), _root(current, -0.5)
        average = np.tensordot(shares, _root(root @ covariances @ root), axes=1)
        updated = symmetric(inverse_root @ average @ average @ inverse_root)
        converged = np.abs(updated - current).max() <= 1e-12 * np.abs(current).max()
        current = updated
        if converged:
            break
    return current


def _root(matrices: np.ndarray, power: float = 0.5) -> np.ndarray:
    values, vectors = np.linalg.eigh(symmetric(matrices))
    return (vectors * np.maximum(values, 0)[..., None, :] ** power) @ np.swapaxes(vectors, -1, -2)


def _location_scatter(draws: ShardDraws) -> Combined:
    covariances, notes = invertible_covariances(draws)
    root = np.linalg.cholesky(np.tensordot(draws.shares, covariances, axes=1))
    whitener = np.linalg.inv(root)
    whitened = symmetric(whitener @ covariances @ whitener.T)
    # Roots of covariances estimated from T draws are too small on average: by (dim + 1) / (8 T), to first order.
    degrees = np.array([max(len(v) - 1, 1) for v in draws.values])
    bias = (draws.shares * (1 - draws.shares) * (draws.dim + 1) / (4 * degrees)).sum()
    target = barycenter_covariance(whitened, draws.shares) / (1 - min(bias, 0.25))
    # The optimal map from N(0, S_i) to N(0, S) is S_i^(-1/2) (S_i^(1/2) S S_i^(1/2))^(1/2) S_i^(-1/2).
    own, inverse = _root(whitened), _root(whitened, -0.5)
    maps = root @ inverse @ _root(own @ target @ own) @ inverse @ whitener
    mean = draws.shares @ draws.means
    moved = [
        mean + inflation(len(v)) * (v - m) @ a.T
        for v, m, a in zip(draws.values, draws.means, maps, strict=True)
    ]
    pooled, shard, pool_notes = pool(moved, draws.shares)
    return Combined(pooled, shard, (*notes, *pool_notes))


def _average_quantiles(draws: ShardDraws) -> Combined:
    """Carry each coordinate of each shard to the average of the shards' quantile functions."""
    longest = max(len(v) for v in draws.values)
    average = np.zeros((draws.dim, longest))
    orders = []
    for v, share in zip(draws.values, draws.shares, strict=True):
        columns = np.ascontiguousarray(v.T)
        order = np.argsort(columns, axis=1)
        average += share * _stretched(np.take_along_axis(columns, order, axis=1), longest)
        orders.append(order)
    moved = []
    for order in orders:
        columns = np.empty(order.shape)
        np.put_along_axis(columns, order, _stretched(average, order.shape[1]), axis=1)
        moved.append(columns.T)
    pooled, shard, notes = pool(moved, draws.shares)
    return Combined(pooled, shard, notes)


def _stretched(quantiles: np.ndarray, length: int) -> np.ndarray:
    """Quantiles at the middles of `length` equal intervals, interpolated from another number; both along axis 1."""
    given = quantiles.shape[1]
    if given == length:
        return quantiles
    at = (np.arange(length) + 0.5) / length
    known = (np.arange(given) + 0.5) / given
    return np.stack([np.interp(at, known, row) for row in quantiles])
