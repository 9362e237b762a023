"""Fewer rows with the same sums of squares and products, for models in which those are all that rows tell.

Rows of a group that agree in all factors are a cell: they become one row, their mean, that counts as often as they do.
What is left, the differences from the means of the cells, becomes the triangular factor of a QR decomposition, one for
each group. All of it is computed in double precision, so that single precision loses nothing that it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    import jax

CONSTANT = "constant"
"""The column by which an intercept is multiplied: 1 in rows and in means of rows, 0 in differences from means."""
_WORTH = 0.7
"""Rows are replaced if at most this fraction of them remains."""
_MOST = 1 << 23
"""Rows that may remain: they are held in memory."""
_AT_ONCE = 1 << 18  # rows
_LARGEST_KEY = 1 << 62  # of a cell, in 64 bits

Columns = dict[str, np.ndarray]
"""Columns of rows: (row,) or (row, ...)."""


@final
@dataclass(frozen=True)
class Reduction:
    """A way to replace rows of whole groups by fewer ones. Columns in `cells` hold numbers of levels.

    Examples
    --------
    >>> rows = {"y": np.arange(6.0), "x": np.array([1.0, 4.0, 2.0, 0.0, 1.0, 7.0])}
    >>> less, weights, codes = Reduction(())(rows, None, np.zeros(6, int))
    >>> weights, less[CONSTANT]
    (array([6., 1., 1.]), array([1., 0., 0.]))
    >>> round(float(weights @ (less["x"] * less["y"])), 6), float(rows["x"] @ rows["y"])
    (47.0, 47.0)
    """

    cells: tuple[str, ...]

    def width(self, shapes: Mapping[str, np.ndarray | jax.ShapeDtypeStruct]) -> int:
        """Numbers in a row, given arrays or shapes of columns (row, ...)."""
        return sum(int(np.prod(leaf.shape[1:])) for name, leaf in shapes.items() if name not in self.cells)

    def pays(self, before: int, after: int) -> bool:
        """Whether it is worth replacing so many rows by so many others."""
        return after <= min(_WORTH * before, _MOST)

    def __call__(
        self, rows: Columns, weights: np.ndarray | None, codes: np.ndarray
    ) -> tuple[Columns, np.ndarray, np.ndarray]:
        """Rows of whole groups, their weights and the codes of their groups -> the same of fewer rows."""
        values = {name: leaf for name, leaf in rows.items() if name not in self.cells}
        matrix = np.concatenate([leaf.reshape(len(codes), -1) for leaf in values.values()], axis=1)
        weights = np.ones(len(codes)) if weights is None else weights.astype(np.float64)
        key = codes.astype(np.int64)
        for name in self.cells:
            levels = int(rows[name].max()) + 1
            if (int(key.max()) + 1) * levels > _LARGEST_KEY:
                key = np.unique(key, return_inverse=True)[1]  # fewer numbers in the same order
            key = key * levels + rows[name]
        order = np.argsort(key, kind="stable")
        pieces = [
            _reduced(matrix[some].astype(np.float64), weights[some], codes[some], key[some], some)
            for some in _whole_groups(order, codes[order])
        ]
        made, weights, codes, source, constant = map(np.concatenate, zip(*pieces, strict=True))
        ends = np.cumsum([leaf[0].size for leaf in values.values()])[:-1]
        found: Columns = {
            name: part.reshape(-1, *leaf.shape[1:]).astype(leaf.dtype)
            for (name, leaf), part in zip(values.items(), np.split(made, ends, axis=1), strict=True)
        }
        found |= {name: rows[name][source] for name in self.cells}
        found[CONSTANT] = constant.astype(matrix.dtype)
        return found, weights.astype(matrix.dtype), codes


def _whole_groups(order: np.ndarray, codes: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of an order of rows, of some size, that end where a group ends; `codes` are in that order."""
    ends = np.append(np.flatnonzero(np.diff(codes)) + 1, len(codes))
    start = 0
    while start < len(order):
        end = int(ends[min(np.searchsorted(ends, start + _AT_ONCE), len(ends) - 1)])
        yield order[start:end]
        start = end


def _reduced(
    values: np.ndarray, weights: np.ndarray, codes: np.ndarray, key: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, ...]:
    """For rows in the order of groups and cells: values, weights, codes, a row of the same cell, constant."""
    first = np.flatnonzero(np.diff(key, prepend=key[0] - 1))
    cell = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(key))))
    mass = np.add.reduceat(weights, first)
    sums = np.add.reduceat(weights[:, None] * values, first)
    means = np.where(mass[:, None] > 0, sums / np.where(mass > 0, mass, 1)[:, None], values[first])
    begin = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
    sizes = np.diff(np.append(begin, len(codes)))
    group = np.repeat(np.arange(len(begin)), sizes)
    width = values.shape[1]
    # A group of few rows stays as it is.
    smaller = np.bincount(group[first]) + width < sizes
    inside, cells, rows = smaller[group], smaller[group[first]], ~smaller[group]
    rest = (np.sqrt(weights)[:, None] * (values - means[cell]))[inside]
    triangles = _triangles(rest, sizes[smaller])
    owners = np.repeat(begin[smaller], width)
    count = int(rows.sum() + cells.sum())
    return (
        np.concatenate([values[rows], means[cells], triangles]),
        np.concatenate([weights[rows], mass[cells], np.ones(len(owners))]),
        np.concatenate([codes[rows], codes[first][cells], codes[owners]]),
        np.concatenate([number[rows], number[first][cells], number[owners]]),
        np.repeat([1.0, 0.0], [count, len(owners)]),
    )


def _triangles(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Triangular factors R of each group's rows, one below the other; `counts` are their numbers of rows.

    R^T R is the matrix of the rows' sums of squares and products. Rows are taken a few at a time.
    """
    width = values.shape[1]
    length = 8 * width
    while True:
        pieces = -(-counts // length)
        within = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
        piece = np.repeat(np.cumsum(pieces) - pieces, counts) + within // length
        padded = np.zeros((int(pieces.sum()), length, width))
        padded[piece, within % length] = values
        values = np.asarray(np.linalg.qr(padded, mode="r")).reshape(-1, width)
        counts = pieces * width
        if (pieces == 1).all():
            return values
