"""Many small matrices at once: entries are arrays over groups, so that no library is called for each matrix.

What many small normal distributions become when their rows are observed: covariance and determinant, group by group.

Derivatives are written out as products of matrices, so that programs stay short and no step of an elimination is kept.
"""

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


@jax.custom_jvp
def conditioned(prior: jax.Array, precision: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(K^-1 + W)^-1 and log |I + K W| for covariances K (group, row, row) and diagonal W (group, row), all W >= 0.

    K may be singular. The rows are taken in one after the other.

    >>> covariance, log_det = conditioned(jnp.array([[[2.0]]]), jnp.array([[0.5]]))
    >>> covariance.tolist(), round(float(jnp.exp(log_det[0])), 4)
    ([[[1.0]]], 2.0)
    """
    # The groups come last: every step is then one long vector operation.
    covariance, weights = jnp.moveaxis(prior, 0, -1), precision.T
    log_det = jnp.zeros_like(weights[0])
    for row in range(weights.shape[0]):
        grown = 1 + weights[row] * covariance[row, row]
        log_det = log_det + jnp.log(grown)
        gain = (weights[row] / grown) * covariance[row]
        covariance = covariance - gain[:, None] * covariance[None, row]
    return jnp.moveaxis(covariance, -1, 0), log_det


@conditioned.defjvp
def _conditioned_jvp(primals, tangents):
    prior, weights = primals
    by_prior, by_weights = tangents
    covariance, log_det = conditioned(prior, weights)
    kept = jnp.eye(weights.shape[1], dtype=prior.dtype) - covariance * weights[:, None, :]
    change = kept @ by_prior @ jnp.swapaxes(kept, 1, 2)
    change = change - (covariance * by_weights[:, None, :]) @ covariance
    growth = jnp.sum(weights[:, :, None] * kept * by_prior, axis=(1, 2))
    return (covariance, log_det), (change, growth + jnp.sum(by_weights * diagonal(covariance), axis=1))


@jax.custom_jvp
def inverse_of_sum(matrices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(I + M)^-1 and log |I + M| for symmetric matrices M (group, n, n) without negative eigenvalues.

    >>> inverse, log_det = inverse_of_sum(jnp.array([[[3.0]]]))
    >>> inverse.tolist(), round(float(jnp.exp(log_det[0])), 4)
    ([[[0.25]]], 4.0)
    """
    size = matrices.shape[-1]
    rest = jnp.moveaxis(matrices, 0, -1) + jnp.eye(size, dtype=matrices.dtype)[:, :, None]
    log_det = jnp.zeros_like(rest[0, 0])
    for place in range(size):  # Gauss-Jordan: pivots of a positive definite matrix need no order
        pivot = rest[place, place]
        log_det = log_det + jnp.log(pivot)
        unit = jnp.zeros((size, 1), rest.dtype).at[place].set(1.0)
        row = (rest[place] + unit) / pivot
        column = rest[:, place] - unit
        rest = rest - column[:, None] * row[None]
    return jnp.moveaxis(rest, -1, 0), log_det


@inverse_of_sum.defjvp
def _inverse_of_sum_jvp(primals, tangents):
    inverse, log_det = inverse_of_sum(primals[0])
    return (inverse, log_det), (-inverse @ tangents[0] @ inverse, jnp.sum(inverse * tangents[0], axis=(1, 2)))


def diagonal(matrices: jax.Array) -> jax.Array:
    """Diagonals (group, n) of matrices (group, n, n)."""
    size = matrices.shape[-1]
    return matrices.reshape(-1, size * size)[:, :: size + 1]
