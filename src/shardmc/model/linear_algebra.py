"""Triangular solves and Cholesky factors of a model without LAPACK, so that shards can run side by side.

On a CPU, XLA runs a batch of LAPACK calls on its pool of threads and lets the calling thread wait for them. That thread
is one of the pool's: as soon as every thread of the pool waits, nothing is left to do the work, and the program stops
for ever. Independent solves in one program are enough, and so are two programs at a time. The matrices of a model are
small (a covariance of a few responses), so plain arithmetic is as quick, and it differentiates like any other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

_UNROLLED = 12
"""Rows of a matrix up to which the loop over them is written out."""


def solve(
    a: jax.Array,
    b: jax.Array,
    *,
    left_side: bool = True,
    lower: bool = True,
    transpose_a: bool = False,
    unit_diagonal: bool = False,
) -> jax.Array:
    """The solution x of op(a) x = b, or of x op(a) = b, for triangular matrices a (..., n, n).

    >>> solve(jnp.array([[2.0, 0.0], [1.0, 1.0]]), jnp.array([[2.0], [3.0]])).ravel().tolist()
    [1.0, 2.0]
    """
    if not left_side:
        turned = solve(
            a,
            jnp.swapaxes(b, -1, -2),
            lower=lower,
            transpose_a=not transpose_a,
            unit_diagonal=unit_diagonal,
        )
        return jnp.swapaxes(turned, -1, -2)
    if transpose_a:
        a, lower = jnp.swapaxes(a, -1, -2), not lower
    if not lower:  # the same from the last row up
        a, b = a[..., ::-1, ::-1], b[..., ::-1, :]
    count = a.shape[-1]
    diagonal = jnp.ones(a.shape[:-1], a.dtype) if unit_diagonal else jnp.diagonal(a, axis1=-2, axis2=-1)
    if count <= _UNROLLED:
        rows: list[jax.Array] = []
        for i in range(count):
            known = sum((a[..., i, j, None] * rows[j] for j in range(i)), jnp.zeros((), b.dtype))
            rows.append((b[..., i, :] - known) / diagonal[..., i, None])
        x = jnp.stack(rows, axis=-2)
    else:
        below = jnp.tril(a, -1)

        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            row = jnp.einsum("...j,...jk->...k", below[..., i, :], x)
            return x.at[..., i, :].set((b[..., i, :] - row) / diagonal[..., i, None]), None

        x, _ = lax.scan(step, jnp.zeros_like(b), jnp.arange(count))
    return x if lower else x[..., ::-1, :]


def cholesky(a: jax.Array) -> jax.Array:
    """The lower triangular factor of symmetric matrices (..., n, n); NaN for one that is not positive definite.

    >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    count = a.shape[-1]
    if count <= _UNROLLED:
        columns: list[jax.Array] = []
        for j in range(count):
            rest = a[..., :, j] - sum((c * c[..., j, None] for c in columns), jnp.zeros((), a.dtype))
            columns.append(_column(rest, j, count))
        factor = jnp.stack(columns, axis=-1)
    else:

        def step(factor: jax.Array, j: jax.Array) -> tuple[jax.Array, None]:
            rest = a[..., :, j] - jnp.einsum("...ij,...j->...i", factor, factor[..., j, :])
            return factor.at[..., :, j].set(_column(rest, j, count)), None

        factor, _ = lax.scan(step, jnp.zeros_like(a), jnp.arange(count))
    bad = jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1)).any(axis=-1)
    return jnp.where(bad[..., None, None], jnp.nan, factor)


def _column(rest: jax.Array, j: jax.Array | int, count: int) -> jax.Array:
    """Column j of a factor, from what the columns before it leave of the matrix's."""
    pivot = jnp.take(rest, j, axis=-1)[..., None]
    return jnp.where(jnp.arange(count) >= j, rest / jnp.sqrt(pivot), 0)
