"""How much each row matters, and which rows every shard must have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks, Rows
from shardmc.model import Model
from shardmc.target import DeviceFrame
from shardmc.types import Engine, Mode

KEEP = 0.2
"""A row is kept in every shard where its leverage exceeds this times the largest share."""


@dataclass(frozen=True)
class RowLeverage:
    """Program: leverage of a shard's rows at the mode: the larger of the score's and the curvature's."""

    model: Model

    def __call__(self, rows: Rows, weights: jax.Array, share: jax.Array, frame: DeviceFrame) -> jax.Array:
        def log_likelihood(u: jax.Array) -> jax.Array:
            return self.model.log_likelihood(frame.to_theta(u), rows)

        origin = jnp.zeros_like(frame.center)

        def along(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
            """First and second derivative of every row along one direction."""

            def slope(u: jax.Array) -> jax.Array:
                return jax.jvp(log_likelihood, (u,), (direction,))[1]

            return jax.jvp(slope, (origin,), (direction,))

        slopes, bends = jax.vmap(along)(jnp.eye(frame.center.shape[0]))
        # Own rows weigh user weight / share: leverage is about the row's part in the whole.
        weight = weights * share
        score = weight**2 * jnp.sum(slopes**2, axis=0)
        curvature = weight * jnp.sum(jnp.abs(bends), axis=0)
        return jnp.maximum(score, curvature)


def leverage(model: Model, blocks: Blocks, mode: Mode, engine: Engine) -> list[np.ndarray]:
    """Leverage of every row at the mode, one array per shard, in one pass over the data.

    The larger of the curvature's, tr(H^-1 |Hess l_j|), and the score's, g_j^T H^-1 g_j. Leverages sum to about the
    number of parameters.
    """
    frame = DeviceFrame.of(mode.frame)
    result: list[np.ndarray] = [np.empty(0)] * blocks.num_shards
    shares = jnp.asarray(blocks.shares, jnp.result_type(float))
    for shard, values in engine.map(RowLeverage(model), blocks, shares, frame):
        result[shard] = np.asarray(values)
    return result


def influential(
    leverages: Sequence[np.ndarray], blocks: Blocks, threshold: float = KEEP
) -> tuple[list[np.ndarray], int]:
    """Positions of the rows to keep in every shard, and how many qualified.

    A row qualifies where its leverage exceeds threshold * max_i a_i. At most as many as a shard has rows are
    kept, the most influential ones, so that a shard at most doubles.
    """
    bar = threshold * float(blocks.shares.max())
    positions = [np.flatnonzero(values > bar) for values in leverages]
    qualified = sum(map(len, positions))
    if qualified > blocks.capacity:
        every = np.concatenate([values[p] for values, p in zip(leverages, positions, strict=True)])
        bar = np.partition(every, len(every) - blocks.capacity)[len(every) - blocks.capacity]
        positions = [np.flatnonzero(values > bar) for values in leverages]
    return positions, qualified
