"""Gradients of the log posterior of all rows at many points, in one pass over the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks, Rows
from shardmc.engine.order import in_order
from shardmc.model import Model
from shardmc.target import DeviceFrame
from shardmc.types import Engine, Frame, Mode, ProgramCall


def _cells() -> int:
    """Points times rows whose gradients are computed together, which bounds memory for large shards."""
    return 1 << (23 if jax.default_backend() == "cpu" else 27)


@dataclass(frozen=True)
class LikelihoodGradients:
    """Program: gradients of a shard's weighted log-likelihood at many points of a frame, (point, dim)."""

    model: Model

    def __call__(
        self, rows: Rows, weights: jax.Array, shard: None, shared: tuple[DeviceFrame, jax.Array]
    ) -> jax.Array:
        frame, points = shared

        def log_likelihood(u: jax.Array) -> jax.Array:
            return jnp.sum(weights * self.model.log_likelihood(frame.to_theta(u), rows))

        together = max(1, _cells() // weights.shape[0])
        return lax.map(jax.grad(log_likelihood), points, batch_size=min(together, points.shape[0]))


@partial(jax.jit, static_argnums=0)
def _prior_gradients(model: Model, frame: DeviceFrame, points: jax.Array) -> jax.Array:
    return jax.vmap(jax.grad(lambda u: model.log_prior(frame.to_theta(u))))(points)


def gradients(model: Model, blocks: Blocks, mode: Mode, points: np.ndarray, engine: Engine) -> np.ndarray:
    """Gradients (point, dim) of the log posterior of all rows at `points` (point, dim), on the theta scale.

    They are computed in the coordinates of the mode's curvature, where each component is of order one.
    """
    frame = mode.frame
    inverse = np.linalg.inv(frame.basis)
    u = jnp.asarray((points - frame.center) @ inverse.T, jnp.result_type(float))
    device = DeviceFrame.of(frame)
    total = np.array(_prior_gradients(model, device, u), np.float64)
    results = engine.map(LikelihoodGradients(model), blocks, None, (device, u))
    for shard, part in in_order(results, range(blocks.num_shards)):
        total += blocks.shares[shard] * np.asarray(part, np.float64)
    return total @ inverse


def gradients_call(model: Model, blocks: Blocks, num_points: int) -> ProgramCall:
    """The call of the engine that `gradients` makes for this many points."""
    frame = DeviceFrame.of(Frame.identity(model.dim))
    points = jnp.asarray(np.zeros((num_points, model.dim)), jnp.result_type(float))
    return ProgramCall(LikelihoodGradients(model), blocks, None, (frame, points))
