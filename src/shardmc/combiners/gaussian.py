"""Consensus Monte Carlo, products of densities by kernels, and the normal approximation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final, get_args

import jax
import numpy as np

from shardmc.combiners.moments import (
    in_varying_directions,
    invertible_covariances,
    listed_shards,
    precisions,
    symmetric,
)
from shardmc.errors import OptionError, unknown
from shardmc.types import Combined, Combiner, Located, ShardDraws

Weights = Literal["full", "diagonal", "uniform"]


@final
@dataclass(frozen=True)
class Consensus(Combiner):
    """Precision-weighted average of one draw from every shard (Scott et al. 2016).

    theta^t = (sum_i P_i)^-1 sum_i P_i theta_i^t, exact if the subposteriors are normal. There are as many combined
    draws as the longest shard has. The draws of a shorter shard are used again in turn.

    Parameters
    ----------
    weights
        P_i: "full", the inverse covariance of the shard's draws; "diagonal", the inverse variances;
        "uniform", the share of the shard.
    shuffle
        Whether to pair draws at random, not by index. Shards that were sampled independently do not need it.
    small_sample
        Whether to undo the narrowing by about 1 - (1 - 1/K) (dim + 1) / T that comes from weights estimated from
        T draws.
    subsampled
        One (draw, dim) array per shard: draws of the subposterior given a random `fraction` f of the shard's
        rows. The combined draws are then shifted by f / (1 - f) (m - m_f), with m and m_f the means of the
        combined draws of all and of that fraction of the rows, which removes a bias of order 1 / (rows of a
        shard): the jackknife correction of Scott et al.
    fraction
        The fraction f of rows behind `subsampled`.

    Examples
    --------
    >>> draws = ShardDraws.of([[[0.0], [1.0]], [[4.0], [5.0]]], scaling="fractional")
    >>> Consensus("uniform")(draws, None, np.random.default_rng(0)).values.ravel()
    array([2., 3.])
    """

    scaling = "fractional"
    pools = False

    weights: Weights = "full"
    shuffle: bool = False
    small_sample: bool = True
    subsampled: Sequence[np.ndarray] | np.ndarray | None = field(default=None, compare=False, repr=False)
    fraction: float = 0.5

    def __post_init__(self) -> None:
        if self.weights not in get_args(Weights):
            raise unknown("weights of Consensus", self.weights, get_args(Weights))
        if not 0 < self.fraction < 1:
            raise OptionError(f"fraction must lie between 0 and 1; {self.fraction} was given.")

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the fractional subposteriors; modes are not used."""
        draws = replace(draws, scaling="fractional")
        if self.weights == "uniform":
            combined = self._average(draws, rng)
        else:
            by_coordinate = self.weights == "diagonal"
            combined = in_varying_directions(draws, lambda inner: self._average(inner, rng), by_coordinate)
        if self.subsampled is None:
            return combined
        part = ShardDraws.of(self.subsampled, scaling="fractional")
        if (part.num_shards, part.dim) != (draws.num_shards, draws.dim):
            raise OptionError(
                f"subsampled has {part.num_shards} shards of {part.dim} parameters, the draws have "
                f"{draws.num_shards} shards of {draws.dim}."
            )
        plain = replace(self, subsampled=None)
        bias = plain(replace(part, shares=draws.shares), None, rng).values.mean(
            axis=0
        ) - combined.values.mean(axis=0)
        shift = self.fraction / (1 - self.fraction) * bias
        return replace(combined, values=combined.values - shift)

    def _average(self, draws: ShardDraws, rng: np.random.Generator) -> Combined:
        precision, notes = self._precisions(draws)
        total = precision.sum(axis=0)
        lengths = np.array([len(v) for v in draws.values])
        values = np.zeros((lengths.max(), draws.dim))
        for v, p in zip(draws.values, precision, strict=True):
            rows = np.arange(lengths.max()) % len(v)
            values += v[rng.permutation(rows) if self.shuffle else rows] @ np.linalg.solve(total, p).T
        if self.small_sample and self.weights != "uniform":
            mean = values.mean(axis=0)
            parameters = draws.dim if self.weights == "full" else 1
            values = mean + (values - mean) * widening(draws.shares, lengths, parameters)
        short = np.flatnonzero(lengths < lengths.max())
        if len(short):
            notes = (
                *notes,
                f"Draws of {listed_shards(short)} were used more than once: other shards have more.",
            )
        return Combined(values, notes=notes)

    def _precisions(self, draws: ShardDraws) -> tuple[np.ndarray, tuple[str, ...]]:
        """The weight matrices, (shard, dim, dim), up to a common factor."""
        if self.weights == "uniform":
            return draws.shares[:, None, None] * np.eye(draws.dim), ()
        if self.weights == "full":
            return precisions(draws, small_sample=False)
        columns = [
            precisions(replace(draws, values=tuple(v[:, [j]] for v in draws.values)), small_sample=False)
            for j in range(draws.dim)
        ]
        diagonal = np.stack([column[:, 0, 0] for column, _ in columns], axis=1)
        notes = tuple(dict.fromkeys(note for _, column_notes in columns for note in column_notes))
        return diagonal[:, :, None] * np.eye(draws.dim), notes


