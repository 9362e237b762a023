"""What combiners share: covariances that can be inverted, affine maps between them, and pooled draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardmc.errors import counted
from shardmc.types import Combined, ShardDraws

SINGULAR = 1e-10
"""A covariance is singular if the smallest eigenvalue of its correlation matrix is below this."""
CONSTANT = 1e-13
"""A coordinate is constant if its standard deviation relative to its mean is below this: only rounding."""


def listed_shards(shards: Sequence[int] | np.ndarray) -> str:
    """A list of shards for a sentence.

    >>> listed_shards([3]), listed_shards([0, 4, 5]), listed_shards(range(30))
    ('shard 3', 'shards 0, 4, 5', '30 shards (0, 1, 2, 3, 4, ...)')
    """
    names = [str(int(shard)) for shard in shards]
    if len(names) == 1:
        return f"shard {names[0]}"
    if len(names) <= 8:
        return f"shards {', '.join(names)}"
    return f"{len(names)} shards ({', '.join(names[:5])}, ...)"


def transport(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The matrix that takes one covariance to another and commutes with linear changes of parameters.

    A = W (W^-1 S W^-T)^(-1/2) W^-1 with V = W W^T, so that A S A^T = V, for any root W.

    Parameters
    ----------
    source, target
        Positive definite covariances S, (dim, dim) or a stack of them, and V, (dim, dim).

    Examples
    --------
    >>> transport(np.array([[4.0]]), np.array([[1.0]]))
    array([[0.5]])
    """
    root = np.linalg.cholesky(target)
    inverse_root = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(symmetric(inverse_root @ source @ inverse_root.T))
    return root @ (vectors / np.sqrt(values)[..., None, :]) @ np.swapaxes(vectors, -1, -2) @ inverse_root


def symmetric(matrix: np.ndarray) -> np.ndarray:
    """The symmetric part of a matrix, or of a stack of them."""
    return (matrix + np.swapaxes(matrix, -1, -2)) / 2


def inflation(num_draws: int) -> float:
    """The factor sqrt(T / (T - 1)) that undoes the shrinkage of T draws about their own mean."""
    return float(np.sqrt(num_draws / (num_draws - 1))) if num_draws > 1 else 1.0


def clean_covariances(draws: ShardDraws) -> np.ndarray:
    """Covariance of each shard's draws, (shard, dim, dim), with exact zeros for coordinates that are constant."""
    covariances = draws.covariances
    sd = np.sqrt(np.einsum("ijj->ij", covariances))
    varies = sd > CONSTANT * np.abs(draws.means)
    return covariances if varies.all() else covariances * varies[:, :, None] * varies[:, None, :]


def is_singular(covariance: np.ndarray) -> bool:
    """Whether a covariance is singular when its coordinates are on a common scale."""
    sd = np.sqrt(np.diag(covariance))
    if (sd <= 0).any() or not np.isfinite(sd).all():
        return True
    return bool(np.linalg.eigvalsh(covariance / np.outer(sd, sd))[0] < SINGULAR)


def regularized(covariance: np.ndarray, degrees: int, target: np.ndarray) -> np.ndarray:
    """A covariance of `degrees` + 1 draws, moved towards a target if it is poorly known or singular.

    In coordinates in which the target is the identity: with degrees < 2 dim the eigenvalues e become
    (degrees e + dim) / (degrees + dim). Otherwise those that are zero become one: where the draws do not vary,
    the target's variance is used.
    """
    dim = len(covariance)
    if degrees >= 2 * dim and not is_singular(covariance):
        return covariance
    root = np.linalg.cholesky(target)
    inverse_root = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(symmetric(inverse_root @ covariance @ inverse_root.T))
    if degrees < 2 * dim:
        values = (degrees * np.maximum(values, 0) + dim) / (degrees + dim)
    else:
        values = np.where(values <= SINGULAR * values[-1], 1.0, values)
    axes = root @ vectors
    return symmetric((axes * values) @ axes.T)


