"""Many small matrices at once: entries are arrays over groups, so that no library is called for each matrix."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def cholesky(matrices: jax.Array, least: float = 0.0) -> jax.Array:
    """Lower triangular factors (group, n, n) of symmetric matrices. Pivots below `least` are raised to it.

    >>> cholesky(jnp.array([[[4.0, 2.0], [2.0, 2.0]]])).tolist()
    [[[2.0, 0.0], [1.0, 1.0]]]
    """
    size = matrices.shape[-1]
    if size == 1:
        return jnp.sqrt(jnp.maximum(matrices, least))
    entries: list[list[jax.Array]] = [[jnp.zeros_like(matrices[:, 0, 0])] * size for _ in range(size)]
    for j in range(size):
        pivot = matrices[:, j, j] - sum(entries[j][k] ** 2 for k in range(j))
        entries[j][j] = jnp.sqrt(jnp.maximum(pivot, least))
        for i in range(j + 1, size):
            rest = matrices[:, i, j] - sum(entries[i][k] * entries[j][k] for k in range(j))
            entries[i][j] = rest / entries[j][j]
    return jnp.stack([jnp.stack(row, axis=-1) for row in entries], axis=-2)


def solve_lower(lower: jax.Array, vectors: jax.Array) -> jax.Array:
    """L^-1 b for lower triangular matrices (group, n, n) and vectors (group, n).

    >>> solve_lower(jnp.array([[[2.0, 0.0], [1.0, 1.0]]]), jnp.array([[2.0, 3.0]])).tolist()
    [[1.0, 2.0]]
    """
    found: list[jax.Array] = []
    for i in range(lower.shape[-1]):
        known = sum((lower[:, i, k] * found[k] for k in range(i)), jnp.zeros_like(vectors[:, 0]))
        found.append((vectors[:, i] - known) / lower[:, i, i])
    return jnp.stack(found, axis=-1)


def inverse_lower(lower: jax.Array) -> jax.Array:
    """L^-1 for lower triangular matrices (group, n, n)."""
    count, size = lower.shape[0], lower.shape[-1]
    unit = jnp.broadcast_to(jnp.eye(size, dtype=lower.dtype), (count, size, size))
    return jnp.stack([solve_lower(lower, unit[:, :, k]) for k in range(size)], axis=-1)


def log_diagonal(lower: jax.Array) -> jax.Array:
    """Sums of the logarithms of the diagonals, (group,)."""
    return sum((jnp.log(lower[:, k, k]) for k in range(1, lower.shape[-1])), jnp.log(lower[:, 0, 0]))
