"""Arithmetic for many groups at once: sums over their rows at all nodes of a rule, and small matrices.

Rows come first and groups last, so that every operation is one over a long vector of groups. First derivatives are
summed over nodes before they meet a parameter, and second ones need no exponential of their own.

Entries of small matrices are arrays over groups, so that no library is called for each matrix: covariances and
determinants of normal distributions whose rows are observed, group by group. Their derivatives are written out as
products of matrices, so that programs stay short and no step of an elimination is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.data.grouped import GroupedRows
from shardmc.types import Rows, Tree


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


_UNROLLED = 16
"""Up to so many terms, a sum is written out: it is then computed together with its terms."""


@final
@dataclass(frozen=True)
class ByRows:
    """The log-likelihood of rows as a function of linear predictors eta. Leaves of `rows` are (..., row, stretch)."""

    predictor: Callable[[Mapping[str, jax.Array], Rows], jax.Array]
    """(params, rows) -> eta without the effects of groups, (row, stretch)."""
    columns: Callable[[Rows], jax.Array | None]
    """rows -> the columns of the effects (effect, row, stretch); None for an intercept only."""
    sums: Callable[[Rows, jax.Array, jax.Array, bool], jax.Array]
    """(rows, eta, weights, counted) -> sums over rows; arrays of eta and rows are (row, node, stretch)."""
    shifted_sums: Callable[[Rows, jax.Array, jax.Array, jax.Array, bool], jax.Array]
    """(rows, eta, shifts, weights, counted) -> the same at eta + shifts, (row, stretch) and (node, stretch)."""
    slopes: Callable[[Rows, jax.Array], tuple[jax.Array, jax.Array]]
    """(rows, eta) -> first and second derivatives of each row's log-likelihood by eta."""


def summed(values: jax.Array) -> jax.Array:
    """The sum over the first axis."""
    return sum(values[1:], values[0]) if len(values) <= _UNROLLED else jnp.sum(values, axis=0)


def multiplied(values: jax.Array) -> jax.Array:
    """The product over the first axis."""
    if len(values) > _UNROLLED:
        return jnp.prod(values, axis=0)
    total = values[0]
    for value in values[1:]:
        total = total * value
    return total