def widening(shares: np.ndarray, lengths: np.ndarray, dim: int, leverage: np.ndarray | float = 1.0) -> float:
    """The factor by which a precision-weighted average with estimated weights is too narrow.

    The average's covariance within the sample is (sum_i S_i^-1)^-1 with estimated S_i, which is V times
    1 - sum_i a_i (1 - a_i) (dim + 1) / (T_i - 1) to first order. The term of a shard is proportional to the mean
    leverage of its draws; `leverage` is that of the draws that are averaged, relative to all from which S_i comes.
    """
    degrees = np.maximum(lengths - 1, 1)
    each = np.where(degrees < 2 * dim, 0.0, leverage * (dim + 1) / degrees)
    return float(1 / np.sqrt(1 - (shares * (1 - shares) * each).sum()))


@final
@dataclass(frozen=True)
class Laplace(Combiner):
    """Independent draws of N(theta^, H^-1), with theta^ the mode of all rows and H the curvature there.

    The shards' draws are not used, except that as many draws are made as there are in all shards.

    Examples
    --------
    >>> from shardmc.types import Mode
    >>> mode = Mode(np.zeros(1), np.array([[4.0]]), 0.0, 1.0)
    >>> nothing = np.full((1, 1, 1), np.nan)
    >>> located = Located(mode, nothing[0], nothing, np.array([False]))
    >>> shards = ShardDraws.of(np.zeros((1, 10_000, 1)))
    >>> round(float(Laplace()(shards, located, np.random.default_rng(0)).values.std()), 1)
    0.5
    """

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Draw from the normal approximation; the shards' own modes are not needed."""
        if located is None:
            raise OptionError(
                "The laplace combiner needs the mode and curvature of all rows, and only draws were given. "
                "Use 'product' for a normal approximation made from draws."
            )
        total = sum(len(v) for v in draws.values)
        return Combined(located.mode.frame.to_theta(rng.standard_normal((total, draws.dim))))


Kind = Literal["parametric", "nonparametric", "semiparametric"]

MOST_DRAWS = 10_000
"""The most draws of a product of kernel densities, and the most kernels of a shard. Its cost is kernels times
draws times shards."""


@final
@dataclass(frozen=True)
class Product(Combiner):
    """Draws of the product of estimated subposterior densities.

    There are as many draws as the longest shard has, and at most 10,000 with kernel densities.

    Parameters
    ----------
    kind
        "parametric", normal densities N(m_i, S_i), whose product is N(mu, V) with V = (sum_i S_i^-1)^-1 and
        mu = V sum_i S_i^-1 m_i;
        "nonparametric", kernel densities mean_t N(theta; theta_i^t, h^2 S_i);
        "semiparametric", kernel densities that correct a normal one,
        N(theta; m_i, S_i) mean_t N(theta; theta_i^t, h^2 S_i) / N(theta_i^t; m_i, S_i).
        In more than a few dimensions a product of many kernel densities is too noisy to be useful. The notes say
        how many independent draws its weights are worth.
    bandwidth
        h = bandwidth * T^(-1 / (4 + dim)).
    small_sample
        Whether to undo the bias of inverse covariances that are estimated from T draws (parametric).

    Notes
    -----
    Neiswanger et al. draw from the product of kernel densities by changing one shard's kernel at a time. That
    chain moves by about h / sqrt(K) standard deviations per sweep and does not mix in any reasonable time. Here
    draws of the parametric product (then of a Student t with the moments of the product itself) are weighted
    by the same density and resampled.

    Examples
    --------
    >>> shards = ShardDraws.of(np.random.default_rng(0).normal(size=(4, 10_000, 1)), scaling="fractional")
    >>> round(float(Product()(shards, None, np.random.default_rng(1)).values.std()), 2)
    0.5
    """

    scaling = "fractional"
    pools = False

    kind: Kind = "parametric"
    bandwidth: float = 1.0
    small_sample: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise unknown("kind of Product", self.kind, get_args(Kind))
        if not self.bandwidth > 0:
            raise OptionError(f"bandwidth must be positive; {self.bandwidth} was given.")

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the fractional subposteriors; modes are not used."""
        draws = replace(draws, scaling="fractional")
        return in_varying_directions(draws, lambda inner: self._product(inner, rng))

    def _product(self, draws: ShardDraws, rng: np.random.Generator) -> Combined:
        precision, notes = precisions(draws, self.small_sample)
        covariance = symmetric(np.linalg.inv(precision.sum(axis=0)))
        mean = covariance @ np.einsum("ijk,ik->j", precision, draws.means)
        longest = max(len(v) for v in draws.values)
        if self.kind == "parametric":
            root = np.linalg.cholesky(covariance)
            return Combined(mean + rng.standard_normal((longest, draws.dim)) @ root.T, notes=notes)
        product = KernelProduct.of(draws, self.bandwidth, self.kind == "semiparametric", MOST_DRAWS)
        values, worth = product.sample(mean, covariance, min(longest, MOST_DRAWS), rng)
        if worth < 0.1 * len(values):
            notes = (
                *notes,
                f"The {len(values)} draws of the {self.kind} product are worth about {worth:.0f} "
                f"independent ones: {draws.num_shards} kernel densities in {draws.dim} dimensions overlap "
                f"too little.",
            )
        if longest > MOST_DRAWS:
            notes = (*notes, f"The {self.kind} product makes no more than {MOST_DRAWS} draws.")
        return Combined(values, notes=notes)


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
