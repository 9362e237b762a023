"""Where the effects of each group lie, given the parameters: mode, curvature, change with the parameters, moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.grouped import GroupedBlocks, GroupedRows
from shardmc.engine import Engine
from shardmc.mixed.marginal import GroupLikelihood, LocalEffects, flat
from shardmc.mixed.matched import GroupSites, LinearEffects
from shardmc.mixed.rows import cholesky, inverse_lower
from shardmc.model import Model
from shardmc.types import Params, Tree

Centers: TypeAlias = Mapping[str, jax.Array | np.ndarray]
"""What is known of each group: center (group, size), slope (group, size, parameter), root (group, size, size)."""

_MOST_STEPS = 60
_FLATTEST = 0.2
_CLOSE = 1e-3
"""A group's mode is found when the next step is shorter than this, in standard deviations of its effects."""


def blank_centers(num_groups: int, size: int, num_params: int) -> Centers:
    """Before anything is known: the distribution of the effects."""
    return {
        "center": np.zeros((num_groups, size), np.float32),
        "slope": np.zeros((num_groups, size, num_params), np.float32),
        "root": np.broadcast_to(np.eye(size, dtype=np.float32), (num_groups, size, size)),
    }


def _expanded(
    local: LocalEffects, params: Params, data: GroupedRows, v: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Value (group,), gradient (group, size) and curvature (group, size, size) of the log density of v."""

    def total(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = local.log_densities(params, data, v) - 0.5 * jnp.sum(v**2, axis=1)
        return jnp.sum(values), values

    def slope(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        gradient, values = jax.grad(total, has_aux=True)(v)
        return gradient, values

    gradient, values = slope(v)
    bends = [
        jax.jvp(lambda v: slope(v)[0], (v,), (jnp.zeros_like(v).at[:, k].set(1.0),))[1]
        for k in range(local.size)
    ]
    return values, gradient, -jnp.stack(bends, axis=2)


def _newton(curvature: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Newton steps (group, size), and R with R R^T the inverse of the curvature (group, size, size).

    The curvature is never taken as flatter than a fifth of that of the effects' distribution.
    """
    back = jnp.swapaxes(inverse_lower(cholesky(curvature, _FLATTEST)), 1, 2)
    return jnp.einsum("gij,gkj,gk->gi", back, back, gradient), back


@dataclass(frozen=True)
class GroupModes:
    """Program: the mode of the effects of each group at given parameters, by damped Newton steps, and its change."""

    model: Model
    local: LocalEffects

    def __call__(self, data: GroupedRows, weights: jax.Array, shard: None, theta: jax.Array) -> Tree:
        params = self.model.constrain(theta)
        here = data.effects["center"] + data.effects["slope"] @ flat(params)
        # A group far from its last mode starts from the middle of the distribution.
        start = jnp.where(jnp.all(jnp.abs(here) < 8.0, axis=1, keepdims=True), here, 0.0)

        def searching(state: Tree) -> jax.Array:
            count, _, _, _, moved = state
            return (count < _MOST_STEPS) & (jnp.max(moved) > _CLOSE)

        def advance(state: Tree) -> Tree:
            count, v, length, best, _ = state
            values, gradient, curvature = _expanded(self.local, params, data, v)
            del best
            step, _ = _newton(curvature, gradient)
            trial = v + length[:, None] * step
            there = self.local.log_densities(params, data, trial) - 0.5 * jnp.sum(trial**2, axis=1)
            size = jnp.max(jnp.abs(step), axis=1)
            rises = (there >= values - 1e-5 * (1 + jnp.abs(values))) & jnp.isfinite(there)
            moved = jnp.where(size < _CLOSE, 0.0, size)
            v = jnp.where(rises[:, None], trial, v)
            length = jnp.where(rises, jnp.minimum(2 * length, 1.0), length / 4)
            return count + 1, v, length, there, jnp.where(length > 1e-6, moved, 0.0)

        count = start.shape[0]
        begin = (0, start, jnp.ones(count), jnp.zeros(count), jnp.full(count, jnp.inf))
        steps, v, *_ = lax.while_loop(searching, advance, begin)
        _, gradient, curvature = _expanded(self.local, params, data, v)
        step, back = _newton(curvature, gradient)
        v = v + jnp.clip(step, -0.1, 0.1)

        def slope_of(vector: jax.Array) -> jax.Array:
            moved = self.model.constrain(vector)

            def total(v: jax.Array) -> jax.Array:
                return jnp.sum(self.local.log_densities(moved, data, v))

            return jax.grad(total)(v)

        # v(theta): the gradient stays 0, so dv = H^-1 d(gradient)/d(params).
        by_theta = jax.jacfwd(slope_of)(theta)  # (group, size, dim)
        natural = jax.jacfwd(lambda t: flat(self.model.constrain(t)))(theta)  # (param, dim)
        slope = jnp.einsum("gij,gkj,gkd->gid", back, back, by_theta) @ jnp.linalg.pinv(natural)
        center = v - slope @ flat(params)
        return {"center": center, "slope": slope, "root": back}, steps


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
