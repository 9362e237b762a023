"""The log density of one shard's subposterior, in coordinates where it is about standard normal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.data.grouped import GroupedRows, points_together
from shardmc.model import Density
from shardmc.types import Frame, Rows
from shardmc.warp import Warp

D = TypeVar("D", bound=Density)
_POINTS = 256
_LEAST_ROWS = 1024
_GROUPED_POINTS = 4


def _cells() -> int:
    """Points times rows that are evaluated together: enough to fill a cache or an accelerator."""
    return 1 << (20 if jax.default_backend() == "cpu" else 27)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceFrame:
    """A `Frame` as the compiled programs see it: theta = center + basis @ u."""

    center: jax.Array  # (dim,)
    basis: jax.Array  # (dim, dim)

    def to_theta(self, u: jax.Array) -> jax.Array:
        return self.center + self.basis @ u

    @property
    def scales(self) -> jax.Array:
        """Standard deviations (dim,) of the parameters if u is standard normal."""
        return jnp.sqrt(jnp.sum(self.basis**2, axis=1))

    @staticmethod
    def of(frame: Frame) -> DeviceFrame:
        real = jnp.result_type(float)
        # Cast on the host: on the device each cast is one more program to compile.
        return DeviceFrame(*(jax.device_put(a.astype(real)) for a in (frame.center, frame.basis)))


@dataclass(frozen=True)
class Target(Generic[D]):
    """power * (log prior + sum_j w_j l_j) at theta = center + basis u, less its value at u = 0.

    The sum is over differences l_j(theta) - l_j(center), row by row, so that in float32 it keeps its precision for
    any number of rows. `power` is 1 for the rescaled subposterior and the shard's share for
    the fractional one.

    With a warp, theta_k = center_k + s_k g_k((basis u)_k / s_k), where s_k is the length of row k of the basis, and the
    sum of the log slopes of the g_k is added.
    """

    model: D
    rows: Rows
    weights: jax.Array  # (row,)
    frame: DeviceFrame
    power: jax.Array | float = 1.0
    warp: Warp | None = None
    reference: jax.Array = field(init=False)  # (row,) log-likelihoods at the centre

    def __post_init__(self) -> None:
        object.__setattr__(self, "reference", self.model.log_likelihood(self.frame.center, self.rows))

    @property
    def dim(self) -> int:
        return self.frame.center.shape[0]

    def to_theta(self, u: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """The parameters (dim,) at one point u (dim,), and the log of the warp's volume element there."""
        theta = self.frame.to_theta(u)
        if self.warp is None:
            return theta, None
        shift, volume = self.shift(self.warp, u)
        return theta + shift, volume

    def shift(self, warp: Warp, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What a warp adds to the parameters (dim,) at one point u (dim,), and the log of its volume element."""
        z = self.frame.basis @ u / self.frame.scales
        values, log_slopes = warp(z)
        return self.frame.scales * (values - z), jnp.sum(log_slopes)

    def log_density(self, u: jax.Array) -> jax.Array:
        """Log density at one point u (dim,), relative to the centre."""
        theta, volume = self.to_theta(u)
        gain = jnp.sum(self.weights * (self.model.log_likelihood(theta, self.rows) - self.reference))
        prior_gain = self.model.log_prior(theta) - self.model.log_prior(self.frame.center)
        density = self.power * (gain + prior_gain)
        return density if volume is None else density + volume

    def prior_gain(self, u: jax.Array) -> jax.Array:
        """Log prior at one point u (dim,) of the frame, relative to the centre."""
        return self.model.log_prior(self.frame.to_theta(u)) - self.model.log_prior(self.frame.center)

    def log_densities(self, u: jax.Array) -> jax.Array:
        """Log densities at many points (point, dim): matrix computations over blocks of rows and points."""
        if isinstance(self.rows, GroupedRows):
            # Rows of a group stay together. Each point is enough work by itself.
            together = min(points_together(self.rows, _GROUPED_POINTS), u.shape[0])
            return lax.map(self.log_density, u, batch_size=together if together > 1 else None)
        num_points, num_rows = u.shape[0], self.weights.shape[0]
        most_points = max(1, min(num_points, _POINTS))
        most_rows = max(_LEAST_ROWS, _cells() // most_points)
        if num_points <= most_points and num_rows <= most_rows:
            return jax.vmap(self.log_density)(u)
        # Blocks of equal size, so that the last one repeats few rows of the one before.
        block = math.ceil(num_rows / math.ceil(num_rows / most_rows))

        def some(u: jax.Array) -> jax.Array:
            theta, volume = jax.vmap(self.to_theta)(u)
            prior_gain = jax.vmap(self.model.log_prior)(theta) - self.model.log_prior(self.frame.center)
            density = self.power * (self._gains(theta, block) + prior_gain)
            return density if volume is None else density + volume

        whole = num_points // most_points * most_points
        parts = [lax.map(some, u[:whole].reshape(-1, most_points, self.dim)).ravel()]
        if whole < num_points:
            parts.append(some(u[whole:]))
        return jnp.concatenate(parts)

    def _gains(self, theta: jax.Array, block: int) -> jax.Array:
        """Weighted log-likelihood gains (point,) over the centre, `block` rows at a time."""
        num_rows = self.weights.shape[0]

        def add(total: jax.Array, first: jax.Array) -> tuple[jax.Array, None]:
            # The last block is moved back to end with the rows. Repeated rows have weight 0.
            start = jnp.minimum(first, num_rows - block)
            rows, weights, reference = jax.tree.map(
                lambda a: lax.dynamic_slice_in_dim(a, start, block), (self.rows, self.weights, self.reference)
            )
            weights = jnp.where(start + jnp.arange(block) >= first, weights, 0)
            # Materialised, the block uses XLA's fused matrix kernels. A lazy slice would not.
            rows, weights, reference = lax.optimization_barrier((rows, weights, reference))
            gain = jax.vmap(lambda t: jnp.sum(weights * (self.model.log_likelihood(t, rows) - reference)))
            return total + gain(theta), None

        starts = jnp.arange(0, num_rows, block)
        return lax.scan(add, jnp.zeros(theta.shape[0], theta.dtype), starts)[0]
