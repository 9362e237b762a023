"""The likelihood of a group, integrated over its effects by adaptive quadrature, and what few nodes miss at the mode.

With u = L v, v ~ N(0, I) and L L^T the covariance of the effects, the likelihood of group g is

    L_g = integral p(y_g | L v) N(v; 0, I) dv ~ |R_g| sum_k w_k p(y_g | L z_k) exp(|zeta_k|^2 / 2 - |z_k|^2 / 2),

with nodes z_k = v_g + R_g zeta_k around the group's own mode v_g, scaled by its curvature R_g R_g^T = H_g^-1. Both
follow the parameters. Near the mode a group's log-likelihood is about b^T u - u^T P u / 2, where b moves linearly with
the parameters. If it were just that,

    H_g = I + L^T P L,    v_g = H_g^-1 L^T b.

So a sampler computes no mode, and L may change by any factor: a group with many rows keeps its mode u = L v, and with
few rows the mode shrinks with L.

With l and l' the log-likelihoods of a group by a rule with few and by one with many nodes, a sampler uses

    l(theta) + l'(mode) - l(mode) + (theta - mode)^T d(l' - l)(mode),

which has the value and the gradient of l' at the mode. Few nodes then suffice: they must only have the right curvature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Literal, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from shardmc.data.grouped import GroupedBlocks, GroupedRows
from shardmc.engine import Engine
from shardmc.mixed.rows import ByRows, cholesky, inverse_lower, log_diagonal, log_sum
from shardmc.model import Model
from shardmc.model.effects import GroupEffects
from shardmc.types import Params, Rows, Tree

if TYPE_CHECKING:
    from shardmc.mixed.matched import LinearEffects


@final
@dataclass(frozen=True)
class LocalEffects:
    """Effects that every group has for itself, independent and normal with mean 0.

    Parameters
    ----------
    log_likelihood
        (params, rows, effects, weights, counted) -> (stretch,): the weighted log-likelihood of the rows of each
        stretch, summed. `effects` is (stretch, size), `weights` is (row, stretch), and `counted` says whether all
        weights are 0 or 1.
    factor
        params -> (size, size): a lower triangular L with L L^T the covariance of a group's effects.
    size
        The number of effects of a group.
    by_rows
        The same log-likelihood in parts, if it depends on the parameters through linear predictors only.
    first
        The order of axes in leaves of `rows`: (row, stretch, ...) or (..., row, stretch).
    """

    log_likelihood: Callable[[Params, Rows, jax.Array, jax.Array, bool], jax.Array]
    factor: Callable[[Params], jax.Array]
    size: int
    by_rows: ByRows | None = None
    first: Literal["rows", "columns"] = "rows"

    def log_densities(self, params: Params, data: GroupedRows, v: jax.Array) -> jax.Array:
        """log p(y_g | L v_g) of every group, (group,), at standardised effects v (group, size)."""
        return self.log_likelihoods(params, data, v @ self.factor(params).T)

    def log_likelihoods(self, params: Params, data: GroupedRows, u: jax.Array) -> jax.Array:
        """log p(y_g | u_g) of every group, (group,), at effects u (group, size)."""
        effects = data.per_stretch(u)
        return data.per_group(self.log_likelihood(params, data.rows, effects, data.weights, data.counted))

    def middle(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array]:
        """The modes v_g (group, size) and roots R_g (group, size, size) that normal likelihoods would have."""
        root, size = self.factor(params), self.size
        slope, precision = data.effects["slope"], data.effects["precision"]
        # One matrix product for all groups: many small ones are slow.
        linear = data.effects["linear"] + (slope.reshape(-1, slope.shape[2]) @ flat(params)).reshape(-1, size)
        half = [
            [sum(root[k, i] * precision[:, k, j] for k in range(size)) for j in range(size)]
            for i in range(size)
        ]
        curvature = [
            [sum(half[i][k] * root[k, j] for k in range(size)) for j in range(size)] for i in range(size)
        ]
        matrices = jnp.stack([jnp.stack(row, axis=1) for row in curvature], axis=1)
        return newton(matrices + jnp.eye(size, dtype=root.dtype), linear @ root)


_FLATTEST = 0.2


def newton(curvature: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Newton steps (group, size), and R with R R^T the inverse of the curvature (group, size, size).

    The curvature is never taken as flatter than a fifth of that of the effects' distribution.
    """
    size = gradient.shape[1]
    inverse = inverse_lower(cholesky(curvature, _FLATTEST))
    inner = [sum(inverse[:, i, j] * gradient[:, j] for j in range(i + 1)) for i in range(size)]
    step = [sum(inverse[:, j, i] * inner[j] for j in range(i, size)) for i in range(size)]
    return jnp.stack(step, axis=1), jnp.swapaxes(inverse, 1, 2)


