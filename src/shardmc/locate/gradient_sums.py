"""Gradients of the log posterior at many points: of all rows, or estimated from a sample of the shards."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks
from shardmc.data.grouped import cells_of, points_together
from shardmc.engine import DensityProgram, Engine, ProgramCall, in_order
from shardmc.locate.terms import SubposteriorTerms, shard_slopes
from shardmc.model import Density, Model
from shardmc.model.precision import Precision
from shardmc.model.shared import joined, with_shared
from shardmc.programs.compiled import RUNS_ONCE, CompiledFor
from shardmc.programs.threads import aside
from shardmc.target import DeviceFrame
from shardmc.types import Frame, Gradients, Mode, Rows, ShardTerms, Tree


def _cells() -> int:
    """Points times rows whose gradients are computed together, which bounds memory for large shards."""
    return 1 << (23 if jax.default_backend() == "cpu" else 27)


@dataclass(frozen=True)
class LikelihoodGradients(DensityProgram[jax.Array]):
    """Program: gradients of a shard's weighted log-likelihood at many points of a frame, (point, dim)."""

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
def _prior_gradients(kind: Density, numbers: Tree, frame: DeviceFrame, points: jax.Array) -> jax.Array:
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


_LEAST = 0.3
"""The part of the rows' curvature that the sample must have along every direction. A sample that has none of the rows
that tell about a direction shows no noise along it either."""
_LITTLE = 0.003
"""Where the rows have less than about three times this part of the curvature, a sample may lack all of them."""
_STEP = 0.1
"""Distance, in posterior standard deviations, over which the gradients of the log prior are compared."""


class _Slopes(NamedTuple):
    """Gradients and curvatures of the shards' rescaled subposteriors at one point, in the frame's coordinates."""

    point: np.ndarray  # (dim,)
    gradients: np.ndarray  # (shard, dim)
    curvatures: np.ndarray  # (shard, dim, dim)


