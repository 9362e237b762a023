"""Value, gradient and curvature of the log posterior: by shards, summed over them, and as a quadratic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Blocks
from shardmc.data.grouped import GroupedRows, points_together
from shardmc.engine import DensityProgram, Engine, in_order
from shardmc.model import Density
from shardmc.model.predictors import row_derivatives
from shardmc.target import DeviceFrame, Target
from shardmc.types import Frame, Rows, ShardTerms

if TYPE_CHECKING:
    from shardmc.locate.expansion import Expansion

_MANY = 64  # parameters
_MOST_TERMS = 1 << 22
"""Curvatures of all shards are kept for later steps up to this many numbers, 32 MB."""
_DIFFERENCE = 0.03
"""The step of differences of gradients, in posterior standard deviations. At such a step the third derivative moves a
curvature by at most some tenths of a percent, and rounding by less."""


@dataclass(frozen=True)
class SubposteriorTerms(DensityProgram[tuple[jax.Array, jax.Array, jax.Array]]):
    """Program: value, gradient and curvature of a shard's rescaled log subposterior at a point u of a frame.

    The value is the gain over the frame's centre. Weighted by shares, the terms sum to those of all rows.
    """

    runs_a_few_times: ClassVar = True
    rows_together: ClassVar = 1 << 20
    """For shards in parallel on an accelerator: second derivatives need much memory per row."""

    def __call__(
        self, rows: Rows, weights: jax.Array, u: jax.Array, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        target = Target(self.model, rows, weights, frame)
        by_rows = row_derivatives(self.model, frame.to_theta(u), frame.basis, rows)
        if by_rows is not None:
            gain = jnp.sum(weights * (by_rows.values - target.reference))
            of_prior = expanded(target.prior_gain, u)
            gradient, curvature = by_rows.gradient(weights), -by_rows.hessian(weights)
            return gain + of_prior[0], gradient + of_prior[1], curvature + of_prior[2]
        log_density = target.log_density
        if isinstance(rows, GroupedRows) and rows.matched:
            return differenced(log_density, u)
        # With all directions at once, arrays of rows by parameters would pass through memory many times.
        alone = points_together(rows, 2) == 1  # as one point is
        one_by_one = alone or (isinstance(rows, GroupedRows) and len(u) > _MANY)
        return expanded(log_density, u, one_by_one=one_by_one)


@dataclass(frozen=True)
class SubposteriorSlope(DensityProgram[jax.Array]):
    """Program: the gradient of a shard's rescaled log subposterior at a point u of a frame."""

    rows_together: ClassVar = 1 << 20
    """With shards in parallel, an accelerator would transpose all rows first, which takes longer than the gradient."""

    def __call__(self, rows: Rows, weights: jax.Array, u: jax.Array, frame: DeviceFrame) -> jax.Array:
        return jax.grad(Target(self.model, rows, weights, frame).log_density)(u)


@dataclass(frozen=True)
class SubposteriorScores(DensityProgram[tuple[jax.Array, jax.Array]]):
    """Program: gradient of a shard's rescaled log subposterior at a point u of a frame, and its rows' scores squared.

    Near the mode the products of scores sum to about the curvature, never indefinite, from first derivatives only.
    """

    def __call__(
        self, rows: Rows, weights: jax.Array, u: jax.Array, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array]:
        scores = row_scores(lambda at, some: self.model.log_likelihood(frame.to_theta(at), some), u, rows)
        of_prior = jax.grad(lambda at: self.model.log_prior(frame.to_theta(at)))(u)
        return of_prior + scores @ weights, (scores * weights) @ scores.T


def row_scores(
    log_likelihood: Callable[[jax.Array, Rows], jax.Array], origin: jax.Array, rows: Rows
) -> jax.Array:
    """Derivatives (dim, row) of the log-likelihood (u, rows) -> (row,) of every row."""
    if isinstance(rows, GroupedRows) and rows.matched and rows.joined and rows.rule is None:
        # Each group has much to compute: one gradient of it takes less time than its slopes along all directions.
        slope = jax.grad(lambda u, group: log_likelihood(u, group)[0])
        return jax.vmap(slope, in_axes=(None, 0), out_axes=1)(origin, rows.alone)
    _, along = jax.linearize(lambda u: log_likelihood(u, rows), origin)
    return lax.map(along, jnp.eye(len(origin), dtype=origin.dtype))


