"""The product of kernel density estimates of the shards, evaluated and drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from shardmc.combiners.moments import invertible_covariances
from shardmc.types import ShardDraws

CHUNK = 500
"""Points evaluated at once, which bounds the memory to CHUNK times the kernels of one shard."""
DEGREES = 20.0
"""Degrees of freedom of the Student t that points are proposed from."""
PILOT = 1_000
"""Points with which the proposal is fitted to the product."""


# Not the `jit` of shardmc: without XLA's fused kernels this is slower, and its sums are right with them.
@jax.jit
def _log_sum_kernels(points: jax.Array, centers: jax.Array, offsets: jax.Array) -> jax.Array:
    """log sum_t exp(points . center_t + offset_t), for points (chunk, CHUNK, dim); (chunk, CHUNK)."""

    def of_chunk(chunk: jax.Array) -> jax.Array:
        return jax.scipy.special.logsumexp(chunk @ centers.T + offsets, axis=1)

    return jax.lax.map(of_chunk, points)


@dataclass(frozen=True)
class KernelProduct:
    """A product over shards of kernel densities, up to a constant.

    In the coordinates u = R_i^-1 (theta - m_i) of shard i, with S_i = R_i R_i^T, its log density is
    -|u|^2 / (2 h^2) - b |u|^2 / 2 + log sum_t exp(u . u_t / h^2 - |u_t|^2 / (2 h^2) + b |u_t|^2 / 2), with
    b = 1 for a semi-parametric density and 0 otherwise.
    """

    means: np.ndarray  # (shard, dim)
    whiteners: np.ndarray  # (shard, dim, dim): R_i^-1
    centers: np.ndarray  # (shard, kernel, dim) float32, whitened
    offsets: np.ndarray  # (shard, kernel) float32, -inf where a shard has fewer kernels
    bandwidths: np.ndarray  # (shard,)
    semiparametric: bool

    @staticmethod
    def of(draws: ShardDraws, bandwidth: float, semiparametric: bool, most_kernels: int) -> KernelProduct:
        """Kernel densities of all shards, each of at most `most_kernels` draws, taken evenly."""
        covariances, _ = invertible_covariances(draws)
        whiteners = np.linalg.inv(np.linalg.cholesky(covariances))
        kernels = [np.arange(n := min(len(v), most_kernels)) * len(v) // n for v in draws.values]
        bandwidths = np.array([bandwidth * len(k) ** (-1 / (4 + draws.dim)) for k in kernels])
        most = max(len(k) for k in kernels)
        centers = np.zeros((draws.num_shards, most, draws.dim), np.float32)
        offsets = np.full((draws.num_shards, most), -np.inf, np.float32)
        for i, rows in enumerate(kernels):
            whitened = (draws.values[i][rows] - draws.means[i]) @ whiteners[i].T
            factor = 0.5 / bandwidths[i] ** 2 - (0.5 if semiparametric else 0)
            offset = -factor * (whitened**2).sum(axis=1)
            centers[i, : len(rows)] = whitened
            offsets[i, : len(rows)] = offset - offset.max()
        return KernelProduct(draws.means, whiteners, centers, offsets, bandwidths, semiparametric)

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """The log density, up to a constant, at points (point, dim); (point,)."""
        padded = np.concatenate([points, np.zeros((-len(points) % CHUNK, points.shape[1]))])
        total = np.zeros(len(padded))
        for mean, whitener, centers, offsets, bandwidth in zip(
            self.means, self.whiteners, self.centers, self.offsets, self.bandwidths, strict=True
        ):
            u = (padded - mean) @ whitener.T
            total -= (0.5 / bandwidth**2 + 0.5 * self.semiparametric) * (u**2).sum(axis=1)
            scaled = (u / bandwidth**2).astype(np.float32).reshape(-1, CHUNK, points.shape[1])
            total += np.asarray(_log_sum_kernels(scaled, centers, offsets), dtype=np.float64).ravel()
        return total[: len(points)]

    def sample(
        self, mean: np.ndarray, covariance: np.ndarray, num_draws: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """Draws (draw, dim) by importance resampling, and the number of independent draws they are worth.

        Points are proposed from a Student t with the given moments, then from one with the moments of the
        weighted points, if there are enough of them.
        """
        dim = len(mean)
        points, weights = self._propose(mean, covariance, min(PILOT, num_draws), rng)
        if 1 / (weights**2).sum() > 10 * dim:
            mean = weights @ points
            covariance = ((points - mean).T * weights) @ (points - mean)
        points, weights = self._propose(mean, covariance, num_draws, rng)
        positions = (rng.random() + np.arange(num_draws)) / num_draws
        picks = np.searchsorted(np.cumsum(weights), positions).clip(max=num_draws - 1)
        return points[picks], float(1 / (weights**2).sum())

    def _propose(
        self, mean: np.ndarray, covariance: np.ndarray, num_points: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        dim = len(mean)
        scale = np.sqrt(DEGREES / rng.chisquare(DEGREES, size=(num_points, 1)))
        z = rng.standard_normal((num_points, dim)) * scale
        points = mean + z @ np.linalg.cholesky(covariance).T
        log_proposal = -(DEGREES + dim) / 2 * np.log1p((z**2).sum(axis=1) / DEGREES)
        log_weights = self.log_density(points) - log_proposal
        weights = np.exp(log_weights - log_weights.max())
        return points, weights / weights.sum()
