"""Modes of the effects of groups, by damped Newton steps that all groups take together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

Point: TypeAlias = tuple[jax.Array, ...]
"""Where the groups are: arrays (group, k). The first of them tells how far a step goes."""

_MOST_STEPS = 60
_CLOSE = 1e-3
"""A group's mode is found when the next step is shorter than this, in the unit of the first array."""
_SHORTEST = 1e-6
"""A group whose steps do not climb stops at this part of a step."""
_ROUNDED = 1e-5
"""A step climbs if it loses no more than this part of a group's log density, which may be rounding."""
FARTHEST = 8.0
"""A group whose last mode is farther than this from the middle of the distribution of effects starts in the middle."""


def climb(
    height: Callable[[Point], jax.Array],
    newton_step: Callable[[Point], tuple[jax.Array, Point]],
    start: Point,
) -> tuple[jax.Array, Point]:
    """The number of steps, and the modes.

    A group's step is made four times as short if it does not climb, and twice as long, up to a whole step, if it does.

    Parameters
    ----------
    height
        The log densities (group,) at a point.
    newton_step
        The log densities at a point, and the Newton step from there.
    start
        Where the search begins.
    """
    count = start[0].shape[0]

    def searching(state: tuple[jax.Array, Point, jax.Array, jax.Array]) -> jax.Array:
        taken, _, _, moved = state
        return (taken < _MOST_STEPS) & (jnp.max(moved) > _CLOSE)

    def advance(
        state: tuple[jax.Array, Point, jax.Array, jax.Array],
    ) -> tuple[jax.Array, Point, jax.Array, jax.Array]:
        taken, point, length, _ = state
        here, step = newton_step(point)
        trial = tuple(a + length[:, None] * b for a, b in zip(point, step, strict=True))
        there = height(trial)
        rises = (there >= here - _ROUNDED * (1 + jnp.abs(here))) & jnp.isfinite(there)
        point = tuple(jnp.where(rises[:, None], b, a) for a, b in zip(point, trial, strict=True))
        length = jnp.where(rises, jnp.minimum(2 * length, 1.0), length / 4)
        size = jnp.max(jnp.abs(step[0]), axis=1)
        return taken + 1, point, length, jnp.where((size >= _CLOSE) & (length >= _SHORTEST), size, 0.0)

    real = start[0].dtype
    begin = (jnp.int32(0), start, jnp.ones(count, real), jnp.full(count, jnp.inf, real))
    taken, point, _, _ = lax.while_loop(searching, advance, begin)
    return taken, point