@dataclass(frozen=True)
class Terms:
    """Log posterior gain over a frame's centre, gradient and curvature at a point, in the frame's coordinates."""

    gain: float
    gradient: np.ndarray
    curvature: np.ndarray

    @property
    def finite(self) -> bool:
        return bool(
            np.isfinite(self.gain) and np.isfinite(self.gradient).all() and np.isfinite(self.curvature).all()
        )


class Evaluator:
    """Sums of the log posterior over shards, for the Newton iteration. Counts the passes over the data."""

    def __init__(
        self, model: Density, blocks: Blocks, engine: Engine, added: Expansion | None = None
    ) -> None:
        """With `added`, the log density that it expands is added to the log posterior."""
        self.model, self.blocks, self.engine, self.added = model, blocks, engine, added
        self.passes = 0.0
        self._last: tuple[Frame, np.ndarray, list[tuple[jax.Array, jax.Array]]]

    def __call__(self, frame: Frame, u: np.ndarray, shards: Sequence[int] | None = None) -> Terms:
        """Terms at the point u of the frame, from all shards or estimated from some."""
        wanted = range(self.blocks.num_shards) if shards is None else shards
        shares = self.blocks.shares[list(wanted)]
        at = np.broadcast_to(u.astype(jnp.result_type(float)), (self.blocks.num_shards, len(u)))
        results = self.engine.map(
            SubposteriorTerms(self.model), self.blocks, at, DeviceFrame.of(frame), shards
        )
        total = float(shares.sum())
        self.passes += total
        gain, gradient, curvature = 0.0, np.zeros(len(u)), np.zeros((len(u), len(u)))
        self._last = (frame, u, [])
        for weight, (_, terms) in zip(shares / total, in_order(results, wanted), strict=True):
            gain += weight * float(terms[0])
            gradient += weight * terms[1]
            curvature += weight * terms[2]
            self._last[2].append(terms[1:])
        if self.added is not None:
            value, slope = self.added.at(frame.to_theta(u))
            gain += value - self.added.at(frame.center)[0]
            gradient += frame.basis.T @ slope
            curvature += frame.basis.T @ self.added.curvature @ frame.basis
        return Terms(gain, gradient, (curvature + curvature.T) / 2)

    def with_unit_curvature(self, frame: Frame) -> Terms:
        """Terms at the centre of a frame whose coordinates are about those of the posterior's curvature.

        Only the gradient is computed, from all shards, which costs a fraction of the curvature.
        """
        slopes = shard_slopes(self.model, self.blocks, self.engine, frame)
        self.passes += 1.0
        return Terms(0.0, self.blocks.shares @ slopes, np.eye(frame.dim))

    def from_scores(self, frame: Frame, shards: Sequence[int] | None = None) -> Terms:
        """Terms at the centre of a frame, with the products of the rows' scores in place of the curvature."""
        wanted = range(self.blocks.num_shards) if shards is None else shards
        shares = self.blocks.shares[list(wanted)]
        at = np.zeros((self.blocks.num_shards, frame.dim), jnp.result_type(float))
        results = self.engine.map(
            SubposteriorScores(self.model), self.blocks, at, DeviceFrame.of(frame), shards
        )
        self.passes += float(shares.sum())
        parts = [terms for _, terms in in_order(results, wanted)]
        gradient, curvature = (
            np.average([np.asarray(part[k], np.float64) for part in parts], axis=0, weights=shares)
            for k in (0, 1)
        )
        return Terms(0.0, gradient, (curvature + curvature.T) / 2)

    def shard_curvatures(self) -> np.ndarray:
        """Curvatures of the shards at the last point, (shard, dim, dim), in the user's coordinates."""
        frame, _, terms = self._last
        back = np.linalg.inv(frame.basis)
        inner = np.stack([np.asarray(curvature, np.float64) for _, curvature in terms])
        return back.T @ ((inner + inner.transpose(0, 2, 1)) / 2) @ back

    def shard_terms(self) -> ShardTerms | None:
        """The terms of all shards at the last point, in the user's coordinates.

        None if they would take much memory, or if they or the frame are beyond the range of numbers.
        """
        frame, u, terms = self._last
        dim, real = len(u), terms[0][0].dtype
        if self.added is not None or len(terms) < self.blocks.num_shards or len(terms) * dim**2 > _MOST_TERMS:
            return None
        slopes, bends = (np.stack([np.asarray(each[k], np.float64) for each in terms]) for k in (0, 1))
        try:
            with np.errstate(all="ignore"):
                center, basis, u = (a.astype(real).astype(np.float64) for a in (frame.center, frame.basis, u))
                back = np.linalg.inv(basis)
                bends = back.T @ ((bends + bends.transpose(0, 2, 1)) / 2) @ back
                found = ShardTerms(center + basis @ u, slopes @ back, bends)
        except np.linalg.LinAlgError:
            return None
        return found if all(np.isfinite(values).all() for values in vars(found).values()) else None

    def shard_starts(self) -> np.ndarray:
        """The end of an undamped Newton step from the last point, for every shard, (shard, dim). NaN if singular."""
        frame, u, terms = self._last
        gradients, curvatures = (
            np.stack([np.asarray(each[k], np.float64) for each in terms]) for k in (0, 1)
        )
        try:
            steps = np.linalg.solve(curvatures, gradients[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            steps = np.stack([_full_step(*each) for each in zip(gradients, curvatures, strict=True)])
        return frame.to_theta(u + steps)


def is_large(blocks: Blocks, dim: int) -> bool:
    """Whether a pass that computes curvature takes longer than it takes to compile one more program."""
    return blocks.num_rows * dim > (1e8 if jax.default_backend() == "cpu" else 5e9)


def shard_slopes(
    model: Density, blocks: Blocks, engine: Engine, frame: Frame, at: np.ndarray | None = None
) -> np.ndarray:
    """Gradients (shard, dim) of the shards' rescaled subposteriors at points (shard, dim) of a frame, or its centre."""
    count, real = blocks.num_shards, jnp.result_type(float)
    points = np.zeros((count, frame.dim), real) if at is None else at.astype(real)
    results = engine.map(SubposteriorSlope(model), blocks, points, DeviceFrame.of(frame))
    return np.stack([np.asarray(slope, np.float64) for _, slope in in_order(results, range(count))])


def _full_step(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.solve(curvature, gradient)
    except np.linalg.LinAlgError:
        return np.full(len(gradient), np.nan)


def expanded(
    function: Callable[[jax.Array], jax.Array], origin: jax.Array, *, one_by_one: bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value, gradient and curvature (minus the Hessian) at a point, with shared computations.

    With `one_by_one` the curvature is computed along one direction after the other, which needs little memory.
    """
    if one_by_one:
        (value, gradient), along = jax.linearize(jax.value_and_grad(function), origin)
        rows = lax.map(lambda direction: along(direction)[1], jnp.eye(len(origin), dtype=origin.dtype))
        return value, gradient, -rows

    def slope(u: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, gradient = jax.value_and_grad(function)(u)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(origin)
    return value, gradient, -hessian


def differenced(
    function: Callable[[jax.Array], jax.Array], origin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value, gradient and curvature at a point, the curvature from differences of gradients.

    For functions whose second derivatives take several times as long as their gradients. The coordinates are those of
    a frame, in which a posterior standard deviation is about 1.
    """
    step = _DIFFERENCE * jnp.eye(len(origin), dtype=origin.dtype)
    values, gradients = lax.map(jax.value_and_grad(function), jnp.concatenate([origin[None], origin + step]))
    return values[0], gradients[0], (gradients[0] - gradients[1:]) / _DIFFERENCE
