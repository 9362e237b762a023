"""Value, gradient and curvature of the log posterior, by shards and summed over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks, Rows
from shardmc.engine.order import in_order
from shardmc.model import Density
from shardmc.target import DeviceFrame, Target
from shardmc.types import Engine, Frame


@dataclass(frozen=True)
class SubposteriorTerms:
    """Program: value, gradient and curvature of a shard's rescaled log subposterior at a point u of a frame.

    The value is the gain over the frame's centre. Weighted by shares, the terms sum to those of all rows.
    """

    model: Density
    rows_together: ClassVar = 1 << 20
    """For shards in parallel on an accelerator: second derivatives need much memory per row."""

    def __call__(
        self, rows: Rows, weights: jax.Array, u: jax.Array, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        return expanded(Target(self.model, rows, weights, frame).log_density, u)


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

    def __init__(self, model: Density, blocks: Blocks, engine: Engine) -> None:
        self.model, self.blocks, self.engine = model, blocks, engine
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
        return Terms(gain, gradient, (curvature + curvature.T) / 2)

    def shard_starts(self) -> np.ndarray:
        """The end of an undamped Newton step from the last point, for every shard, (shard, dim). NaN if singular."""
        frame, u, terms = self._last
        steps = np.stack([_full_step(*(np.asarray(t, np.float64) for t in each)) for each in terms])
        return frame.to_theta(u + steps)


def _full_step(gradient: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.solve(curvature, gradient)
    except np.linalg.LinAlgError:
        return np.full(len(gradient), np.nan)


def expanded(
    function: Callable[[jax.Array], jax.Array], origin: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value, gradient and curvature (minus the Hessian) at a point, with shared computations."""

    def slope(u: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, gradient = jax.value_and_grad(function)(u)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(slope, has_aux=True)(origin)
    return value, gradient, -hessian
