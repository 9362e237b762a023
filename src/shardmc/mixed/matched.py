"""The likelihood of a group with many effects: every row becomes a normal factor with matching moments.

With u = L v, v ~ N(0, I), rows i of a group have eta_i = offset_i + f_i, f = A v, A = Z L. Each row's likelihood is
replaced by a site, exp(r_i f_i - w_i f_i^2 / 2), so that the effects have a normal distribution q given all sites. With
F_i = p(y_i | f_i) / site_i, normalised by its mean under q,

    log L_g = log Z(sites) + sum_i log E_q[p(y_i | f_i) / site_i] + log E_q[prod_i F_i].

The first two terms are those of expectation propagation; the second is quadrature in one dimension per row. For the
last one, F_i = sum_l a_il He_l, in Hermite polynomials of the standardised f_i, gives by Mehler's formula

    E_q[prod_i F_i] ~ 1 + sum_{i<j} sum_l a_il a_jl rho_ij^l / l!.

The sites of each group are found once, at the mode of the parameters, where a_i1 = a_i2 = 0. A sampler keeps them: the
terms of orders 1 and 2 undo what that changes. Laplace's approximation has one node per row and none of these terms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.grouped import GroupedRows
from shardmc.mixed.climb import FARTHEST, Point, climb
from shardmc.mixed.rows import conditioned, diagonal, inverse_of_sum
from shardmc.model import Model
from shardmc.types import Params, Rows, Tree

_UPDATES = 4
"""Rounds of matching after the mode. The errors of each are some percent of those of the one before."""


def blank_sites(num_groups: int, num_rows: int) -> dict[str, np.ndarray]:
    """Before anything is known: rows that say nothing."""
    return {"sites": np.zeros((num_groups, num_rows, 2), np.float32)}


@final
@dataclass(frozen=True)
class GroupSites:
    """Program: the sites of the rows of each group at given parameters, and the number of Newton steps."""

    model: Model
    local: LinearEffects

    def __call__(self, data: GroupedRows, weights: jax.Array, shard: None, theta: jax.Array) -> Tree:
        laplace, matched, steps = find_sites(self.local, self.model.constrain(theta), data)
        good = jnp.all(jnp.isfinite(matched), axis=(1, 2), keepdims=True)
        return {"sites": jnp.where(good, matched, laplace)}, steps


def find_sites(
    local: LinearEffects, params: Params, data: GroupedRows
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Laplace's sites at the modes of the groups, sites with matched moments (group, row, 2), and the Newton steps."""
    columns, of_rows = local.columns(params, data.rows), local.of_rows(params, data)
    before = data.effects["sites"].astype(jnp.result_type(float))
    start = GroupNormal.given(columns, before[..., 0], before[..., 1])
    # A group far from its last mode starts from the middle of the distribution.
    near = jnp.all(jnp.abs(start.center) < FARTHEST, axis=1, keepdims=True)
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

    def height(point: Point) -> jax.Array:
        f, alpha = point
        return jnp.sum(of_rows(f), axis=1) - 0.5 * jnp.sum(f * alpha, axis=1)

    def newton_step(point: Point) -> tuple[jax.Array, Point]:
        f, alpha = point
        normal = GroupNormal.given(columns, *_laplace(of_rows, f))
        return height(point), (normal.mean - f, normal.r - normal.w * normal.mean - alpha)

    steps, (f, _) = climb(height, newton_step, (f, alpha))
    return steps, f


def _match(columns: jax.Array, of_rows: OfRows, sites: jax.Array) -> jax.Array:
    """Sites with the mean and variance that each row has with its likelihood in place of its site."""
    normal = GroupNormal.given(columns, sites[..., 0], sites[..., 1])
    _, a = tilted(normal, of_rows)
    mean = normal.mean + jnp.sqrt(normal.variance) * a[1]
    variance = normal.variance * (1 + a[2] - a[1] ** 2)
    w = jnp.maximum(normal.w + 1 / variance - 1 / normal.variance, 0.0)
    r = normal.r + mean / variance - normal.mean / normal.variance
    # Where the variance grew, w is held at 0; the mean is then kept by r alone.
    return jnp.stack([r, w], axis=-1)


OfRows = Callable[[jax.Array], jax.Array]
"""f -> the weighted log-likelihood of each row, both (group, row)."""
NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
_LOG_WEIGHTS = np.log(_WEIGHTS / _WEIGHTS.sum())
_HERMITE = np.stack([np.polynomial.hermite_e.HermiteE.basis(order)(NODES) for order in range(5)])
_FACTORIALS = (1.0, 1.0, 2.0, 6.0, 24.0)
_MOST_PAIRED = 160
"""Rows of a group up to which all pairs of rows are computed. Beyond, orders 1 and 2 are sums over effects."""
_LEAST_VARIANCE = 1e-10