def invertible_covariances(draws: ShardDraws) -> tuple[np.ndarray, tuple[str, ...]]:
    """Covariance of every shard's draws, regularized if it cannot be inverted, and notes on that.

    A shard with fewer than 2 dim + 1 draws, or with a singular covariance, is `regularized` towards the
    share-weighted average covariance of the other shards, or of all shards if there are no others.

    Parameters
    ----------
    draws
        Shards whose average covariance is not singular (see `in_varying_directions`).

    Returns
    -------
    covariances : (shard, dim, dim)
    notes
    """
    degrees = np.array([len(v) - 1 for v in draws.values])
    few = degrees < 2 * draws.dim
    covariances = clean_covariances(draws)
    singular = np.array([is_singular(c) for c in covariances]) & ~few
    poor = few | singular
    if not poor.any():
        return covariances, ()
    # Fractional subposteriors are wider by 1 / share, so bring all to one scale.
    factor = (draws.shares if draws.scaling == "fractional" else np.ones(draws.num_shards))[:, None, None]
    common = covariances * factor
    sound = np.ones_like(poor) if poor.all() else ~poor
    target = np.tensordot(draws.shares[sound], common[sound], axes=1) / draws.shares[sound].sum()
    sturdy = [regularized(c, n, target) if p else c for c, n, p in zip(common, degrees, poor, strict=True)]
    return np.stack(sturdy) / factor, _regularization_notes(few, singular, draws.dim)


def _regularization_notes(few: np.ndarray, singular: np.ndarray, dim: int) -> tuple[str, ...]:
    notes = []
    if few.any():
        notes.append(
            f"The covariance of {listed_shards(np.flatnonzero(few))} was shrunk towards the average of the shards, "
            f"because a shard needs at least {2 * dim + 1} draws for {counted(dim, 'parameter')}."
        )
    if singular.any():
        notes.append(
            f"The covariance of {listed_shards(np.flatnonzero(singular))} is singular. Where such a shard does "
            f"not vary, the average covariance of the other shards was used."
        )
    return tuple(notes)


def precisions(draws: ShardDraws, small_sample: bool = True) -> tuple[np.ndarray, tuple[str, ...]]:
    """Inverse covariances P_i of the shards' draws, (shard, dim, dim), and notes on those that were regularized.

    The inverse of an estimated covariance is too large on average, which makes the inverse of a sum of them
    too small. With `small_sample` P_i is multiplied by 1 - (1 - a_i) (dim + 1) / (T_i - 1), which removes
    that bias from (sum_i P_i)^-1, to first order in 1 / T_i.
    """
    covariances, notes = invertible_covariances(draws)
    inverse = symmetric(np.linalg.inv(covariances))
    if small_sample:
        degrees = np.array([max(len(v) - 1, 1) for v in draws.values])
        factor = 1 - (1 - draws.shares) * (draws.dim + 1) / degrees
        # A covariance from fewer draws was shrunk to that of the others and does not have this bias.
        inverse *= np.where(degrees < 2 * draws.dim, 1.0, factor)[:, None, None]
    return inverse, notes


@dataclass(frozen=True)
class VaryingDirections:
    """The directions in which any shard varies: theta = center + u @ basis.T."""

    center: np.ndarray  # (dim,) share-weighted mean of the shards' means
    basis: np.ndarray  # (dim, rank)
    dual: np.ndarray  # (dim, rank): u = (theta - center) @ dual

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def is_everything(self) -> bool:
        return self.rank == len(self.center)

    @staticmethod
    def of(draws: ShardDraws, by_coordinate: bool = False) -> VaryingDirections:
        """Find the range of the shards' average covariance, on the scale of its standard deviations.

        With `by_coordinate` only constant coordinates are left out, not linear combinations.
        """
        average = np.tensordot(draws.shares, clean_covariances(draws), axes=1)
        sd = np.sqrt(np.diag(average))
        scale = np.where(sd > 0, sd, 1.0)
        if by_coordinate:
            average = np.diag(np.diag(average))
        values, vectors = np.linalg.eigh(average / np.outer(scale, scale))
        kept = vectors[:, values > SINGULAR]
        center = draws.shares @ draws.means
        if kept.shape[1] == draws.dim:
            return VaryingDirections(center, np.eye(draws.dim), np.eye(draws.dim))
        return VaryingDirections(center, scale[:, None] * kept, kept / scale[:, None])

    def reduce(self, draws: ShardDraws) -> ShardDraws:
        shifted = (v - self.center for v in draws.values)
        return replace(draws, values=tuple(v if self.is_everything else v @ self.dual for v in shifted))

    def lift(self, values: np.ndarray) -> np.ndarray:
        return self.center + values @ self.basis.T


