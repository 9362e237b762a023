"""The Weierstrass rejection sampler: merge the shards two by two, keeping pairs of draws that lie close."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, final, get_args

import numpy as np

from shardmc.combiners.gaussian import widening
from shardmc.combiners.moments import in_varying_directions, precisions, symmetric
from shardmc.errors import OptionError, unknown
from shardmc.types import Combined, Combiner, Located, ShardDraws

Kernel = Literal["uniform", "gaussian"]


@final
@dataclass(frozen=True)
class Weierstrass(Combiner):
    """Merge shards in a binary tree, from pairs of draws that pass a rejection step (Wang and Dunson 2013).

    A pair (x1, x2) becomes (P1 + P2)^-1 (P1 x1 + P2 x2), with P_i the sum of the inverse covariances of the
    shards merged on each side, and is kept if q = (x1 - x2)^T (P1^-1 + P2^-1)^-1 (x1 - x2) is small. For normal
    subposteriors the result is exact for any `accept`. Otherwise a smaller `accept` is closer to the product, but uses
    the same draws more often. In one or two dimensions, over many merges of few draws, the combined draws can then be
    too close together. The notes say so.

    Parameters
    ----------
    kernel
        "uniform", keep the pairs whose q is below its `accept` quantile; "gaussian", keep a pair with
        probability exp(-q / h), h set so that the mean probability is `accept`.
    accept
        Fraction of the pairs that is kept. 1 / accept pairs are tried for each combined draw.
    small_sample
        Whether to undo the narrowing that comes from estimated weights, and from draws that are used several times.

    Examples
    --------
    >>> shards = ShardDraws.of(np.random.default_rng(0).normal(size=(4, 10_000, 1)), scaling="fractional")
    >>> round(float(Weierstrass()(shards, None, np.random.default_rng(1)).values.std()), 2)
    0.5
    """

    scaling = "fractional"
    pools = False

    kernel: Kernel = "uniform"
    accept: float = 0.1
    small_sample: bool = True

    def __post_init__(self) -> None:
        if self.kernel not in get_args(Kernel):
            raise unknown("kernel of Weierstrass", self.kernel, get_args(Kernel))
        if not 0 < self.accept <= 1:
            raise OptionError(f"accept must be above 0 and at most 1; {self.accept} was given.")

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the fractional subposteriors; modes are not used."""
        draws = replace(draws, scaling="fractional")
        return in_varying_directions(draws, lambda inner: self._merge_all(inner, rng))

    def _merge_all(self, draws: ShardDraws, rng: np.random.Generator) -> Combined:
        precision, notes = precisions(draws, small_sample=False)
        level = [
            _Side(v, p, np.arange(len(v))[:, None]) for v, p in zip(draws.values, precision, strict=True)
        ]
        while len(level) > 1:
            merged = [self._merge(a, b, rng) for a, b in zip(level[::2], level[1::2], strict=False)]
            level = merged + level[len(merged) * 2 :]
        values = level[0].values
        use = _Use.of(draws, precision, level[0].origin)
        if self.small_sample:
            mean = values.mean(axis=0)
            values = mean + (values - mean) * use.widening
        return Combined(values, notes=(*notes, *use.notes))

    def _merge(self, one: _Side, two: _Side, rng: np.random.Generator) -> _Side:
        first, second = self._pairs(one, two, rng)
        # The precisions of the shards are added up, not estimated again from draws that were used several times.
        total = one.precision + two.precision
        values = one.values[first] @ np.linalg.solve(total, one.precision).T
        values += two.values[second] @ np.linalg.solve(total, two.precision).T
        return _Side(values, total, np.concatenate([one.origin[first], two.origin[second]], axis=1))

    def _pairs(self, one: _Side, two: _Side, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the two sides that are kept as pairs, about as many as the longer side has draws."""
        length = max(len(one.values), len(two.values))
        order = [rng.permutation(np.arange(length) % len(side.values)) for side in (one, two)]
        rounds = ceil(1 / self.accept)
        if rounds == 1:
            return order[0], order[1]
        # (S1 + S2)^-1 = P1 - P1 (P1 + P2)^-1 P1
        metric = one.precision - one.precision @ np.linalg.solve(one.precision + two.precision, one.precision)
        root = np.linalg.cholesky(symmetric(metric))
        # Single precision is enough for a distance that is only compared.
        center = one.values.mean(axis=0)
        left, right = (
            ((side.values[rows] - center) @ root).astype(np.float32)
            for side, rows in zip((one, two), order, strict=True)
        )
        doubled = np.concatenate([right, right])
        squares = (left**2).sum(axis=1), (doubled**2).sum(axis=1)
        # Pairs at a distance of `shift` in the two random orders, so that every round has different pairs.
        shifts = [shift * length // rounds for shift in range(rounds)]
        distance = np.empty((rounds, length), np.float32)
        for i, shift in enumerate(shifts):
            end = shift + length
            np.einsum("ij,ij->i", left, doubled[shift:end], out=distance[i])
            distance[i] *= -2
            distance[i] += squares[0]
            distance[i] += squares[1][shift:end]
        kept = self._keep(distance.ravel(), rng)
        row, column = np.divmod(kept, length)
        return order[0][column], order[1][(column + np.array(shifts)[row]) % length]

    def _keep(self, distance: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Indices of the pairs that pass, in random order for an even mixture of rounds."""
        count = max(round(self.accept * len(distance)), 1)
        if self.kernel == "uniform":
            return rng.permutation(np.argpartition(distance, count - 1)[:count])
        excess = (distance - distance.min()).astype(np.float64)
        probability = np.exp(-excess / _bandwidth(excess, self.accept))
        passed = np.flatnonzero(rng.random(len(excess)) < probability)
        return rng.permutation(passed) if len(passed) else np.array([int(np.argmin(excess))])


@dataclass(frozen=True)
class _Side:
    """Draws on one side of a merge."""

    values: np.ndarray  # (draw, dim)
    precision: np.ndarray  # (dim, dim)
    origin: np.ndarray  # (draw, shard), which draw of each shard is part of it


_FEW = 100


@dataclass(frozen=True)
class _Use:
    """How often the shards' draws are part of the combined draws.

    If draw t of shard i is in a fraction u_it of the output, the output's mean has the variance
    V sum_i a_i sum_t u_it^2 instead of V / n, and the variance of the n draws is smaller than V by that.
    """

    count: int  # n
    reuse: float  # sum_i a_i sum_t u_it^2
    estimated: float  # factor that undoes the narrowing by estimated weights

    @staticmethod
    def of(draws: ShardDraws, precision: np.ndarray, origin: np.ndarray) -> _Use:
        reuse, leverage = 0.0, np.empty(draws.num_shards)
        for i, values in enumerate(draws.values):
            part = np.bincount(origin[:, i], minlength=len(values)) / len(origin)
            reuse += float(draws.shares[i] * (part**2).sum())
            around = values - part @ values
            leverage[i] = part @ ((around @ precision[i]) * around).sum(axis=1) / draws.dim
        lengths = np.array([len(v) for v in draws.values])
        return _Use(len(origin), reuse, widening(draws.shares, lengths, draws.dim, leverage))

    @property
    def widening(self) -> float:
        # Below two effective draws there is no spread to widen.
        repeated = (1 - 1 / self.count) / (1 - min(self.reuse, 0.5)) if self.count > 2 else 1.0
        return self.estimated * float(np.sqrt(repeated))

    @property
    def notes(self) -> tuple[str, ...]:
        if self.reuse * _FEW < 1:
            return ()
        return (
            f"The kept pairs use the same draws often: the combined draws are worth about {1 / self.reuse:.0f} "
            "independent ones. Take more draws of each shard, or a larger accept.",
        )


def _bandwidth(excess: np.ndarray, accept: float) -> float:
    """The h at which exp(-excess / h) has the mean `accept`."""
    if not excess.max() > 0 or accept >= 1:
        return 1.0
    thinned = excess[:: max(len(excess) // 10_000, 1)]
    # The mean grows with h, from the fraction of pairs without excess to 1. Bisect log h.
    low, high = np.log(excess[excess > 0].min()) - 5, np.log(excess.max()) + 5 - np.log1p(-accept)
    for _ in range(30):
        middle = (low + high) / 2
        if np.exp(-thinned * np.exp(-middle)).mean() < accept:
            low = middle
        else:
            high = middle
    return float(np.exp(high))