@final
class SampledGradients:
    """Gradients of the log posterior of all rows, estimated from a sample of the shards.

    With a point c near the mode, the gradient g and the curvature H of all rows there, and s_i, C_i those of shard i's
    rescaled subposterior,

        g(theta) = g(c) - H (theta - c) + sum_i a_i r_i(theta),    r_i(theta) = s_i(theta) - s_i(c) + C_i (theta - c)

    where a_i are the shares. The s_i and C_i, whose weighted sums are g and H, are those of all shards; only the r_i,
    which are small where the posterior is close to a Gaussian, are averaged over the sample. A sample that has little
    of the rows' part of the curvature H along some direction is not used: the next larger one is read, and in the end
    all shards. The prior's part, which every shard has, does not count.

    Parameters
    ----------
    shards
        All shards. Rows that every shard keeps make the r_i more alike.
    sample
        The shards to read, in the order in which they were chosen.
    first
        The number of them that are read first; the others are read if `Gradients.more` asks for them. By default all.
    curvatures
        Matrices C_i (shard, dim, dim) in the user's coordinates, if computing them takes too long. They need not be the
        exact curvatures: the sample then shows the difference as noise.
    terms
        The s_i and C_i, if they are known. Otherwise all shards are read once more, and c is the mode.
    """

    def __init__(
        self,
        model: Model,
        shards: Blocks,
        mode: Mode,
        engine: Engine,
        sample: Sequence[int],
        curvatures: np.ndarray | None = None,
        terms: ShardTerms | None = None,
        first: int | None = None,
    ) -> None:
        self._curvatures, self._terms = curvatures, terms
        self._model, self._shards, self._engine, self._frame = model, shards, engine, mode.frame
        first, others = first or len(sample), set(range(shards.num_shards)) - set(sample)
        self._order = [*sorted(sample[:first]), *sorted(sample[first:]), *sorted(others)]
        self._sizes = sorted({first, len(sample), shards.num_shards})
        """Sizes of the samples. Each sample is the beginning of the order."""
        self.passes = 0.0
        """How often all rows were evaluated so far."""
        self._of_prior: np.ndarray | None = None

    def __call__(self, points: np.ndarray) -> Gradients:
        return self._extended(points, np.empty((0, *points.shape)))

    def _extended(self, points: np.ndarray, known: np.ndarray) -> Gradients:
        """The gradients from the next larger sample than the one whose r_i, (shard, point, dim), are known."""
        # Later rounds of points read this many shards at once: they would be as uncertain as this one.
        self._sizes = [size for size in self._sizes if size > len(known)]
        while len(self._sizes) > 1 and not self._tells_all(self._order[: self._sizes[0]], len(points)):
            self._sizes = self._sizes[1:]
        count = self._sizes[0]
        sample = self._order[:count]
        rest = np.concatenate([known, self._rest(points, sample[len(known) :])])
        shares = self._shards.shares[sample]
        mean = np.tensordot(shares / shares.sum(), rest, axes=1)
        if len(self._sizes) == 1:
            return Gradients(self._whole(points, mean))
        scale = np.sqrt((1 - count / self._shards.num_shards) / (count * (count - 1)))
        apart = (rest - mean) * (shares / shares.mean())[:, None, None]
        noise = apart @ np.linalg.inv(self._frame.basis) * scale
        return Gradients(self._whole(points, mean), noise, lambda: self._extended(points, rest))

    def _tells_all(self, sample: Sequence[int], num_points: int) -> bool:
        """Whether a sample of rows has curvature along every direction. In the frame's coordinates the whole is 1."""
        shares, curvatures = self._shards.shares, self.slopes.curvatures
        of_sample = shares[sample] / shares[sample].sum()
        prior = self._curvature_of_prior(num_points)
        of_rows = np.tensordot(shares, curvatures, axes=1) - prior
        excess = np.tensordot(of_sample, curvatures[sample], axes=1) - prior - _LEAST * of_rows
        if not np.isfinite(excess).all():
            return False
        return float(np.linalg.eigvalsh((excess + excess.T) / 2)[0]) > -_LITTLE

    def _curvature_of_prior(self, num_points: int) -> np.ndarray:
        """Minus the Hessian (dim, dim) of the log prior at the mode, in the frame's coordinates.

        By differences of gradients, so many at a time, because the program for so many is needed anyway.
        """
        if self._of_prior is None:
            dim, device = self._model.dim, DeviceFrame.of(self._frame)
            steps = np.zeros((-(-(dim + 1) // num_points) * num_points, dim), jnp.result_type(float))
            steps[1 : dim + 1] = _STEP * np.eye(dim)
            parts = [
                prior_gradients_in(self._model, device, jax.device_put(some))
                for some in np.split(steps, len(steps) // num_points)
            ]
            slopes = np.concatenate([part.result() for part in parts])
            self._of_prior = (slopes[0] - slopes[1 : dim + 1]) / _STEP
            assert self._of_prior is not None
        return self._of_prior

    def _u(self, points: np.ndarray) -> np.ndarray:
        # From the centre as the device has it, in its precision.
        center = np.asarray(DeviceFrame.of(self._frame).center, np.float64)
        return (points - center) @ np.linalg.inv(self._frame.basis).T

    def _whole(self, points: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """The gradient (point, dim) with this average of the r_i."""
        shares, slopes = self._shards.shares, self.slopes
        curvature = np.tensordot(shares, slopes.curvatures, axes=1)
        linear = shares @ slopes.gradients - (self._u(points) - slopes.point) @ (
            (curvature + curvature.T) / 2
        )
        return (linear + rest) @ np.linalg.inv(self._frame.basis)

    def _rest(self, points: np.ndarray, shards: Sequence[int]) -> np.ndarray:
        """The r_i of these shards in the frame's coordinates, (shard, point, dim)."""
        u, device = self._u(points), DeviceFrame.of(self._frame)
        at = jax.device_put(u.astype(jnp.result_type(float)))
        prior = prior_gradients_in(self._model, device, at)
        results = self._engine.map(LikelihoodGradients(self._model), self._shards, None, (device, at), shards)
        parts = np.stack([np.asarray(part, np.float64) for _, part in in_order(results, shards)])
        self.passes += len(points) * float(self._shards.shares[list(shards)].sum())
        slopes = self.slopes
        linear = (u - slopes.point) @ slopes.curvatures[shards]
        return prior.result() + parts - slopes.gradients[shards][:, None] + linear

    @cached_property
    def slopes(self) -> _Slopes:
        """Gradients and curvatures of all shards at one point."""
        count, dim = self._shards.num_shards, self._model.dim
        if self._curvatures is not None:
            return self._with_known_curvatures(self._curvatures)
        if self._terms is not None:
            known, basis = self._terms, self._frame.basis
            return _Slopes(self._u(known.point), known.gradients @ basis, basis.T @ known.curvatures @ basis)
        # With the program that found the shards' modes, which is compiled already.
        zeros, device = np.zeros((count, dim), jnp.result_type(float)), DeviceFrame.of(self._frame)
        results = self._engine.map(SubposteriorTerms(self._model), self._shards, zeros, device)
        terms = [terms[1:] for _, terms in in_order(results, range(count))]
        self.passes += 1
        return _Slopes(zeros[0], *(np.stack([np.asarray(t[k], np.float64) for t in terms]) for k in (0, 1)))

    def _with_known_curvatures(self, curvatures: np.ndarray) -> _Slopes:
        slopes = shard_slopes(self._model, self._shards, self._engine, self._frame)
        self.passes += 1
        zero = np.zeros(self._model.dim)
        return _Slopes(zero, slopes, self._frame.basis.T @ curvatures @ self._frame.basis)
