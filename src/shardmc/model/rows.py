"""Small samples of rows, on which a model is tried before anything heavy is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardmc.errors import DataError


@dataclass(frozen=True)
class TwoSamples:
    """The same rows in two companies: what a row contributes must not depend on which."""

    first: Any
    second: Any  # every second row of the first, in reverse order
    index: np.ndarray  # the rows of the first that the second consists of


def num_rows(rows: Any) -> int:
    """Length of the common first axis.

    >>> num_rows({"x": np.zeros((4, 2)), "y": np.zeros(4)})
    4
    """
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(rows)}
    if len(lengths) != 1 or 0 in lengths:
        raise DataError("Rows must be arrays with a common first axis of at least one row.")
    return lengths.pop()


def take(rows: Any, index: np.ndarray) -> Any:
    """The rows at these positions.

    >>> take((np.arange(3), np.arange(3) * 2), np.array([2, 0]))
    (array([2, 0]), array([4, 0]))
    """
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], rows)


def two_samples(rows: Any) -> TwoSamples:
    """Two samples of different size; a table of fewer than four rows is repeated until it has four.

    >>> two_samples(np.arange(5)).second
    array([4, 2, 0])
    """
    length = num_rows(rows)
    first = take(rows, np.resize(np.arange(length), max(length, 4)))
    index = np.arange(max(length, 4))[::-2]
    return TwoSamples(first, take(first, index), index)


def structure_key(rows: Any) -> Any:
    """What two sets of rows share if one model serves both: the tree, and every leaf's type and shape of a row."""
    leaves, tree = jax.tree.flatten(rows)
    return tree, tuple((np.shape(leaf)[1:], np.asarray(leaf).dtype.str) for leaf in leaves)
