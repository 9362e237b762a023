"""The sites of every group at given parameters: the mode of its effects by Newton steps, then matched moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.grouped import GroupedRows
from shardmc.mixed.marginal import Params
from shardmc.mixed.matched import LinearEffects, Normal, OfRows, tilted
from shardmc.model import Model

_MOST_STEPS = 60
_CLOSE = 1e-3
_UPDATES = 4
"""Rounds of matching after the mode. The errors of each are some percent of those of the one before."""


def blank_sites(num_groups: int, num_rows: int) -> dict[str, Any]:
    """Before anything is known: rows that say nothing."""
    return {"sites": np.zeros((num_groups, num_rows, 2), np.float32)}


@final
@dataclass(frozen=True)
class GroupSites:
    """Program: the sites of the rows of each group at given parameters, and the number of Newton steps."""

    model: Model
    local: LinearEffects

    def __call__(self, data: GroupedRows, weights: jax.Array, shard: None, theta: jax.Array) -> Any:
        laplace, matched, steps = find_sites(self.local, self.model.constrain(theta), data)
        good = jnp.all(jnp.isfinite(matched), axis=(1, 2), keepdims=True)
        return {"sites": jnp.where(good, matched, laplace)}, steps


def find_sites(
    local: LinearEffects, params: Params, data: GroupedRows
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Laplace's sites at the modes of the groups, sites with matched moments (group, row, 2), and the Newton steps."""
    columns, of_rows = local.columns(params, data.rows), local.of_rows(params, data)
    before = data.effects["sites"].astype(jnp.result_type(float))
    start = Normal.given(columns, before[..., 0], before[..., 1])
    # A group far from its last mode starts from the middle of the distribution.
    near = jnp.all(jnp.abs(start.center) < 8.0, axis=1, keepdims=True)
    alpha = jnp.where(near, start.r - start.w * start.mean, 0.0)
    steps, f = _modes(columns, of_rows, jnp.where(near, start.mean, 0.0), alpha)
    laplace = jnp.stack(_laplace(of_rows, f), axis=-1)
    matched = lax.fori_loop(0, _UPDATES, lambda _, sites: _match(columns, of_rows, sites), laplace)
    return laplace, matched, steps


def _laplace(of_rows: OfRows, f: jax.Array) -> tuple[jax.Array, jax.Array]:
    """r and w of the rows' quadratic approximations at f."""
    slope, bend = jax.jvp(jax.grad(lambda f: jnp.sum(of_rows(f))), (f,), (jnp.ones_like(f),))
    w = jnp.maximum(-bend, 0.0)
    return slope + w * f, w


def _modes(
    columns: jax.Array, of_rows: OfRows, f: jax.Array, alpha: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The number of damped Newton steps, and the modes f = A A^T alpha of the groups, (group, row)."""

    def height(f: jax.Array, alpha: jax.Array) -> jax.Array:
        return jnp.sum(of_rows(f), axis=1) - 0.5 * jnp.sum(f * alpha, axis=1)

    def searching(state: Any) -> jax.Array:
        count, _, _, _, moved = state
        return (count < _MOST_STEPS) & (jnp.max(moved) > _CLOSE)

    def advance(state: Any) -> Any:
        count, f, alpha, length, _ = state
        normal = Normal.given(columns, *_laplace(of_rows, f))
        step, turn = normal.mean - f, normal.r - normal.w * normal.mean - alpha
        here, there = height(f, alpha), height(f + length * step, alpha + length * turn)
        rises = (there >= here - 1e-5 * (1 + jnp.abs(here))) & jnp.isfinite(there)
        size = jnp.max(jnp.abs(step), axis=1)
        taken = jnp.where(rises[:, None], length, 0.0)
        f, alpha = f + taken * step, alpha + taken * turn
        length = jnp.where(rises[:, None], jnp.minimum(2 * length, 1.0), length / 4)
        moved = jnp.where((size < _CLOSE) | (length[:, 0] < 1e-6), 0.0, size)
        return count + 1, f, alpha, length, moved

    groups = f.shape[0]
    begin = (0, f, alpha, jnp.ones((groups, 1), f.dtype), jnp.full(groups, jnp.inf, f.dtype))
    steps, f, *_ = lax.while_loop(searching, advance, begin)
    return steps, f


def _match(columns: jax.Array, of_rows: OfRows, sites: jax.Array) -> jax.Array:
    """Sites with the mean and variance that each row has with its likelihood in place of its site."""
    normal = Normal.given(columns, sites[..., 0], sites[..., 1])
    _, a = tilted(normal, of_rows)
    mean = normal.mean + jnp.sqrt(normal.variance) * a[1]
    variance = normal.variance * (1 + a[2] - a[1] ** 2)
    w = jnp.maximum(normal.w + 1 / variance - 1 / normal.variance, 0.0)
    r = normal.r + mean / variance - normal.mean / normal.variance
    # Where the variance grew, w is held at 0; the mean is then kept by r alone.
    return jnp.stack([r, w], axis=-1)
