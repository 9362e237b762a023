"""Which axis of an observed quantity's log density the rows are, seen in its shapes for two numbers of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from shardmc.errors import ModelError


def row_axis(
    what: str, first: tuple[int, ...], second: tuple[int, ...], lengths: tuple[int, int]
) -> int | None:
    """The axis whose size is the number of rows in both cases; None if the shape does not change at all.

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
    """One number per row: the sum over all axes but that of the rows.

    >>> sum_to_rows(jnp.ones((2, 3)), 1).tolist()
    [2.0, 2.0, 2.0]
    """
    others = tuple(i for i in range(density.ndim) if i != axis)
    return jnp.sum(density, axis=others) if others else density