@final
@dataclass(frozen=True)
class LinearEffects:
    """Effects that every group has for itself, normal with mean 0, added to the linear predictor of its rows.

    Parameters
    ----------
    offset
        (params, rows) -> (group, row): the linear predictor without these effects.
    columns
        (params, rows) -> (group, row, size): A = Z L, the columns times L, with L L^T the covariance of the effects.
    log_likelihood
        (params, rows, eta) -> (group, row): of each row.
    factor
        params -> (size, size): L.
    size
        The number of effects of a group.
    """

    offset: Callable[[Params, Rows], jax.Array]
    columns: Callable[[Params, Rows], jax.Array]
    log_likelihood: Callable[[Params, Rows, jax.Array], jax.Array]
    factor: Callable[[Params], jax.Array]
    size: int

    def of_rows(self, params: Params, data: GroupedRows) -> OfRows:
        """f -> the weighted log-likelihood of each row, both (group, row)."""
        offset = self.offset(params, data.rows)

        def log_likelihood(f: jax.Array) -> jax.Array:
            return data.weights * self.log_likelihood(params, data.rows, offset + f)

        return log_likelihood


@final
@dataclass(frozen=True)
class GroupNormal:
    """The distribution of the rows' f = A v given the sites, group by group."""

    columns: jax.Array  # (group, row, size) A
    r: jax.Array  # (group, row)
    w: jax.Array  # (group, row)
    mean: jax.Array  # (group, row)
    variance: jax.Array  # (group, row)
    covariance: jax.Array | None  # (group, row, row); None for very many rows
    effects: (
        jax.Array | None
    )  # (group, size, size) covariance of v; None if there are fewer rows than effects
    value: jax.Array  # (group,) log Z(sites)

    @staticmethod
    def given(columns: jax.Array, r: jax.Array, w: jax.Array) -> GroupNormal:
        count, size = columns.shape[1:]
        effects = covariance = back = None
        if count <= size:
            covariance, log_det = conditioned(columns @ jnp.swapaxes(columns, 1, 2), w)
        else:
            effects, log_det = inverse_of_sum(jnp.swapaxes(columns, 1, 2) @ (w[:, :, None] * columns))
            back = columns @ effects
            if count <= _MOST_PAIRED:
                covariance = back @ jnp.swapaxes(columns, 1, 2)
        if covariance is None:
            assert back is not None
            variance = jnp.sum(back * columns, axis=2)
            mean = jnp.einsum("gnq,gq->gn", back, jnp.einsum("gnq,gn->gq", columns, r))
        else:
            variance, mean = diagonal(covariance), jnp.einsum("gij,gj->gi", covariance, r)
        value = 0.5 * (jnp.sum(mean * r, axis=1) - log_det)
        variance = jnp.maximum(variance, _LEAST_VARIANCE)
        return GroupNormal(columns, r, w, mean, variance, covariance, effects, value)

    @property
    def center(self) -> jax.Array:
        """The mean of the standardised effects v, (group, size)."""
        return jnp.einsum("gnq,gn->gq", self.columns, self.r - self.w * self.mean)

    @property
    def crossed(self) -> jax.Array:
        """The covariance of v and f, (group, size, row)."""
        across = jnp.swapaxes(self.columns, 1, 2)
        if self.effects is not None:
            return self.effects @ across
        assert self.covariance is not None
        return across - (across * self.w[:, None]) @ self.covariance

    @property
    def spread(self) -> jax.Array:
        """The covariance of v, (group, size, size)."""
        if self.effects is not None:
            return self.effects
        eye = jnp.eye(self.columns.shape[2], dtype=self.columns.dtype)
        return eye - (self.crossed * self.w[:, None]) @ self.columns

    def log_ratio(self, log_likelihood: jax.Array, f: jax.Array) -> jax.Array:
        """log p(y_i | f_i) - log site_i, (group, row)."""
        return log_likelihood - self.r * f + 0.5 * self.w * f**2

    def pairs(self, a: list[jax.Array]) -> jax.Array:
        """sum_{i<j} sum_l a_il a_jl rho_ij^l / l!, (group,), for the Hermite coefficients a[l] (group, row)."""
        sd = jnp.sqrt(self.variance)
        own = sum(jnp.sum(a[order] ** 2, axis=1) / _FACTORIALS[order] for order in range(1, 5))
        if self.covariance is not None:
            rho = self.covariance / (sd[:, :, None] * sd[:, None, :])
            total = jnp.zeros_like(rho)
            for order in range(4, 0, -1):
                total = rho * (total + a[order][:, :, None] * a[order][:, None] / _FACTORIALS[order])
            return 0.5 * (jnp.sum(total, axis=(1, 2)) - own)
        assert self.effects is not None
        scaled = self.columns / sd[:, :, None]
        first = jnp.einsum("gnq,gn->gq", scaled, a[1])
        second = jnp.swapaxes(scaled, 1, 2) @ (a[2][:, :, None] * scaled) @ self.effects
        total = jnp.einsum("gi,gij,gj->g", first, self.effects, first)
        total = total + 0.5 * jnp.sum(second * jnp.swapaxes(second, 1, 2), axis=(1, 2))
        return 0.5 * (total - sum(jnp.sum(a[order] ** 2, axis=1) / _FACTORIALS[order] for order in (1, 2)))


