"""The leverage of rows, and which rows every shard must have."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks
from shardmc.data.grouped import GroupedRows
from shardmc.engine import DensityProgram, Engine, ProgramCall
from shardmc.locate.terms import row_scores
from shardmc.model import Density, Model
from shardmc.model.predictors import row_derivatives
from shardmc.model.steps import primitives
from shardmc.target import DeviceFrame
from shardmc.types import Frame, Mode, Rows

KEEP = 0.2
"""A row is kept in every shard if its leverage exceeds this times the largest share."""

_GROUP = 128
_DIRECTIONS, _REACH = 4, 1.5
"""Random directions, to both sides, in which the log-likelihood of every row is compared with its quadratic."""
_BENT, _ROUNDED = 0.05, 1e-4
"""What a row's log-likelihood has beyond its quadratic counts from this size on, absolute and relative to itself.
Smaller values may be rounding, and rows with large leverage are found by it."""


@dataclass(frozen=True)
class RowLeverage:
    """Program: leverage of a shard's rows at the mode: the largest of the score's, the curvature's, and what is beyond.

    A row can have no slope and no curvature at the mode, and still cut off a part of the posterior: a far outlier of a
    logistic regression. So its log-likelihood is also compared with its quadratic expansion at some points around the
    mode, about as far away as draws are.
    """

    model: Density

    def __call__(self, rows: Rows, weights: jax.Array, share: jax.Array, frame: DeviceFrame) -> jax.Array:
        def log_likelihood(u: jax.Array, some: Rows = rows) -> jax.Array:
            return self.model.log_likelihood(frame.to_theta(u), some)

        origin = jnp.zeros_like(frame.center)

        # Own rows weigh user weight / share, but leverage is relative to all rows.
        weight = weights * share
        if isinstance(rows, GroupedRows) and rows.matched:
            # On average over responses the two leverages of a group are equal, and second derivatives take very long.
            return weight**2 * jnp.sum(row_scores(log_likelihood, origin, rows) ** 2, axis=0)

        by_rows = row_derivatives(self.model, frame.center, frame.basis, rows)
        if by_rows is None:
            along = _backward if _has_backward_steps(log_likelihood, origin, rows) else _forward

            def both(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
                """First and second derivative of every row along one direction."""
                return along(lambda u: along(log_likelihood, u, direction)[1], origin, direction)

            slopes, bends = jax.vmap(both)(jnp.eye(frame.center.shape[0]))

            def towards(step: jax.Array) -> _BothSides:
                return *both(step), log_likelihood(step), log_likelihood(-step)

        else:
            slopes, bends = (each.T for each in by_rows.by_row())
            towards = by_rows.towards
        score = weight**2 * jnp.sum(slopes**2, axis=0)
        curvature = weight * jnp.sum(jnp.abs(bends), axis=0)
        highest = jnp.maximum(score, curvature)
        if isinstance(rows, GroupedRows):
            return highest  # an outlier among many rows of a group moves its effect
        here = log_likelihood(origin) if by_rows is None else by_rows.values
        return jnp.maximum(highest, weight * _beyond(here, towards, origin))


_BothSides = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""First and second derivatives of every row along a step, and the log-likelihoods ahead and behind."""


def _beyond(here: jax.Array, towards: Callable[[jax.Array], _BothSides], origin: jax.Array) -> jax.Array:
    """How much the log-likelihood of each row (row,) differs from its quadratic around the mode; 0 if it is little."""
    steps = _REACH * np.random.default_rng(0).normal(size=(_DIRECTIONS, len(origin)))
    first, second, ahead, behind = jax.vmap(towards)(jnp.asarray(steps, origin.dtype))

    def counted(there: jax.Array, first: jax.Array) -> jax.Array:
        beyond = jnp.abs(there - here - first - 0.5 * second)
        finite = jnp.where(jnp.isfinite(there), jnp.abs(there), 0.0)
        # Where the log-likelihood is minus infinity, so is what the expansion misses. NaN says nothing.
        counts = (beyond > _BENT) & (beyond > _ROUNDED * jnp.maximum(jnp.abs(here), finite))
        return jnp.where(counts, beyond, 0.0)

    # One by one: a CPU takes much longer for a maximum over the first axis.
    return reduce(jnp.maximum, [*counted(ahead, first), *counted(behind, -first)])


_OfRows = Callable[[jax.Array], jax.Array]


