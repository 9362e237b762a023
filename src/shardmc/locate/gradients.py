"""Gradients of the log posterior of all rows at many points, in one pass over the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks, Rows
from shardmc.engine.order import in_order
from shardmc.locate.expansion import Expansion, expand_likelihood, expand_prior
from shardmc.locate.terms import SubposteriorTerms
from shardmc.model import Model
from shardmc.target import DeviceFrame
from shardmc.types import Engine, Frame, Gradients, Mode, ProgramCall


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


@dataclass(frozen=True, eq=False)
class SampledGradients:
    """Gradients of the log posterior of all rows, estimated from a sample of the shards.

    With the frame's centre c, the gradient g and the curvature H of all rows there, and s_i, C_i those of shard i's
    rescaled subposterior,

        g(theta) = g(c) - H (theta - c) + sum_i a_i r_i(theta),    r_i(theta) = s_i(theta) - s_i(c) + C_i (theta - c)

    where a_i are the shares. All rows are read once, for g(c) and H; only the r_i, which are small where the
    posterior is close to a Gaussian, are averaged over the sample.
    """

    model: Model
    blocks: Blocks
    """All rows."""
    shards: Blocks
    """The same partition; rows that every shard keeps make the r_i more alike."""
    mode: Mode
    engine: Engine
    sample: Sequence[int]

    def __call__(self, points: np.ndarray) -> Gradients:
        frame, whole = self.mode.frame, self._whole
        inverse = np.linalg.inv(frame.basis)
        device = DeviceFrame.of(frame)
        u = (points - whole.center) @ inverse.T
        at = jnp.asarray(u, jnp.result_type(float))
        prior = np.asarray(_prior_gradients(self.model, device, at), np.float64)
        results = self.engine.map(
            LikelihoodGradients(self.model), self.shards, None, (device, at), self.sample
        )
        rest = np.stack(
            [
                prior + np.asarray(part, np.float64) - gradient + u @ curvature
                for (_, part), (gradient, curvature) in zip(
                    in_order(results, self.sample), self._at_center, strict=True
                )
            ]
        )
        shares = self.shards.shares[list(self.sample)]
        mean = np.tensordot(shares / shares.sum(), rest, axes=1)
        count = len(self.sample)
        unread = 1 - count / self.shards.num_shards
        values = mean @ inverse + whole.gradient - (points - whole.center) @ whole.curvature
        return Gradients(values, (rest - mean) @ inverse * np.sqrt(unread / (count * (count - 1))))

    @cached_property
    def _whole(self) -> Expansion:
        """Gradient and curvature of all rows at the frame's centre."""
        likelihood = expand_likelihood(self.model, self.blocks, self.mode.frame, self.engine)
        return likelihood + expand_prior(self.model, likelihood.center)

    @cached_property
    def _at_center(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The sampled shards' gradients and curvatures there, in the frame's coordinates."""
        zeros = np.zeros((self.shards.num_shards, self.model.dim), jnp.result_type(float))
        device = DeviceFrame.of(self.mode.frame)
        results = self.engine.map(SubposteriorTerms(self.model), self.shards, zeros, device, self.sample)
        return [
            (np.asarray(gradient, np.float64), np.asarray(curvature, np.float64))
            for _, (_, gradient, curvature) in in_order(results, self.sample)
        ]
