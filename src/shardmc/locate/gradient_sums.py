"""Gradients of the log posterior of all rows, or of a sample of the shards, at many points."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks
from shardmc.data.grouped import cells_of, points_together
from shardmc.engine import Engine, ProgramCall, in_order
from shardmc.engine.threads import aside
from shardmc.model import Model
from shardmc.model.precision import Precision
from shardmc.model.shared import joined, with_shared
from shardmc.programs.compiled import RUNS_ONCE, CompiledFor
from shardmc.target import DeviceFrame
from shardmc.types import Frame, Mode, Rows


def _cells() -> int:
    """Points times rows whose gradients are computed together, which bounds memory for large shards."""
    return 1 << (23 if jax.default_backend() == "cpu" else 27)


@dataclass(frozen=True)
class LikelihoodGradients:
    """Program: gradients of a shard's weighted log-likelihood at many points of a frame, (point, dim)."""

    model: Model
    density_only: ClassVar = True

    def __call__(
        self, rows: Rows, weights: jax.Array, shard: None, shared: tuple[DeviceFrame, jax.Array]
    ) -> jax.Array:
        frame, points = shared

        def log_likelihood(u: jax.Array) -> jax.Array:
            return jnp.sum(weights * self.model.log_likelihood(frame.to_theta(u), rows))

        together = points_together(rows, max(1, _cells() // cells_of(rows, weights)))
        together = min(together, points.shape[0])
        return lax.map(jax.grad(log_likelihood), points, batch_size=together if together > 1 else None)


@partial(CompiledFor, static=1, most=4, compiler_options=RUNS_ONCE)
def _prior_gradients(kind: Any, numbers: Any, frame: DeviceFrame, points: jax.Array) -> jax.Array:
    model = joined(kind, numbers)
    return jax.vmap(jax.grad(lambda u: model.log_prior(frame.to_theta(u))))(points)


def prior_gradients_in(model: Model, frame: DeviceFrame, points: jax.Array) -> Future[np.ndarray]:
    """Gradients (point, dim) of the log prior at points of a frame, in its coordinates.

    In a thread of its own: the first time a program is compiled, which goes on while shards are computed.
    """
    precision = Precision.here()  # a setting of this thread

    def compute() -> np.ndarray:
        with precision.applied():
            return np.array(with_shared(_prior_gradients, model, None, frame, points), np.float64)

    return aside(compute, "shardmc-prior")


def gradients(model: Model, blocks: Blocks, mode: Mode, points: np.ndarray, engine: Engine) -> np.ndarray:
    """Gradients (point, dim) of the log posterior of all rows at `points` (point, dim), on the theta scale.

    They are computed in the coordinates of the mode's curvature, where each component is of order one.
    """
    frame = mode.frame
    inverse = np.linalg.inv(frame.basis)
    u = jax.device_put(((points - frame.center) @ inverse.T).astype(jnp.result_type(float)))
    device = DeviceFrame.of(frame)
    prior = prior_gradients_in(model, device, u)
    results = engine.map(LikelihoodGradients(model), blocks, None, (device, u))
    total = None
    for shard, part in in_order(results, range(blocks.num_shards)):
        total = prior.result() if total is None else total
        total += blocks.shares[shard] * np.asarray(part, np.float64)
    assert total is not None
    return total @ inverse


def sampled_scores(
    model: Model, blocks: Blocks, frame: Frame, engine: Engine, shards: Sequence[int], points: np.ndarray
) -> np.ndarray:
    """Gradients (point, dim) of the log-likelihood of all rows at points of a frame, from some shards."""
    at = jax.device_put(points.astype(jnp.result_type(float)))
    results = engine.map(LikelihoodGradients(model), blocks, None, (DeviceFrame.of(frame), at), shards)
    parts = [np.asarray(part, np.float64) for _, part in in_order(results, shards)]
    return np.average(parts, axis=0, weights=blocks.shares[list(shards)])


def gradients_call(model: Model, blocks: Blocks, num_points: int) -> ProgramCall:
    """The call of the engine that `gradients` makes for this many points."""
    frame = DeviceFrame.of(Frame.identity(model.dim))
    points = jax.device_put(np.zeros((num_points, model.dim), jnp.result_type(float)))
    return ProgramCall(LikelihoodGradients(model), blocks, None, (frame, points))