def in_varying_directions(
    draws: ShardDraws, combine: Callable[[ShardDraws], Combined], by_coordinate: bool = False
) -> Combined:
    """Combine in the directions in which the shards vary. In the others use the share-weighted mean.

    Parameters that are fixed, or functions of others (both triangles of a symmetric matrix), make every shard's
    covariance singular. So the shards are combined in coordinates of the range of the average covariance.
    """
    varying = VaryingDirections.of(draws, by_coordinate)
    if varying.is_everything:
        return combine(draws)
    note = (
        f"The shards vary in only {varying.rank} of {draws.dim} directions; "
        "in the others every draw is the share-weighted mean of the shards."
    )
    if varying.rank == 0:
        repeated = np.tile(varying.center, (max(len(v) for v in draws.values), 1))
        return Combined(repeated, notes=(note,))
    inner = combine(varying.reduce(draws))
    return replace(inner, values=varying.lift(inner.values), notes=(note, *inner.notes))


def apportion(weights: np.ndarray, total: int, order: Sequence[np.ndarray] = ()) -> np.ndarray:
    """Whole numbers in proportion to weights that sum to a total, by largest remainder.

    Parameters
    ----------
    weights
        (shard,) non-negative numbers that sum to 1.
    total
        The sum to reach.
    order
        Keys that decide between equal remainders: the first key is the most important, the largest value wins.

    Examples
    --------
    >>> apportion(np.array([0.5, 0.3, 0.2]), 7)
    array([4, 2, 1])
    """
    quota = weights * total
    counts = np.floor(quota + 1e-9).astype(np.int64)
    remainder = np.round(quota - counts, 9)
    ranking = np.lexsort((*reversed(order), remainder))[::-1]
    counts[ranking[: total - counts.sum()]] += 1
    return counts


def pool(values: Sequence[np.ndarray], weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Pool shards' draws in proportion to weights.

    Shard i contributes about w_i S draws: its own draws, thinned evenly if it has more, repeated evenly if it has
    fewer. S is the largest number for which no draw is repeated, unless that would lose more than half of all draws;
    then S is their number. With equal weights and equal numbers of draws, every draw appears once.

    Parameters
    ----------
    values
        One (draw, dim) array per shard.
    weights
        (shard,) non-negative numbers that sum to 1.

    Returns
    -------
    pooled : (draw, dim)
    shard : (draw,)
        The shard each draw came from.
    notes
        A sentence if draws had to be repeated.
    """
    lengths = np.array([len(v) for v in values])
    # Ties are broken by the number of draws and then by the draws, so that the order of the shards does not matter.
    means = np.array([v[:, 0].mean() for v in values])
    counts = apportion(weights, _size(lengths, weights), (lengths, means))
    pooled = np.concatenate(
        [
            v if n == len(v) else v[np.arange(n) * len(v) // max(n, 1)]
            for v, n in zip(values, counts, strict=True)
        ]
    )
    shard = np.repeat(np.arange(len(values)), counts)
    return pooled, shard, _repeat_notes(counts, lengths)


def pooled_count(per_shard: int, weights: np.ndarray) -> int:
    """How many draws `pool` makes of equally many draws of every shard.

    >>> pooled_count(17, np.full(3, 1 / 3))
    51
    """
    return _size(np.full(len(weights), per_shard), weights)


def _size(lengths: np.ndarray, weights: np.ndarray) -> int:
    """Number of pooled draws."""
    total = int(lengths.sum())
    # Half a draw of tolerance, so that shards that differ by a row do not cost a draw.
    given = weights > 0
    without_repeats = min(total, int(np.min((lengths[given] + 0.5) / weights[given])))
    return without_repeats if 2 * without_repeats >= total else total


def _repeat_notes(counts: np.ndarray, lengths: np.ndarray) -> tuple[str, ...]:
    repeated = np.flatnonzero(counts > 1.01 * lengths)  # not if shards differ by a row
    if len(repeated) == 0:
        return ()
    most = math.ceil(float(np.max(counts[repeated] / lengths[repeated])))
    return (
        f"Draws of {listed_shards(repeated)} were repeated, each up to {most} times, to give those shards their share "
        "of the pooled draws.",
    )
