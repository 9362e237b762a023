"""Small samples of rows to try a model on, and which axis of a log density the rows are."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError, ModelError


@dataclass(frozen=True)
class TwoSamples:
    """Two samples that share rows: what a row contributes must not depend on the rows around it."""

    first: Any
    second: Any  # every second row of the first, in reverse order
    index: np.ndarray  # positions of the second sample's rows in the first


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
    """Two samples of different size. A table of fewer than four rows is repeated until it has four.

    >>> two_samples(np.arange(5)).second
    array([4, 2, 0])
    """
    length = num_rows(rows)
    first = take(rows, np.resize(np.arange(length), max(length, 4)))
    index = np.arange(max(length, 4))[::-2]
    return TwoSamples(first, take(first, index), index)


def structure_key(rows: Any) -> Hashable:
    """A key that is equal for rows that one model can serve: the tree, and each leaf's type and shape per row.

    >>> structure_key(np.zeros((3, 2))) == structure_key(np.ones((7, 2)))
    True
    """
    leaves, tree = jax.tree.flatten(rows)
    return tree, tuple((np.shape(leaf)[1:], np.asarray(leaf).dtype.str) for leaf in leaves)


def row_axis(
    what: str, first: tuple[int, ...], second: tuple[int, ...], lengths: tuple[int, int]
) -> int | None:
    """The axis whose size is the number of rows, given a log density's shapes for two numbers of rows.

    None if the shape does not depend on the number of rows.

    >>> row_axis("observed site 'y'", (2, 12), (2, 6), (12, 6))
    1
    """
    if first == second:
        return None
    changing = [axis for axis, sizes in enumerate(zip(first, second, strict=False)) if sizes == lengths]
    expected = len(first) == len(second) and sum(a != b for a, b in zip(first, second, strict=False)) == 1
    if len(changing) == 1 and expected:
        return changing[0]
    if len(changing) > 1:
        raise ModelError(
            f"The log density of {what} has shape {first} for {lengths[0]} rows, more than one axis of rows: what is "
            "observed and its distribution have shapes such as (n,) and (n, 1), which broadcast to (n, n)."
        )
    raise ModelError(
        f"The log density of {what} has shape {first} for {lengths[0]} rows and {second} for {lengths[1]}: it must "
        "have one axis with one value per row."
    )


def sum_to_rows(density: jax.Array, axis: int) -> jax.Array:
    """One number per row: the sum over all axes except that of the rows.

    >>> sum_to_rows(jnp.ones((2, 3)), 1).tolist()
    [2.0, 2.0, 2.0]
    """
    others = tuple(i for i in range(density.ndim) if i != axis)
    return jnp.sum(density, axis=others) if others else density
