"""Consensus Monte Carlo, products of densities, and the normal approximation: exact if the posterior is Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, final, get_args

import numpy as np

from shardmc.combiners.moments import in_varying_directions, listed, precisions, symmetric
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
            notes = (*notes, f"Draws of {listed(short)} were used more than once: other shards have more.")
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
        # Imported here because JAX is slow to import and no other combiner needs it.
        from shardmc.combiners.kernel_product import KernelProduct

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