def _forward(function: _OfRows, u: jax.Array, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Value (row,) and derivative (row,) along a direction."""
    return jax.jvp(function, (u,), (direction,))


def _backward(function: _OfRows, u: jax.Array, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same, by the transpose of the reverse derivative: a step with `jax.custom_vjp` has no other."""
    value, pullback = jax.vjp(function, u)
    return value, jax.linear_transpose(lambda change: pullback(change)[0], value)(direction)[0]


def _has_backward_steps(log_likelihood: _OfRows, u: jax.Array, rows: Rows) -> bool:
    if isinstance(rows, GroupedRows):
        return False  # integrals over effects take forward derivatives themselves
    steps = jax.make_jaxpr(log_likelihood)(u).eqns
    return any(name.startswith("custom_vjp") for step in steps for name in primitives(step))


@dataclass(frozen=True)
class InfluentialRows(DensityProgram[tuple[jax.Array, jax.Array, jax.Array]]):
    """Program: positions and leverages of a shard's rows above a bar, the highest `most`, and how many are above."""

    most: int
    runs_a_few_times: ClassVar = True

    def __call__(
        self, rows: Rows, weights: jax.Array, share: jax.Array, shared: tuple[DeviceFrame, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        frame, bar = shared
        values = RowLeverage(self.model)(rows, weights, share, frame)
        above = values > bar
        count = jnp.sum(above)
        positions = _above(jnp.where(above, values, 0), count, self.most)
        return positions, values[positions], count


def _above(values: jax.Array, count: jax.Array, most: int) -> jax.Array:
    """Positions of the values that are not 0, of which there are `count`, or of the `most` highest of them.

    Nearly always there are few. On a CPU looking for the highest takes several times as long as computing all values,
    on an accelerator less than listing the first.
    """
    highest = partial(_highest, most=most)
    if jax.default_backend() != "cpu":
        return highest(values)
    return lax.cond(count <= most, partial(_first, most=most), highest, values)


def _first(values: jax.Array, most: int) -> jax.Array:
    """Positions of the first `most` values that are not 0, then zeros."""
    return jnp.nonzero(values, size=most, fill_value=0)[0].astype(jnp.int32)


def _highest(values: jax.Array, most: int) -> jax.Array:
    """Positions of the `most` highest of these values.

    In a long array, groups are searched first, and then the rows of the groups with the highest maxima.
    """
    count = values.shape[0]
    if count <= _GROUP * most:
        return lax.top_k(values, most)[1]
    grouped = jnp.pad(values, (0, -count % _GROUP)).reshape(-1, _GROUP)
    _, groups = lax.top_k(grouped.max(axis=1), most)
    _, found = lax.top_k(grouped[groups].ravel(), most)
    return groups[found // _GROUP] * _GROUP + found % _GROUP


@dataclass(frozen=True)
class Influential:
    """Rows to keep in every shard."""

    positions: list[np.ndarray]  # one array per shard, positions among the shard's own rows
    passes: float = 1.0


def influential(
    model: Model, blocks: Blocks, mode: Mode, engine: Engine, threshold: float = KEEP
) -> Influential:
    """The rows whose leverage exceeds threshold * max_i a_i, in one pass over the data.

    At most as many rows as a shard has are kept, those of highest leverage, so that a shard at most doubles.
    """
    program, per_shard, shared = _task(model, blocks, mode.frame, threshold)
    positions: list[np.ndarray] = [np.empty(0, np.int64)] * blocks.num_shards
    values: list[np.ndarray] = [np.empty(0)] * blocks.num_shards
    for shard, (found, leverages, count) in engine.map(program, blocks, per_shard, shared):
        kept = min(int(count), program.most)
        order = np.argsort(found[:kept])
        positions[shard], values[shard] = np.asarray(found, np.int64)[order], np.asarray(leverages)[order]
    return Influential(_most_influential(positions, values, blocks.capacity))


def influential_call(model: Model, blocks: Blocks, threshold: float = KEEP) -> ProgramCall:
    """The call of the engine that `influential` makes."""
    program, per_shard, shared = _task(model, blocks, Frame.identity(model.dim), threshold)
    return ProgramCall(program, blocks, per_shard, shared)


def _task(
    model: Model, blocks: Blocks, frame: Frame, threshold: float
) -> tuple[InfluentialRows, np.ndarray, tuple[DeviceFrame, np.ndarray]]:
    """Program, the shards' shares, and the frame with the bar."""
    bar = threshold * float(blocks.shares.max())
    # Leverages sum to about dim (twice, for score and curvature), so a random shard has at most about
    # 2 dim / threshold rows above the bar. Four times that allows for chance.
    most = min(blocks.slots, math.ceil(8 * model.dim / threshold))
    real = jnp.result_type(float)
    shared = (DeviceFrame.of(frame), np.asarray(bar, real))
    return InfluentialRows(model, most), np.asarray(blocks.shares, real), shared


def _most_influential(
    positions: list[np.ndarray], values: list[np.ndarray], capacity: int
) -> list[np.ndarray]:
    every = np.concatenate(values)
    if len(every) <= capacity:
        return positions
    bar = np.partition(every, len(every) - capacity)[len(every) - capacity]
    return [p[v > bar] for p, v in zip(positions, values, strict=True)]
