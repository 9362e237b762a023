"""Curved coordinates for skewed parameters: a monotone map for each of them, from a normal variable to its density."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    def of(log_slopes: Any, medians: Any) -> Warp:
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


def transport(log_density: jax.Array) -> tuple[jax.Array, jax.Array]:
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
