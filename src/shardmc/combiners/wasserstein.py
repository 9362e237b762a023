"""Wasserstein barycentres of the subposteriors, and the draws carried there by each shard's transport map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final, get_args

import numpy as np

from shardmc.combiners.moments import in_varying_directions, inflation, invertible_covariances, symmetric
from shardmc.combiners.pool import pool
from shardmc.errors import OptionError, unknown
from shardmc.types import Combined, Combiner, Located, ShardDraws

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
            raise OptionError("points must be at least 2 and iterations at least 1.")
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
