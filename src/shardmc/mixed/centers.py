"""Where the effects of each group lie, given the parameters: a normal likelihood of them at their mode, moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.grouped import GroupedBlocks, GroupedRows
from shardmc.engine import Engine
from shardmc.mixed.climb import FARTHEST, Point, climb
from shardmc.mixed.marginal import GroupLikelihood, LocalEffects, flat, newton
from shardmc.mixed.matched import GroupSites, LinearEffects
from shardmc.model import Model
from shardmc.types import Tree

Centers: TypeAlias = Mapping[str, jax.Array | np.ndarray]
"""What is known of each group's log-likelihood, about b^T u - u^T P u / 2 near the mode of its effects u.

precision P (group, size, size), and b = linear + slope @ params: linear (group, size), slope (group, size, parameter).
"""


def blank_centers(num_groups: int, size: int, num_params: int) -> Centers:
    """Before anything is known: the distribution of the effects."""
    return {
        "linear": np.zeros((num_groups, size), np.float32),
        "slope": np.zeros((num_groups, size, num_params), np.float32),
        "precision": np.zeros((num_groups, size, size), np.float32),
    }


def _expanded(
    function: Callable[[jax.Array], jax.Array], at: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value (group,), gradient (group, size) and curvature (group, size, size) of a function of groups' effects."""

    def total(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = function(at)
        return jnp.sum(values), values

    def slope(at: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient, values = jax.grad(total, has_aux=True)(at)
        return gradient, values

    gradient, values = slope(at)
    bends = [
        jax.jvp(lambda at: slope(at)[0], (at,), (jnp.zeros_like(at).at[:, k].set(1.0),))[1]
        for k in range(at.shape[1])
    ]
    return values, gradient, -jnp.stack(bends, axis=2)


@dataclass(frozen=True)
class GroupModes:
    """Program: the likelihood of each group near the mode of its effects, which is found by damped Newton steps."""

    model: Model
    local: LocalEffects

    def __call__(self, data: GroupedRows, weights: jax.Array, shard: None, theta: jax.Array) -> Tree:
        params = self.model.constrain(theta)
        here, _ = self.local.middle(params, data)

        def log_density(v: jax.Array) -> jax.Array:
            return self.local.log_densities(params, data, v) - 0.5 * jnp.sum(v**2, axis=1)

        def newton_step(point: Point) -> tuple[jax.Array, Point]:
            values, gradient, curvature = _expanded(log_density, point[0])
            return values, (newton(curvature, gradient)[0],)

        start = jnp.where(jnp.all(jnp.abs(here) < FARTHEST, axis=1, keepdims=True), here, 0.0)
        steps, (v,) = climb(lambda point: log_density(*point), newton_step, (start,))
        _, gradient, curvature = _expanded(log_density, v)
        v = v + jnp.clip(newton(curvature, gradient)[0], -0.1, 0.1)
        u = v @ self.local.factor(params).T
        _, gradient, precision = _expanded(lambda u: self.local.log_likelihoods(params, data, u), u)

        def slope_of(vector: jax.Array) -> jax.Array:
            moved = self.model.constrain(vector)
            return jax.grad(lambda u: jnp.sum(self.local.log_likelihoods(moved, data, u)))(u)

        by_theta = jax.jacfwd(slope_of)(theta)  # (group, size, dim)
        natural = jax.jacfwd(lambda t: flat(self.model.constrain(t)))(theta)  # (param, dim)
        slope = by_theta @ jnp.linalg.pinv(natural)
        linear = gradient + jnp.einsum("gij,gj->gi", precision, u) - slope @ flat(params)
        return {"linear": linear, "slope": slope, "precision": precision}, steps


def center_groups(
    model: Model,
    local: LocalEffects | LinearEffects,
    blocks: GroupedBlocks,
    theta: np.ndarray,
    engine: Engine,
    shards: Sequence[int] | None = None,
) -> tuple[GroupedBlocks, float]:
    """The blocks with the centre (or the sites) of every group at these parameters, and the passes over all rows.

    Each search starts from the centre that the blocks have. With `shards`, only their groups are centred.
    """
    layout = blocks.layout
    blocks = blocks.uncorrected
    found = {name: np.array(a) for name, a in blocks.groups.rows.items()}
    passes = 0.0
    real = jnp.result_type(float)
    # Modes need no rule: one compiled program serves all of them.
    plain = replace(blocks, rule=None, finer=None).keep([np.empty(0, np.int64)] * blocks.num_shards)
    linear = isinstance(local, LinearEffects)
    program = GroupSites(model, local) if linear else GroupModes(model, local)
    for shard, (centers, steps) in engine.map(program, plain, None, jnp.asarray(theta, real), shards):
        start, size = layout.starts[shard], layout.sizes[shard]
        for name, array in centers.items():
            found[name][start : start + size] = np.asarray(array)[:size]
        passes += blocks.shares[shard] * (2 * float(steps) + 2 + (0 if linear else model.dim))
    return blocks.with_effects(found), passes


@dataclass(frozen=True)
class EffectMoments:
    """Program: mean, covariance and third moments of the effects of each group at given parameters."""

    model: Model
    marginal: GroupLikelihood

    def __call__(self, data: GroupedRows, weights: jax.Array, shard: None, theta: jax.Array) -> Tree:
        def moments(vector: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            return self.marginal.moments(self.model.constrain(vector), data)

        if not data.matched:
            return *moments(theta), jax.jacfwd(lambda vector: moments(vector)[0])(theta)
        # One direction after the other: there are many effects and many parameters.
        found, along = jax.linearize(moments, theta)
        slope = lax.map(lambda direction: along(direction)[0], jnp.eye(len(theta), dtype=theta.dtype))
        return *found, jnp.moveaxis(slope, 0, 2)


def moments_of_effects(
    model: Model, marginal: GroupLikelihood, blocks: GroupedBlocks, theta: np.ndarray, engine: Engine
) -> dict[str, np.ndarray]:
    """Moments of the effects of all groups given the parameters, in the order of the groups' codes."""
    layout = blocks.layout
    found: list[np.ndarray] = []
    plain = blocks.keep([np.empty(0, np.int64)] * blocks.num_shards)
    program = EffectMoments(model, marginal)
    for shard, parts in engine.map(program, plain, None, jnp.asarray(theta, jnp.result_type(float))):
        if not found:
            found = [np.empty((len(layout.order), *a.shape[1:]), np.float32) for a in parts]
        start, size = layout.starts[shard], layout.sizes[shard]
        codes = layout.order[start : start + size]
        for target, part in zip(found, parts, strict=True):
            target[codes] = np.asarray(part)[:size]
    return dict(zip(("mean", "covariance", "third", "slope"), found, strict=True))