def product_rule(number: int, size: int) -> np.ndarray:
    """Nodes and log weights, (node, size + 1), of the product rule for a standard normal density.

    >>> rule = product_rule(3, 2)
    >>> rule.shape, round(float((np.exp(rule[:, 2]) * rule[:, 0] ** 4).sum()), 6)
    ((9, 3), 3.0)
    """
    points, weights = np.polynomial.hermite_e.hermegauss(number)
    logs = np.log(weights / weights.sum())
    nodes = [
        [*point, sum(weight)]
        for point, weight in zip(product(points, repeat=size), product(logs, repeat=size), strict=True)
    ]
    return np.array(nodes)


class GroupLikelihood(ABC):
    """The log-likelihood of groups, (params, rows) -> (group,), and what is known about their effects."""

    local: LocalEffects | LinearEffects | None
    """The effects, if they are integrated out by quadrature or matched moments; None if there is a closed form."""

    @abstractmethod
    def __call__(self, params: Params, data: GroupedRows) -> jax.Array:
        """Log-likelihood of every group, (group,)."""

    def sds_of_parameters(self, model: Model) -> np.ndarray:
        """The coordinates of sds of effects that are parameters themselves."""
        return np.zeros(0, int)

    def with_observed_sds(self, model: Model, theta: np.ndarray) -> np.ndarray:
        """Parameters with these sds set to those of the effects."""
        return theta

    @abstractmethod
    def moments(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Mean (group, size), covariance (group, size, size) and third central moments of a group's effects."""


@final
@dataclass(frozen=True)
class Marginal:
    """The log-likelihood of groups: (params, rows) -> (group,), with the effects integrated out.

    The number of nodes is that of the rows' own rule, which may be corrected by one with more nodes (`corrections`).
    """

    local: LocalEffects

    def __call__(self, params: Params, data: GroupedRows) -> jax.Array:
        middle = self.local.middle(params, data)
        found = log_diagonal(middle[1]) + self._log_sum(params, data, middle)
        if "tilt" not in data.effects:
            return found
        return found + data.effects["tilt"] @ flat(params) + data.effects["level"]

    def _log_sum(self, params: Params, data: GroupedRows, middle: tuple[jax.Array, jax.Array]) -> jax.Array:
        """The logarithm of the sum over nodes, (group,)."""
        by_rows = self.local.by_rows
        if by_rows is None:
            values, _ = self.at_nodes(params, data, middle)
            return jax.nn.logsumexp(values, axis=1)
        z, logs = self._nodes(data, middle)
        root, size = self.local.factor(params), self.local.size
        effects = jnp.stack([sum(root[i, j] * z[:, j] for j in range(size)) for i in range(size)], axis=1)
        if not data.joined:
            effects = jnp.moveaxis(data.per_stretch(jnp.moveaxis(effects, 2, 0)), 0, 2)
        return log_sum(by_rows, data, by_rows.predictor(params, data.rows), effects, logs)

    def at_nodes(
        self, params: Params, data: GroupedRows, middle: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Log terms of the sum over nodes (group, node), and the nodes (group, node, size)."""
        z, logs = self._nodes(data, middle)
        by_group = jnp.moveaxis(z, 2, 0)

        def at(node: jax.Array) -> jax.Array:
            return self.local.log_densities(params, data, node)

        return (jax.vmap(at)(jnp.swapaxes(z, 1, 2)) + logs).T, by_group

    def _nodes(self, data: GroupedRows, middle: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Nodes (node, size, group), and logarithms of the factors of the likelihood there, (node, group)."""
        assert data.rule is not None
        rule, size = data.rule.astype(jnp.result_type(float)), self.local.size
        zeta, log_weights = rule[:, :-1], rule[:, -1]
        mode, root = middle
        steps = [sum(root[:, i, j] * zeta[:, None, j] for j in range(i, size)) for i in range(size)]
        z = mode.T + jnp.stack(steps, axis=1)
        correction = 0.5 * jnp.sum(zeta**2, axis=1) + log_weights
        return z, correction[:, None] - 0.5 * sum(z[:, i] ** 2 for i in range(size))

    def moments(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Mean (group, size), covariance (group, size, size) and third central moments of a group's effects."""
        values, z = self.at_nodes(params, data, self.local.middle(params, data))
        share = jax.nn.softmax(values, axis=1)
        effects = z @ self.local.factor(params).T
        mean = jnp.einsum("gk,gkq->gq", share, effects)
        gap = effects - mean[:, None]
        return mean, jnp.einsum("gk,gki,gkj->gij", share, gap, gap), jnp.einsum("gk,gki->gi", share, gap**3)


def flat(params: Params) -> jax.Array:
    """All parameters as one vector, in the order of their names."""
    return ravel_pytree(dict(params))[0]


@final
class OwnGroupLikelihood(GroupLikelihood):
    """The log-likelihood of groups of a model that declares their effects, by quadrature."""

    def __init__(self, model: Model, effects: GroupEffects) -> None:
        self.function, self.effects = model.log_likelihood_function, effects
        self.fingerprint_text = f"effects {effects.names} of groups {effects.column}"
        self.fingerprint_function = model.at_typical_effects().log_likelihood_function
        self.local = LocalEffects(self.of_stretches, effects.root, effects.size)
        self.marginal = Marginal(self.local)

    def __call__(self, params: Params, data: GroupedRows) -> jax.Array:
        return self.marginal(params, data)

    def moments(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Moments of the effects of each group given the parameters, their means included."""
        mean, covariance, third = self.marginal.moments(params, data)
        return mean + self.effects.means(params), covariance, third

    def of_stretches(
        self, params: Params, rows: Rows, effects: jax.Array, weights: jax.Array, counted: bool
    ) -> jax.Array:
        """The log-likelihood of stretches of rows (stretch,), given the effects (stretch, effect) less their means."""
        values = self._of_rows(dict(params), rows, effects, weights.shape)
        if not counted:
            values = weights * values
        return jnp.sum(jnp.where(weights > 0, values, 0.0), axis=0)

    def _of_rows(self, params: Params, rows: Rows, effects: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """The log-likelihood of every row, (row, stretch): the user's function sees rows one after the other."""
        of_group = self.effects.means(params) + effects
        of_rows = jnp.broadcast_to(of_group, (*shape, self.effects.size))
        flat, each = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (rows, of_rows))
        return self.function(params, flat, self.effects.named(each)).reshape(shape)


@lru_cache(maxsize=8)
def integrated(model: Model) -> Model:
    """The model of groups: the same object, with its compiled programs, when the same model comes again."""
    assert model.effects is not None
    return model.with_likelihood(OwnGroupLikelihood(model, model.effects))


@dataclass(frozen=True)
class RuleErrors:
    """Program: what a rule lacks in the log-likelihood of each group (group,), as tilt @ params + level."""

    model: Model
    likelihood: GroupLikelihood

    def __call__(
        self, data: GroupedRows, weights: jax.Array, shard: None, shared: tuple[jax.Array, ...]
    ) -> Tree:
        theta, *rules = shared
        point, as_params = ravel_pytree(dict(self.model.constrain(theta)))

        def missing(vector: jax.Array) -> jax.Array:
            few, many = (self.likelihood(as_params(vector), replace(data, rule=rule)) for rule in rules)
            return many - few

        value, along = jax.linearize(missing, point)
        tilt = lax.map(along, jnp.eye(len(point), dtype=point.dtype)).T
        return {"tilt": tilt, "level": value - tilt @ point}


def corrected(
    model: Model, likelihood: GroupLikelihood, blocks: GroupedBlocks, theta: np.ndarray, engine: Engine
) -> tuple[GroupedBlocks, float]:
    """Blocks whose rule is corrected by the finer one at theta, and how often all rows were evaluated."""
    assert blocks.rule is not None
    assert blocks.finer is not None
    layout = blocks.layout
    real = jnp.result_type(float)
    shared = tuple(jnp.asarray(each, real) for each in (theta, blocks.rule, blocks.finer))
    plain = replace(blocks, rule=None, finer=None).keep([np.empty(0, np.int64)] * blocks.num_shards)
    found: dict[str, np.ndarray] = {}
    for shard, parts in engine.map(RuleErrors(model, likelihood), plain, None, shared):
        start, size = layout.starts[shard], layout.sizes[shard]
        for name, part in parts.items():
            target = found.setdefault(name, np.empty((len(layout.order), *part.shape[1:]), np.float32))
            target[start : start + size] = np.asarray(part)[:size]
    count = 2.0 * (1 + found["tilt"].shape[1])
    return blocks.with_effects({**blocks.groups.rows, **found}), count
