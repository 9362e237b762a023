"""Modes and curvatures of the shards' rescaled subposteriors, batched, from the mode of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks, Rows
from shardmc.locate.newton import DECREMENT
from shardmc.model import Model
from shardmc.target import DeviceFrame, Target
from shardmc.types import Engine, Located, Mode


class _Search(NamedTuple):
    """A Newton search: where it stands, and the curvature and decrement before its last step."""

    steps: jax.Array
    u: jax.Array  # (dim,)
    curvature: jax.Array  # (dim, dim)
    decrement: jax.Array
    remaining: jax.Array
    """The decrement that the last step left, by quadratic convergence."""
    arrived: jax.Array


@dataclass(frozen=True)
class ShardMode:
    """Program: mode and curvature of one shard's rescaled subposterior, in the frame of the full posterior."""

    model: Model
    max_steps: int = 40

    def __call__(
        self, rows: Rows, weights: jax.Array, guess: jax.Array, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        target = Target(self.model, rows, weights, frame)
        lengths = 0.5 ** jnp.arange(8.0)

        def slope(u: jax.Array) -> tuple[jax.Array, jax.Array]:
            gradient = jax.grad(target.log_density)(u)
            return gradient, gradient

        def newton(u: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            curvature, gradient = jax.jacfwd(slope, has_aux=True)(u)
            curvature = -curvature
            factor = jnp.linalg.cholesky(curvature)
            step = jax.scipy.linalg.cho_solve((factor, True), gradient)
            definite = jnp.isfinite(factor).all() & jnp.isfinite(step).all()
            # In the frame of the full posterior the identity stands in for a curvature that is not definite.
            step = jnp.where(definite, step, gradient)
            decrement = jnp.where(definite, jnp.sqrt(jnp.maximum(gradient @ step, 0)), jnp.inf)
            return step, curvature, decrement

        def length_of(u: jax.Array, step: jax.Array) -> jax.Array:
            """1 for a full step that climbs, which is Newton's; otherwise the best of the shorter ones."""
            gains = target.log_densities(u + lengths[:, None] * step) - target.log_density(u)
            gains = jnp.where(jnp.isfinite(gains), gains, -jnp.inf)
            return jnp.where(gains[0] > 0, 1.0, lengths[jnp.argmax(gains)])

        def searching(state: _Search) -> jax.Array:
            return (state.steps < self.max_steps) & ~state.arrived

        def advance(state: _Search) -> _Search:
            step, curvature, decrement = newton(state.u)
            ratio = decrement / state.decrement
            # The decrement that this step leaves: C dec^2 with C from the last step, doubled to be safe.
            fast = jnp.isfinite(state.decrement) & (ratio < 0.2)
            remaining = jnp.where(fast, 2 * ratio**2 * decrement, decrement)
            length = lax.cond(decrement < 0.5, lambda u, step: jnp.ones(()), length_of, state.u, step)
            arrived = (decrement < DECREMENT) | ((decrement < 0.3) & (remaining < DECREMENT / 10))
            return _Search(state.steps + 1, state.u + length * step, curvature, decrement, remaining, arrived)

        # The guess is where a Newton step from the mode of all rows leads, so its length is the first decrement.
        better = target.log_density(guess) > 0
        origin = jnp.where(better, guess, 0)
        far = jnp.asarray(jnp.inf, origin.dtype)
        start = _Search(
            jnp.int32(0),
            origin,
            jnp.zeros((*origin.shape, *origin.shape)),
            jnp.where(better, jnp.linalg.norm(guess), far),
            far,
            jnp.array(False),
        )
        end = lax.while_loop(searching, advance, start)
        return end.u, end.curvature, jnp.where(end.arrived, end.remaining, jnp.inf), end.steps


def locate_shards(model: Model, blocks: Blocks, mode: Mode, engine: Engine) -> Located:
    """Modes and curvatures of the rescaled subposteriors, every shard from a step off the mode of all rows.

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
    guesses = np.zeros((count, dim))
    if mode.shard_starts is not None and mode.shard_starts.shape == guesses.shape:
        guesses = np.nan_to_num((mode.shard_starts - frame.center) @ inverse.T, posinf=0.0, neginf=0.0)
    for shard, (u, curvature, decrement, steps) in engine.map(
        ShardMode(model), blocks, guesses.astype(jnp.result_type(float)), DeviceFrame.of(frame)
    ):
        decrements[shard] = decrement
        passes += float(blocks.shares[shard]) * int(steps)
        if decrement < DECREMENT and np.isfinite(u).all():
            modes[shard] = frame.to_theta(np.asarray(u, np.float64))
            whole = inverse.T @ np.asarray(curvature, np.float64) @ inverse
            curvatures[shard] = (whole + whole.T) / 2
            found[shard] = bool(np.linalg.eigvalsh(curvature.astype(np.float64))[0] > 0)
    return Located(mode, blocks.shares, modes, curvatures, decrements, found, passes)
