"""Random partition trees (PART): the product of the shards' densities as a mixture over the leaves of random trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from shardmc.combiners.moments import in_varying_directions, invertible_covariances, symmetric
from shardmc.errors import OptionError
from shardmc.types import Combined, Combiner, Located, ShardDraws

_UNEVEN = 0.3
"""Cuts lie between this quantile of a cell's draws and its complement, so that trees differ in one dimension too."""
_SHRINK = 2.0
"""How many draws the size of a cell counts for in the covariance of the draws in it."""


@final
@dataclass(frozen=True)
class PartitionTrees(Combiner):
    """Random partition trees (Wang, Guo, Heller and Dunson 2015), with pairwise merges and local Gaussians.

    The draws of two shards are cut at about their median in random coordinates, again and again. In a cell of volume
    |A| with n_1 and n_2 of the N_1 and N_2 draws, the product of the two densities has the mass
    (n_1 / N_1) (n_2 / N_2) / |A|. A combined draw comes from a cell in proportion to its mass, and in the cell from the
    product of the two Gaussians that have the moments of the cell's draws. Equally many draws come from each tree.
    Merged shards are merged with each other in the same way.

    Cells are few in many dimensions. The result is then too wide, since mass moves to the centres of large cells.

    Parameters
    ----------
    trees
        The number of random trees of a merge.
    leaf
        The number of draws, of both sides together, in the smallest cell.

    Examples
    --------
    >>> shards = ShardDraws.of(np.random.default_rng(0).normal(size=(4, 10_000, 1)), scaling="fractional")
    >>> round(float(PartitionTrees()(shards, None, np.random.default_rng(1)).values.std()), 1)
    0.5
    """

    scaling = "fractional"
    pools = False

    trees: int = 8
    leaf: int = 20

    def __post_init__(self) -> None:
        for name, least in (("trees", 1), ("leaf", 4)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise OptionError(
                    f"{name} of PartitionTrees must be a whole number from {least}, not {value!r}."
                )

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Combine draws of the fractional subposteriors; modes are not used."""
        draws = replace(draws, scaling="fractional")
        return in_varying_directions(draws, lambda inner: self._merge_all(inner, rng))

    def _merge_all(self, draws: ShardDraws, rng: np.random.Generator) -> Combined:
        covariances, notes = invertible_covariances(draws)
        count = max(len(v) for v in draws.values)
        # Coordinates on a common scale.
        scale = np.sqrt(np.diag(covariances.mean(axis=0)))
        level = [
            _Side(v / scale, v.mean(axis=0) / scale, c / np.outer(scale, scale))
            for v, c in zip(draws.values, covariances, strict=True)
        ]
        apart = 0
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            merged = [self._merge(one, two, count, rng) for one, two in pairs]
            apart += sum(side is None for _, side in merged)
            level = [fallback if side is None else side for fallback, side in merged] + level[
                2 * len(merged) :
            ]
        if apart:
            notes = (
                *notes,
                f"In {apart} merges no cell held draws of both sides; the product of their Gaussians was used there.",
            )
        return Combined(level[0].values * scale, notes=notes)

    def _merge(
        self, one: _Side, two: _Side, count: int, rng: np.random.Generator
    ) -> tuple[_Side, _Side | None]:
        """The product of two Gaussians, and that of two densities if a cell holds draws of both."""
        mean, covariance = _product(one.mean, one.covariance, two.mean, two.covariance)
        noise = rng.normal(size=(count, len(mean)))
        gaussian = _Side(mean + noise @ np.linalg.cholesky(covariance).T, mean, covariance)
        parts = [
            self._from_tree(one, two, len(part), rng) for part in np.array_split(np.arange(count), self.trees)
        ]
        drawn = [part for part in parts if part is not None]
        if not drawn:
            return gaussian, None
        values = rng.permutation(np.concatenate(drawn))
        if len(values) <= 2 * len(mean):
            return gaussian, _Side(values, mean, covariance)
        spread = np.atleast_2d(np.cov(values.T)) + 1e-9 * covariance
        return gaussian, _Side(values, values.mean(axis=0), spread)

    def _from_tree(self, one: _Side, two: _Side, count: int, rng: np.random.Generator) -> np.ndarray | None:
        """Draws of the product by one random tree; None if no cell holds draws of both sides."""
        pooled = np.concatenate([one.values, two.values])
        cells = _grow(pooled, self.leaf, rng)
        sides = (
            _Cells.of(one, cells.index[: len(one.values)], cells.widths),
            _Cells.of(two, cells.index[len(one.values) :], cells.widths),
        )
        shared = np.flatnonzero((sides[0].counts > 0) & (sides[1].counts > 0))
        if len(shared) == 0 or count == 0:
            return None
        log_mass = np.log(sides[0].counts[shared]) + np.log(sides[1].counts[shared])
        log_mass -= np.log(cells.widths[shared]).sum(axis=1)
        mass = np.exp(log_mass - log_mass.max())
        chosen = rng.choice(shared, count, p=mass / mass.sum())
        used, again = np.unique(chosen, return_inverse=True)
        means, covariances = _product(
            sides[0].means[used], sides[0].covariances[used], sides[1].means[used], sides[1].covariances[used]
        )
        noise = rng.normal(size=(count, pooled.shape[1]))
        roots = np.linalg.cholesky(covariances)
        return means[again] + np.einsum("nij,nj->ni", roots[again], noise)


@dataclass(frozen=True)
class _Side:
    """Draws on one side of a merge, and the Gaussian that approximates them."""

    values: np.ndarray  # (draw, dim)
    mean: np.ndarray  # (dim,)
    covariance: np.ndarray  # (dim, dim)


@dataclass(frozen=True)
class _Partition:
    """Cells of a tree: the cell of each draw, and the widths of the cells."""

    index: np.ndarray  # (draw,)
    widths: np.ndarray  # (cell, dim)


def _grow(values: np.ndarray, leaf: int, rng: np.random.Generator) -> _Partition:
    """Cut all cells of a level at once, each in a random coordinate, while they hold at least twice `leaf` draws."""
    count, dim = values.shape
    scale = np.maximum(np.ptp(values, axis=0), 1e-300)
    low, high = values.min(axis=0)[None], values.max(axis=0)[None]
    index = np.zeros(count, dtype=np.int64)
    for _ in range(max(0, int(np.log2(count / leaf)))):
        cells = len(low)
        axis = rng.integers(dim, size=cells)
        along = values[np.arange(count), axis[index]]
        order = np.lexsort((along, index))
        sizes = np.bincount(index, minlength=cells)
        starts = np.cumsum(sizes) - sizes
        # The last draw below the cut. A cell without draws, or with one, is cut in the middle.
        below = np.maximum((sizes * rng.uniform(_UNEVEN, 1 - _UNEVEN, cells)).astype(np.int64), 1)
        last = along[order[np.minimum(starts + below - 1, count - 1)]]
        first = along[order[np.minimum(starts + below, count - 1)]]
        cut = np.where(sizes > 1, (last + first) / 2, (low + high)[np.arange(cells), axis] / 2)
        above = along > cut[index]
        left_high, right_low = high.copy(), low.copy()
        left_high[np.arange(cells), axis] = right_low[np.arange(cells), axis] = cut
        low, high = np.concatenate([low, right_low]), np.concatenate([left_high, high])
        index = index + cells * above
    return _Partition(index, np.maximum(high - low, 1e-12 * scale))


@dataclass(frozen=True)
class _Cells:
    """Number, mean and covariance of one side's draws in every cell."""

    counts: np.ndarray  # (cell,)
    means: np.ndarray  # (cell, dim)
    covariances: np.ndarray  # (cell, dim, dim)

    @staticmethod
    def of(side: _Side, index: np.ndarray, widths: np.ndarray) -> _Cells:
        cells, dim = widths.shape
        counts = np.bincount(index, minlength=cells)
        divisor = np.maximum(counts, 1)
        means = np.stack([np.bincount(index, side.values[:, j], cells) for j in range(dim)], axis=1)
        means /= divisor[:, None]
        gap = side.values - means[index]
        products = np.empty((cells, dim, dim))
        for i in range(dim):
            for j in range(dim):
                products[:, i, j] = np.bincount(index, gap[:, i] * gap[:, j], cells)
        # Few draws are shrunk to a uniform distribution on the cell, or to the side's own width if that is smaller.
        own = np.minimum(widths**2 / 12, np.diag(side.covariance))
        products[:, np.arange(dim), np.arange(dim)] += _SHRINK * own
        return _Cells(counts, means, symmetric(products / (divisor + _SHRINK)[:, None, None]))


def _product(
    mean: np.ndarray, covariance: np.ndarray, other_mean: np.ndarray, other_covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the product of Gaussians, or of two stacks of them: S_1 (S_1 + S_2)^-1 S_2."""
    gain = covariance @ np.linalg.inv(covariance + other_covariance)
    moved = mean + (gain @ (other_mean - mean)[..., None])[..., 0]
    return moved, symmetric(gain @ other_covariance)
