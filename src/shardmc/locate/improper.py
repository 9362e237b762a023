"""The search for a direction along which the posterior does not fall. Only then is it called improper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from shardmc.model import Density
from shardmc.model.precision import double_precision
from shardmc.programs.process import TRACING

_FALL = 1.0
"""A proper posterior falls by at least this many nats, far enough away."""
FAR = 3e6
"""How far that is, in standard deviations of each parameter given the others. Farther away, rounding of rows to single
precision makes collinear columns differ."""

_FAR_ENOUGH = 1e3
"""The search must reach this distance, in the same units, even if nothing can be computed farther away."""


@dataclass(frozen=True)
class Flat:
    """A direction along which the log posterior does not fall."""

    direction: np.ndarray  # (dim,)
    rises: bool
    """Whether it rises along the direction without end."""

    def sentence(self, names: Sequence[str]) -> str:
        where = named_direction(self.direction, names)
        if self.rises:
            return (
                f"The posterior has no mode: it rises along {where} without end. The rows move that direction to "
                "infinity (complete separation, or a scale that shrinks to zero), and the prior does not prevent it. "
                "Give it a proper prior or leave it out."
            )
        return (
            f"The posterior has no mode: it does not fall along {where}. Neither the rows nor the prior inform that "
            "direction (collinear columns, or a parameter without data). Give it a proper prior or leave it out."
        )


def prove_flat(
    gain: Callable[[np.ndarray], float], direction: np.ndarray, spread: np.ndarray, center: np.ndarray
) -> Flat | None:
    """Search along a line from the centre in both directions, ten times farther each time.

    Parameters
    ----------
    gain
        Log posterior of all rows at a displacement (dim,) from the centre, minus its value there.
    direction
        The line, (dim,).
    spread
        Standard deviation of every parameter given the others, (dim,); infinite without curvature.
    center
        The current point, (dim,).

    Examples
    --------
    >>> ones = np.ones(2)
    >>> prove_flat(lambda move: -float(move.sum() ** 2), np.array([1.0, -1.0]), ones, ones) is not None
    True
    >>> prove_flat(lambda move: -float(move @ move) * 1e-8, np.array([1.0, -1.0]), ones, ones) is None
    True
    """
    if not (np.isfinite(direction).all() and direction.any()):
        return None
    # One unit of the direction is the distance at which each parameter has moved by about its spread.
    spread = np.where(np.isfinite(spread), spread, 1 + np.abs(center))
    unit = direction / np.max(np.abs(direction) / spread)
    ends = [_last_gain(gain, sign * unit) for sign in (1.0, -1.0)]
    if min(ends) > -_FALL:
        return Flat(unit, rises=False)
    if max(ends) > -_FALL:
        return Flat(unit if ends[0] > ends[1] else -unit, rises=True)
    return None


def prior_never_falls(model: Density, center: np.ndarray, direction: np.ndarray) -> bool:
    """Whether the prior never falls along a direction, at any distance from the centre.

    >>> from shardmc.model import Model
    >>> model = Model(lambda p, rows: rows, lambda p: -0.5 * (p["a"] / 1e4) ** 2, {"a": (), "b": ()})
    >>> a, b = np.eye(2)
    >>> prior_never_falls(model, np.zeros(2), a), prior_never_falls(model, np.zeros(2), b)
    (False, True)
    """
    with TRACING, double_precision():
        here = float(model.log_prior(jnp.asarray(center, jnp.float64)))
        there = [float(model.log_prior(jnp.asarray(center + 10.0**k * direction))) for k in range(9)]
    gains = np.array(there) - here
    return bool(np.isfinite(gains[:4]).all() and (gains[np.isfinite(gains)] > -_FALL).all())


def _last_gain(gain: Callable[[np.ndarray], float], unit: np.ndarray) -> float:
    """The gain where it first fell, or at the farthest point."""
    distance, last = 1.0, -np.inf
    while distance < FAR:
        distance *= 10
        here = gain(distance * unit)
        if not np.isfinite(here) and distance > _FAR_ENOUGH:
            break  # too far to compute
        last = here if np.isfinite(here) else -np.inf
        if last < -_FALL:
            break
    return last


def named_direction(direction: np.ndarray, names: Sequence[str]) -> str:
    """The main parameters of a direction.

    >>> named_direction(np.array([1.0, 0.0, -0.8]), ["a", "b", "c"])
    "'a' and 'c'"
    """
    weight = np.abs(direction) / np.abs(direction).max()
    order = [int(k) for k in np.argsort(-weight) if weight[k] > 0.3][:3]
    named = [repr(names[k]) for k in order]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " and " + named[-1]
