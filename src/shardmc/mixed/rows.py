"""Sums over the rows of many groups at all nodes of a rule, with derivatives that are written out.

Rows come first and groups last, so that every operation is one over a long vector of groups. First derivatives are
summed over nodes before they meet a parameter, and second ones need no exponential of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.data.grouped import GroupedRows

_UNROLLED = 16
"""Up to so many terms, a sum is written out: it is then computed together with its terms."""


@final
@dataclass(frozen=True)
class ByRows:
    """The log-likelihood of rows as a function of linear predictors eta. Leaves of `rows` are (..., row, stretch)."""

    predictor: Callable[[Mapping[str, jax.Array], Any], jax.Array]
    """(params, rows) -> eta without the effects of groups, (row, stretch)."""
    columns: Callable[[Any], jax.Array | None]
    """rows -> the columns of the effects (effect, row, stretch); None for an intercept only."""
    sums: Callable[[Any, jax.Array, jax.Array, bool], jax.Array]
    """(rows, eta, weights, counted) -> sums over rows; arrays of eta and rows are (row, node, stretch)."""
    shifted_sums: Callable[[Any, jax.Array, jax.Array, jax.Array, bool], jax.Array]
    """(rows, eta, shifts, weights, counted) -> the same at eta + shifts, (row, stretch) and (node, stretch)."""
    slopes: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]
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
def _(by_rows: ByRows, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
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
def _(by_rows: ByRows, primals: Any, tangents: Any) -> tuple[_Slopes, _Slopes]:
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


def _with_nodes(data: GroupedRows) -> tuple[Any, jax.Array]:
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