def tilted(normal: GroupNormal, of_rows: OfRows) -> tuple[jax.Array, list[jax.Array]]:
    """log E_q[p(y_i | f_i) / site_i] and the Hermite coefficients a[l] of F_i, each (group, row)."""
    # Nodes come first: sums over them are then sums of long vectors.
    nodes, log_weights = (
        jnp.asarray(given, normal.mean.dtype)[:, None, None] for given in (NODES, _LOG_WEIGHTS)
    )
    f = normal.mean + nodes * jnp.sqrt(normal.variance)
    logs = normal.log_ratio(jax.vmap(of_rows)(f), f) + log_weights
    largest = lax.stop_gradient(jnp.max(logs, axis=0))
    sums = jnp.tensordot(jnp.asarray(_HERMITE, f.dtype), jnp.exp(logs - largest), axes=1)
    total = sums[0]
    coefficients = [each / total for each in sums]
    return largest + jnp.log(total), coefficients


@final
@dataclass(frozen=True)
class Matched:
    """The log-likelihood of groups: (params, rows) -> (group,), with many effects integrated out.

    With a rule for several dimensions, `data.rule`, the last term is the mean over its points instead, for the
    certificate: importance sampling of the effects around their normal distribution given the sites.
    """

    local: LinearEffects

    def __call__(self, params: Params, data: GroupedRows) -> jax.Array:
        normal, of_rows = self.normal(params, data)
        constants, coefficients = tilted(normal, of_rows)
        value = normal.value + jnp.sum(constants, axis=1)
        pairs = normal.pairs(coefficients)
        if data.rule is None:
            # Far from where the sites were found the sum is large, and as a logarithm it stays moderate.
            return value + jnp.log1p(jnp.maximum(pairs, -0.9))
        return value + _log_mean_of_product(normal, of_rows, constants, pairs, data.rule)

    def normal(self, params: Params, data: GroupedRows) -> tuple[GroupNormal, OfRows]:
        """The distribution given the sites of the rows, and the log-likelihood of each row."""
        sites = data.effects["sites"].astype(jnp.result_type(float))
        columns = self.local.columns(params, data.rows)
        return GroupNormal.given(columns, sites[..., 0], sites[..., 1]), self.local.of_rows(params, data)

    def moments(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Mean (group, size), covariance (group, size, size) and third central moments of a group's effects."""
        normal, of_rows = self.normal(params, data)
        _, a = tilted(normal, of_rows)
        factor = self.local.factor(params)
        sd = jnp.sqrt(normal.variance)
        along = jnp.einsum("ij,gjn->gin", factor, normal.crossed) / sd[:, None]
        mean = normal.center @ factor.T + jnp.einsum("gin,gn->gi", along, a[1])
        covariance = jnp.einsum("ij,gjk,lk->gil", factor, normal.spread, factor)
        return mean, covariance, jnp.einsum("gin,gn->gi", along**3, a[3])


def _log_mean_of_product(
    normal: GroupNormal, of_rows: OfRows, constants: jax.Array, pairs: jax.Array, rule: jax.Array
) -> jax.Array:
    """log E_q[prod_i F_i] by a mean over points (point, dimension) of a standard normal distribution.

    With G_i = F_i - 1, the product is 1 + sum_i G_i + sum_{i<j} G_i G_j + ... The means of single factors are 0 and
    those of pairs are known, so that only what is left is averaged over the points.
    """
    paired = normal.covariance is not None
    if normal.effects is None:
        assert normal.covariance is not None
        # Rows may be equal, and padding is: a little more on the diagonal keeps the matrix regular.
        jitter = 1e-5 * jnp.eye(normal.mean.shape[1]) * normal.variance[:, None]
        root = jnp.linalg.cholesky(normal.covariance + jitter)
    else:
        root = normal.columns @ jnp.linalg.cholesky(normal.effects)

    def at(point: jax.Array) -> jax.Array:
        f = normal.mean + root @ point[: root.shape[2]]
        logs = normal.log_ratio(of_rows(f), f) - constants
        gains = jnp.expm1(logs)
        first = jnp.sum(gains, axis=1)
        second = 0.5 * (first**2 - jnp.sum(gains**2, axis=1)) if paired else 0.0
        return jnp.expm1(jnp.sum(logs, axis=1)) - first - second

    total, _ = lax.scan(
        jax.checkpoint(lambda total, point: (total + at(point), None)),
        jnp.zeros_like(normal.value),
        rule.astype(jnp.result_type(float)),
    )
    known = 1 + pairs if paired else 1.0
    return jnp.log(jnp.maximum(known + total / rule.shape[0], 1e-3))


def points_for(size: int, count: int) -> np.ndarray:
    """Points (point, size) that are spread like a standard normal distribution, each with its mirror image.

    >>> points = points_for(3, 64)
    >>> points.shape, bool(np.abs(points.mean(axis=0)).max() < 1e-6)
    ((64, 3), True)
    """
    from scipy.stats import norm, qmc

    half = norm.ppf(qmc.Sobol(size, rng=0).random(count // 2))
    half = half / np.sqrt(np.mean(half**2, axis=0))
    return np.concatenate([half, -half])
