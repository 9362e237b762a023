"""Modes and curvatures of the shards' rescaled subposteriors, batched, from the mode of all rows."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks, Rows
from shardmc.locate.newton import DECREMENT
from shardmc.model import Model
from shardmc.target import DeviceFrame, Target
from shardmc.types import Engine, Located, Mode


@dataclass(frozen=True)
class ShardMode:
    """Program: mode and curvature of one shard's rescaled subposterior, in the frame of the full posterior."""

    model: Model
    max_steps: int = 40

    def __call__(
        self, rows: Rows, weights: jax.Array, shard: None, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        target = Target(self.model, rows, weights, frame)
        lengths = 0.5 ** jnp.arange(8.0)

        def terms(u: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            gradient = jax.grad(target.log_density)(u)
            curvature = -jax.hessian(target.log_density)(u)
            factor = jnp.linalg.cholesky(curvature)
            newton = jax.scipy.linalg.cho_solve((factor, True), gradient)
            definite = jnp.isfinite(factor).all() & jnp.isfinite(newton).all()
            # In the frame of the full posterior the identity stands in for a curvature that is not definite.
            step = jnp.where(definite, newton, gradient)
            decrement = jnp.where(definite, jnp.sqrt(jnp.maximum(gradient @ step, 0)), jnp.inf)
            return step, curvature, decrement

        def searching(state):
            count, _, _, _, decrement = state
            return (count < self.max_steps) & ~(decrement < DECREMENT)

        def advance(state):
            count, u, step, _, decrement = state
            gains = target.log_densities(u + lengths[:, None] * step) - target.log_density(u)
            gains = jnp.where(jnp.isfinite(gains), gains, -jnp.inf)
            # A full step that climbs is Newton's; otherwise the best of the shorter ones.
            best = jnp.where((gains[0] > 0) | (decrement < 0.5), 0, jnp.argmax(gains))
            u = u + lengths[best] * step
            return count + 1, u, *terms(u)

        origin = jnp.zeros_like(frame.center)
        count, u, step, curvature, decrement = lax.while_loop(searching, advance, (0, origin, *terms(origin)))
        return jnp.where(decrement < DECREMENT, u + step, u), curvature, decrement, count


def locate_shards(model: Model, blocks: Blocks, mode: Mode, engine: Engine) -> Located:
    """Modes and curvatures of the rescaled subposteriors, every shard from the mode of all rows.

    A shard without a mode (not converged, or curvature not positive definite) is marked, not an error.
    """
    frame = mode.frame
    inverse = np.linalg.inv(frame.basis)
    count, dim = blocks.num_shards, model.dim
    modes = np.full((count, dim), np.nan)
    curvatures = np.full((count, dim, dim), np.nan)
    decrements = np.full(count, np.inf)
    found = np.zeros(count, dtype=bool)
    passes = 0.0
    for shard, (u, curvature, decrement, steps) in engine.map(
        ShardMode(model), blocks, None, DeviceFrame.of(frame)
    ):
        decrements[shard] = decrement
        passes += float(blocks.shares[shard]) * (int(steps) + 1)
        if decrement < DECREMENT and np.isfinite(u).all():
            modes[shard] = frame.to_theta(np.asarray(u, np.float64))
            whole = inverse.T @ np.asarray(curvature, np.float64) @ inverse
            curvatures[shard] = (whole + whole.T) / 2
            found[shard] = bool(np.linalg.eigvalsh(curvature.astype(np.float64))[0] > 0)
    return Located(mode, blocks.shares, modes, curvatures, decrements, found, passes)