def around_middle(eta: jax.Array, shifts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """eta (row, stretch) and shifts (node, stretch) with the same sums, such that shifts lie around 0."""
    middle = 0.5 * (jnp.max(shifts, axis=0) + jnp.min(shifts, axis=0))
    return eta + middle, shifts - middle


def _over_nodes(values: jax.Array) -> jax.Array:
    """The sum over the second axis."""
    return summed(jnp.swapaxes(values, 0, 1))


class _Slopes(NamedTuple):
    """The value of `log_sum`, and its derivatives by its three last arguments."""

    value: jax.Array  # (group,)
    eta: jax.Array  # (row, stretch)
    effects: jax.Array  # (node, effect, stretch)
    logs: jax.Array  # (node, group) the share of each node


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def log_sum(
    by_rows: ByRows, data: GroupedRows, eta: jax.Array, effects: jax.Array, logs: jax.Array
) -> jax.Array:
    """log sum_k exp(sum_j l_j(eta_j + columns_j effects_k) + logs_k) of every group, (group,).

    eta is (row, stretch), effects are (node, effect, stretch), and logs are (node, group).
    """
    if by_rows.columns(data.rows) is None:
        sums = by_rows.shifted_sums(data.rows, eta, effects[:, 0], data.weights, data.counted)
        heights = _per_group(data, sums) + logs
    else:
        heights = _heights(by_rows, data, _at_nodes(by_rows, data, eta, effects), logs)
    return jax.nn.logsumexp(heights, axis=0)


@log_sum.defjvp
def _(by_rows: ByRows, primals: Tree, tangents: Tree) -> tuple[jax.Array, jax.Array]:
    data = primals[0]
    slopes = _slopes(by_rows, *primals)
    _, by_eta, by_effects, by_logs = tangents
    change = data.per_group(
        jnp.sum(slopes.eta * by_eta, axis=0) + jnp.sum(slopes.effects * by_effects, axis=(0, 1))
    )
    return slopes.value, change + jnp.sum(slopes.logs * by_logs, axis=0)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _slopes(
    by_rows: ByRows, data: GroupedRows, eta: jax.Array, effects: jax.Array, logs: jax.Array
) -> _Slopes:
    x = _at_nodes(by_rows, data, eta, effects)
    first, _ = _row_slopes(by_rows, data, x)
    return _first(by_rows, data, x, first, logs)[0]


@_slopes.defjvp
def _(by_rows: ByRows, primals: Tree, tangents: Tree) -> tuple[_Slopes, _Slopes]:
    data, eta, effects, logs = primals
    _, by_eta, by_effects, by_logs = tangents
    x = _at_nodes(by_rows, data, eta, effects)
    # Materialised: they serve all directions.
    first, second = lax.optimization_barrier(_row_slopes(by_rows, data, x))
    slopes, crossed, share = lax.optimization_barrier(_first(by_rows, data, x, first, logs))
    columns = by_rows.columns(data.rows)
    size = effects.shape[1]

    def column(q: int) -> jax.Array | float:
        return 1.0 if columns is None else columns[q][:, None]

    weighted = share * second
    of_rows = summed(first * by_eta[:, None]) + jnp.sum(crossed * by_effects, axis=1)
    heights = _per_group(data, of_rows) + by_logs
    mean = jnp.sum(slopes.logs * heights, axis=0)
    turn = slopes.logs * (heights - mean)
    turned = _per_stretch(data, turn)
    moved = sum(column(q) * by_effects[:, q] for q in range(size))
    of_eta = _over_nodes(turned * first + weighted * moved) + _over_nodes(weighted) * by_eta
    of_effects = [
        turned * crossed[:, q] + summed(weighted * column(q) * (by_eta[:, None] + moved)) for q in range(size)
    ]
    return slopes, _Slopes(mean, of_eta, jnp.stack(of_effects, axis=1), turn)


def _first(
    by_rows: ByRows, data: GroupedRows, x: jax.Array, first: jax.Array, logs: jax.Array
) -> tuple[_Slopes, jax.Array, jax.Array]:
    """First derivatives, those of each node's own sum by its effects, and the share of each node by stretches."""
    columns = by_rows.columns(data.rows)
    heights = _heights(by_rows, data, x, logs)
    value = jax.nn.logsumexp(heights, axis=0)
    share = jnp.exp(heights - value)
    of_stretch = _per_stretch(data, share)
    if columns is None:
        crossed = summed(first)[:, None]
    else:
        crossed = jnp.stack([summed(first * c[:, None]) for c in columns], axis=1)
    found = _Slopes(value, _over_nodes(of_stretch * first), of_stretch[:, None] * crossed, share)
    return found, crossed, of_stretch


def _at_nodes(by_rows: ByRows, data: GroupedRows, eta: jax.Array, effects: jax.Array) -> jax.Array:
    """eta with the effects of the groups, (row, node, stretch)."""
    columns = by_rows.columns(data.rows)
    if columns is None:
        return eta[:, None] + effects[:, 0]
    # Written out, because a matrix product would not be fused with what follows.
    return sum((columns[q][:, None] * effects[:, q] for q in range(effects.shape[1])), eta[:, None])


def _with_nodes(data: GroupedRows) -> tuple[Rows, jax.Array]:
    """Rows and weights with an axis for nodes, (row, 1, stretch)."""
    plain = {name: leaf[:, None] for name, leaf in data.rows.items() if leaf.ndim == 2}
    return plain, data.weights[:, None]


def _heights(by_rows: ByRows, data: GroupedRows, x: jax.Array, logs: jax.Array) -> jax.Array:
    rows, weights = _with_nodes(data)
    return _per_group(data, by_rows.sums(rows, x, weights, data.counted)) + logs


def _row_slopes(by_rows: ByRows, data: GroupedRows, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows, weights = _with_nodes(data)
    first, second = by_rows.slopes(rows, x)
    return weights * first, weights * second


def _per_group(data: GroupedRows, values: jax.Array) -> jax.Array:
    """Sums (node, group) of the values of stretches (node, stretch)."""
    return values if data.joined else data.per_group(values.T).T


def _per_stretch(data: GroupedRows, values: jax.Array) -> jax.Array:
    """The values (node, group) of every stretch's group, (node, stretch)."""
    return values if data.joined else data.per_stretch(values.T).T
