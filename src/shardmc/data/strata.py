"""Strata of rows: the values of a column, or its quantile bins where it has many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shardmc.errors import DataError

_MOST_LEVELS = 1000
_BINS = 20  # also: so many distinct fractions are still levels
_SAMPLE = 100_000  # values that place the edges of bins


@dataclass(frozen=True)
class Strata:
    """A way to tell a value's stratum, and the number of rows in each."""

    points: np.ndarray  # sorted: the distinct values, or the inner edges of bins
    binned: bool
    counts: np.ndarray  # (stratum,)

    def codes(self, values: np.ndarray) -> np.ndarray:
        """The strata of these values, (row,)."""
        return np.searchsorted(self.points, _plain(values), side="right" if self.binned else "left")


def find_strata(what: str, pieces: Callable[[], Iterator[np.ndarray]], num_rows: int) -> Strata:
    """Strata of a column that is read piece by piece: once, or twice where its values have to be binned.

    `what` is how messages call it.
    """
    points, counts = np.zeros(0), np.zeros(0, dtype=np.int64)
    sample: list[np.ndarray] = []
    row, stride = 0, max(1, num_rows // _SAMPLE)
    for piece in pieces():
        values = _checked(what, piece)
        sample.append(values[-row % stride :: stride])
        row += len(values)
        if len(points) <= _MOST_LEVELS:
            points, counts = _merge(points, counts, *np.unique(values, return_counts=True))
    if len(points) <= (_BINS if points.dtype.kind == "f" else _MOST_LEVELS):
        return Strata(points, False, counts)
    if points.dtype.kind not in "fiu":
        raise DataError(
            f"{what} has more than {_MOST_LEVELS} different values; group them, or take another column."
        )
    edges = np.unique(np.quantile(np.concatenate(sample), np.arange(1, _BINS) / _BINS))
    bins = Strata(edges, True, np.zeros(len(edges) + 1, dtype=np.int64))
    for piece in pieces():
        bins.counts[:] += np.bincount(bins.codes(piece), minlength=len(bins.counts))
    return bins


def _plain(values: np.ndarray) -> np.ndarray:
    """Values that can be sorted: objects become text, so that a missing level is a level of its own."""
    return values.astype(str) if values.dtype.kind == "O" else values


def _checked(what: str, piece: np.ndarray) -> np.ndarray:
    if piece.ndim != 1:
        raise DataError(f"{what} has shape {piece.shape[1:]} per row; one value per row is needed.")
    if piece.dtype.kind == "f" and np.isnan(piece).any():
        raise DataError(f"{what} has missing values; fill them in with a value of their own.")
    return _plain(piece)


def _merge(
    points: np.ndarray, counts: np.ndarray, found: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    if not len(points):
        return found, number
    merged, inverse = np.unique(np.concatenate([points, found]), return_inverse=True)
    return merged, np.bincount(inverse, weights=np.concatenate([counts, number])).astype(np.int64)
