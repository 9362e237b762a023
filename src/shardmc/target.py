"""The log density of one shard's subposterior, in coordinates where it is about standard normal, straight or curved."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from shardmc.data.grouped import GroupedRows, points_together
from shardmc.model import Density
from shardmc.types import Frame, Rows

_FIRST, _STEP = -5.0, 0.25
_KNOTS = np.arange(_FIRST, -_FIRST + _STEP, _STEP)
GRID = 1.5 * np.sinh(np.linspace(-3.1, 3.1, 49))
"""Where a density is evaluated to find its map, in standard deviations: densely at the mode, and to 17 of them."""
_FLOOR, _LEAST = -80.0, 1e-30
"""The lowest log density relative to its maximum, and the smallest probability, that single precision can hold."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Warp:
    """Monotone maps z -> value, one per parameter, with log slopes that are linear between knots.

    So the slope is positive and continuous whatever the numbers are. Beyond the outer knots it is constant.
    """

    log_slopes: jax.Array  # (dim, knot)
    bends: jax.Array  # (dim, knot) change of the log slope per unit of z, to the right of each knot
    values: jax.Array  # (dim, knot)

    @staticmethod
    def of(log_slopes: ArrayLike, medians: ArrayLike) -> Warp:
        """From log slopes (dim, knot) and values at z = 0 (dim,)."""
        log_slopes = jnp.asarray(log_slopes)
        bends = jnp.diff(log_slopes, axis=1) / _STEP
        rises = jnp.exp(log_slopes[:, :-1]) * _STEP * _mean_growth(bends * _STEP)
        values = jnp.pad(jnp.cumsum(rises, axis=1), ((0, 0), (1, 0)))
        values = values - values[:, len(_KNOTS) // 2, None] + jnp.asarray(medians)[:, None]
        return Warp(log_slopes, jnp.pad(bends, ((0, 0), (0, 1))), values)

    def __call__(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Values (dim,) and log slopes (dim,) at z (dim,)."""
        place = jnp.floor((z - _FIRST) / _STEP)
        knot = jnp.clip(place, 0, len(_KNOTS) - 1).astype(int)
        log_slope, bend, value = (
            jnp.take_along_axis(a, knot[:, None], axis=1)[:, 0]
            for a in (self.log_slopes, self.bends, self.values)
        )
        beyond = z - (_FIRST + _STEP * knot)
        change = jnp.where(place < 0, 0.0, bend) * beyond
        return value + jnp.exp(log_slope) * beyond * _mean_growth(change), log_slope + change


def _mean_growth(change: jax.Array) -> jax.Array:
    """The mean of exp over the interval from 0 to `change`: (exp(x) - 1) / x, and 1 at 0."""
    small = jnp.abs(change) < 1e-2
    safe = jnp.where(small, 1.0, change)
    return jnp.where(small, 1 + change / 2 * (1 + change / 3), jnp.expm1(safe) / safe)


def normal_map(log_density: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log slopes (knot,) and the median () of the monotone map from a normal variable to a density.

    `log_density` (point,) is known at the points of `GRID`, up to a constant. Between them it is taken as linear, and
    so is the log of the map's slope, phi(z) / p(value), between the z of these points.
    """
    grid = jnp.asarray(GRID, log_density.dtype)
    known = jnp.where(jnp.isfinite(log_density), log_density, -jnp.inf)
    log_p = jnp.maximum(known - jnp.max(known), _FLOOR)
    falls = jnp.diff(log_p) / jnp.diff(grid)
    masses = jnp.exp(log_p[:-1]) * jnp.diff(grid) * _mean_growth(jnp.diff(log_p))
    # What lies beyond the grid, if the density goes on to fall as it does at the ends.
    left, right = (
        jnp.exp(p) / jnp.maximum(fall, 0.1) for p, fall in ((log_p[0], falls[0]), (log_p[-1], -falls[-1]))
    )
    below = left + jnp.pad(jnp.cumsum(masses), (1, 0))
    above = right + jnp.pad(jnp.cumsum(masses[::-1])[::-1], (0, 1))
    total = below[-1] + right
    quantile = jax.scipy.special.ndtri
    # Each tail from its own end, because differences from 1 lose their digits.
    z = jnp.where(
        below < above,
        quantile(jnp.maximum(below / total, _LEAST)),
        -quantile(jnp.maximum(above / total, _LEAST)),
    )
    log_slopes = jnp.log(total) - 0.5 * z**2 - 0.5 * jnp.log(2 * jnp.pi) - log_p
    return jnp.interp(jnp.asarray(_KNOTS, z.dtype), z, log_slopes), jnp.interp(0.0, z, grid)


def unevenness(log_slopes: np.ndarray) -> float:
    """Variance of the log slope (dim, knot) of each map at a normal variable, summed over the maps."""
    weights = np.exp(-0.5 * _KNOTS**2)
    weights /= weights.sum()
    slopes = np.asarray(log_slopes, float)
    return float(np.sum((slopes - (slopes @ weights)[:, None]) ** 2 @ weights))


class LogDensity(Protocol):
    """A density as most samplers see it: in coordinates u where it is about standard normal."""

    @property
    def dim(self) -> int: ...

    def log_density(self, u: jax.Array, /) -> jax.Array:
        """At one point (dim,)."""
        ...

    def log_densities(self, u: jax.Array, /) -> jax.Array:
        """At many points (point, dim)."""
        ...


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
