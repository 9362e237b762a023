"""The model of a formula with group terms: effects of the largest factor are integrated out, others are parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.grouped import GroupedRows
from shardmc.data.reduction import CONSTANT, Reduction
from shardmc.formulas.families.family import Declared
from shardmc.formulas.groups import Factor
from shardmc.formulas.priors import Prior, to_four_digits
from shardmc.mixed.marginal import GroupLikelihood, LocalEffects, Marginal
from shardmc.mixed.matched import LinearEffects, Matched
from shardmc.mixed.rows import ByRows, cholesky, inverse_lower, log_diagonal, solve_lower
from shardmc.model import Model, Parameter
from shardmc.types import Params, Rows

if TYPE_CHECKING:
    from shardmc.formulas.design import Design
    from shardmc.formulas.linear_model import RowLogLikelihood


MOST_BY_QUADRATURE = 3
"""Effects of a group that quadrature integrates out; more are integrated out by matched moments."""


def needs_whole_groups(design: Design) -> bool:
    """Whether the likelihood of a group needs all its rows at once: that of many effects."""
    unit, exact = design.unit, design.family.integrates_exactly
    return unit is not None and len(unit.effects) > MOST_BY_QUADRATURE and not exact


def _columns(rows: Rows) -> jax.Array | None:
    return rows.get("columns")


def sd_parameter(factor: Factor) -> str:
    return f"sd_{factor.name}"


def correlation_parameter(factor: Factor, number: int) -> str:
    """The Cholesky factor of a correlated set of effects."""
    return f"cor_{factor.name}" + (f"_{number + 1}" if number else "")


def effect_parameter(factor: Factor) -> str:
    """The name of the effects of a factor that is not integrated out, (level, effect)."""
    return f"effects_{factor.name}"


def sampled_parameter(factor: Factor) -> str:
    """The parameter that holds these effects, or the effects divided by their sd."""
    return f"standardised_{factor.name}" if factor.standardised else effect_parameter(factor)


def effects_of(factor: Factor, params: Params) -> jax.Array:
    """The effects of a factor that is not integrated out, in the units of the original columns, (level, effect)."""
    sampled = params[sampled_parameter(factor)]
    if not factor.standardised:
        return sampled
    return sampled @ root_of_covariance(factor, params).T / jnp.asarray(factor.units, sampled.dtype)


def parameters_of(factor: Factor) -> dict[str, Declared]:
    """Parameters that a factor adds to a model, with their shapes and supports."""
    found: dict[str, Declared] = {sd_parameter(factor): Parameter(len(factor.effects), "positive")}
    for number, (_, size) in enumerate(factor.correlated):
        found[correlation_parameter(factor, number)] = Parameter((size, size), "corr_cholesky")
    if not factor.integrated:
        found[sampled_parameter(factor)] = (len(factor.levels), len(factor.effects))
    return found


def root_of_covariance(factor: Factor, params: Params) -> jax.Array:
    """L with L L^T the covariance of a group's effects, per unit of scaled columns, (effect, effect)."""
    sds = params[sd_parameter(factor)] * jnp.asarray(factor.units, jnp.result_type(float))
    root = jnp.eye(len(factor.effects), dtype=sds.dtype)
    for number, (first, size) in enumerate(factor.correlated):
        inside = params[correlation_parameter(factor, number)]
        root = root.at[first : first + size, first : first + size].set(inside)
    return sds[:, None] * root


@final
class GroupLogLikelihood(GroupLikelihood):
    """The log-likelihood of groups, with the effects of one factor integrated out: exactly for a normal response."""

    def __init__(self, design: Design, of_rows: RowLogLikelihood) -> None:
        factor = design.unit
        assert factor is not None
        self.design, self.of_rows, self.factor = design, of_rows, factor
        self.fingerprint_text, self.fingerprint_function = design.label, of_rows
        self.local: LocalEffects | LinearEffects | None = None
        self.marginal: Marginal | Matched | None = None
        if needs_whole_groups(design):
            self.local = LinearEffects(
                self.linear_predictor, self.columns, self.of_etas, self.root, len(factor.effects)
            )
            self.marginal = Matched(self.local)
        elif not design.family.integrates_exactly:
            parts = ByRows(
                self.linear_predictor_of_columns, _columns, self.sums, self.shifted_sums, self.slopes
            )
            family = design.family
            plain = not family.auxiliaries and not family.location_is_auxiliary
            self.local = LocalEffects(
                self.of_stretches, self.root, len(factor.effects), parts if plain else None, "columns"
            )
            self.marginal = Marginal(self.local)

    def __call__(self, params: Params, data: GroupedRows) -> jax.Array:
        return self._closed(params, data)[0] if self.marginal is None else self.marginal(params, data)

    def moments(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Moments of the effects of each group given the parameters, in the units of the original columns."""
        scale = 1 / jnp.asarray(self.factor.units, jnp.result_type(float))
        if self.marginal is None:
            _, mean, covariance = self._closed(params, data)
            third = jnp.zeros_like(mean)
        else:
            mean, covariance, third = self.marginal.moments(params, data)
        return mean * scale, covariance * scale[:, None] * scale, third * scale**3

    def sds_of_parameters(self, model: Model) -> np.ndarray:
        names = {n for factor in self._as_parameters if not factor.standardised for n in factor.sd_names}
        return np.array([k for k, name in enumerate(model.names) if name in names], int)

    def with_observed_sds(self, model: Model, theta: np.ndarray) -> np.ndarray:
        params = {name: np.array(value) for name, value in model.constrain(theta).items()}
        for factor in self._as_parameters:
            if factor.standardised:
                continue
            effects = params[effect_parameter(factor)]
            params[sd_parameter(factor)] = np.maximum(np.sqrt(np.mean(effects**2, axis=0)), 1e-3)
        return np.asarray(model.unconstrain(params), np.float64)

    @property
    def _as_parameters(self) -> list[Factor]:
        return [factor for factor in self.design.factors if not factor.integrated]

    def root(self, params: Params) -> jax.Array:
        return root_of_covariance(self.factor, params)

    def of_stretches(
        self, params: Params, rows: Rows, effects: jax.Array, weights: jax.Array, counted: bool
    ) -> jax.Array:
        """The log-likelihood of stretches (stretch,), given rows (..., row, stretch) and effects (stretch, effect)."""
        eta = self.linear_predictor_of_columns(params, rows)
        effects = effects / self.design.scaling.response_scale
        columns = rows.get("columns")
        if columns is None:
            eta = eta + effects[:, 0]
        else:
            # Written out, because a matrix product would not be fused with what follows.
            eta = sum((columns[k] * effects[:, k] for k in range(effects.shape[1])), eta)
        return self.design.family.log_likelihood_of_groups(
            eta,
            jnp.moveaxis(rows["response"], (-2, -1), (0, 1)),  # it may have several numbers
            self.of_rows.auxiliary(params),
            rows.get("trials"),
            weights,
            counted=counted,
        )

    def sums(self, rows: Rows, eta: jax.Array, weights: jax.Array, counted: bool) -> jax.Array:
        """Sums of log-likelihoods over the first axis, given linear predictors."""
        return self.design.family.log_likelihood_of_groups(
            eta, rows["response"], {}, rows.get("trials"), weights, counted=counted
        )

    def shifted_sums(
        self, rows: Rows, eta: jax.Array, shifts: jax.Array, weights: jax.Array, counted: bool
    ) -> jax.Array:
        """The same at linear predictors plus shifts, each of which is that of a node and a stretch."""
        return self.design.family.log_likelihood_at_shifts(
            eta, shifts, rows["response"], rows.get("trials"), weights, counted=counted
        )

    def slopes(self, rows: Rows, eta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """First and second derivatives of each row's log-likelihood by its linear predictor."""
        return self.design.family.slopes(eta, rows["response"], rows.get("trials"))

    def columns(self, params: Params, rows: Rows) -> jax.Array:
        """The columns of the effects times the root of their covariance, (group, row, effect)."""
        root = self.root(params) / self.design.scaling.response_scale
        if self.factor.correlated:
            return rows["columns"] @ root
        return rows["columns"] * jnp.diagonal(root)

    def of_etas(self, params: Params, rows: Rows, eta: jax.Array) -> jax.Array:
        """The log-likelihood of rows, (group, row), given their linear predictors."""
        auxiliary = self.of_rows.auxiliary(params)
        return self.design.family.log_likelihood(eta, rows["response"], auxiliary, rows.get("trials"))

    def linear_predictor_of_columns(self, params: Params, rows: Rows) -> jax.Array:
        """eta without the effects that are integrated out, (row, stretch), of rows (..., row, stretch)."""
        eta = self.of_rows.linear_predictor_of_columns(params, rows)
        for number, factor in enumerate(self._as_parameters):
            chosen = jnp.moveaxis(effects_of(factor, params)[rows[f"level{number}"]], 2, 0)
            columns = rows.get(f"columns{number}")
            if columns is not None:
                chosen = chosen * columns * jnp.asarray(factor.units, columns.dtype)[:, None, None]
            eta = eta + jnp.sum(chosen, axis=0) / self.design.scaling.response_scale
        return eta

    def linear_predictor(self, params: Params, rows: Rows) -> jax.Array:
        """eta without the effects that are integrated out, in the response's order of rows and stretches."""
        flat = {name: leaf.reshape(-1, *leaf.shape[2:]) for name, leaf in rows.items()}
        eta = self.of_rows.linear_predictor(params, flat, None)
        for number, factor in enumerate(self._as_parameters):
            chosen = effects_of(factor, params)[flat[f"level{number}"]]
            columns = flat.get(f"columns{number}")
            if columns is not None:
                chosen = chosen * columns * jnp.asarray(factor.units, columns.dtype)
            elif CONSTANT in flat:
                chosen = chosen * flat[CONSTANT][:, None]
            eta = eta + jnp.sum(chosen, axis=1) / self.design.scaling.response_scale
        return eta.reshape(rows["response"].shape[:2])

    def _closed(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """For a normal response: log-likelihood, and mean and covariance of the effects.

        With residuals r, columns Z and A = I + L^T Z^T Z L / sigma^2, twice the log-likelihood of a group is
        -2 n log sigma - r^T r / sigma^2 + b^T A^-1 b - log |A|, where b = L^T Z^T r / sigma^2. Rows may be those that
        a `Reduction` made.
        """
        rows, weights = data.rows, data.weights
        once = weights * rows[CONSTANT] if CONSTANT in rows else weights
        sigma = self.of_rows.auxiliary(params)["sigma"]
        root = self.root(params) / (sigma * self.design.scaling.response_scale)
        residual = (rows["response"] - self.linear_predictor(params, rows)) / sigma
        if "columns" in rows:
            weighted = weights[..., None] * rows["columns"]
            products = data.per_group(jnp.einsum("smi,smj->sij", weighted, rows["columns"]))
            crossed = data.per_group(jnp.einsum("smi,sm->si", weighted, residual))
        else:
            products = data.per_group(jnp.sum(once, axis=1))[:, None, None]
            crossed = data.per_group(jnp.sum(once * residual, axis=1))[:, None]
        squares = data.per_group(jnp.sum(weights * residual**2, axis=1))
        count = data.per_group(jnp.sum(once, axis=1))
        matrix = jnp.eye(root.shape[0]) + jnp.einsum("ji,gjk,kl->gil", root, products, root)
        lower = cholesky(matrix)
        solved = solve_lower(lower, crossed @ root)
        value = -count * jnp.log(sigma) + 0.5 * (jnp.sum(solved**2, axis=1) - squares) - log_diagonal(lower)
        # L^T of A^-1 = L^T L, so that the covariance of the effects is `back` times its transpose.
        back = jnp.einsum("ij,gkj->gik", self.root(params), inverse_lower(lower))
        return value, jnp.einsum("gij,gj->gi", back, solved), jnp.einsum("gij,gkj->gik", back, back)


def reduction_of(design: Design) -> Reduction | None:
    """How rows of a group can be replaced by fewer ones with the same likelihood; None if that is impossible."""
    others = [factor for factor in design.factors if not factor.integrated]
    if not design.family.integrates_exactly or not all(factor.only_intercept for factor in others):
        return None
    return Reduction(tuple(f"level{number}" for number in range(len(others))))


def log_prior_of(factor: Factor, priors: Mapping[str, Prior], params: Params) -> jax.Array:
    """Log prior of sds, correlations and, if they are parameters, effects."""
    from numpyro.distributions import LKJCholesky

    sds = params[sd_parameter(factor)]
    total = sum((priors[n].log_density(sds[k]) for k, n in enumerate(factor.sd_names)), jnp.zeros(()))
    for number, (_, size) in enumerate(factor.correlated):
        concentration = priors[f"cor_{factor.name}"].arguments[0]
        total = total + LKJCholesky(size, concentration).log_prob(
            params[correlation_parameter(factor, number)]
        )
    if factor.standardised:
        total = total - 0.5 * jnp.sum(params[sampled_parameter(factor)] ** 2)
    elif not factor.integrated:
        effects = params[effect_parameter(factor)] * jnp.asarray(factor.units)
        root = root_of_covariance(factor, params)
        scaled = jax.scipy.linalg.solve_triangular(root, effects.T, lower=True)
        total = total - 0.5 * jnp.sum(scaled**2) - len(factor.levels) * jnp.sum(jnp.log(jnp.diagonal(root)))
    return total


def default_priors(factor: Factor, scale: float) -> dict[str, Prior]:
    """Priors of a factor's sds and correlations. `scale`: prior sd of a coefficient of a column with sd 1."""
    found = {
        name: Prior("half_student_t", (3.0, to_four_digits(scale / unit)))
        for name, unit in zip(factor.sd_names, factor.units, strict=True)
    }
    return found | ({f"cor_{factor.name}": Prior("lkj", (1.0,))} if factor.correlated else {})


def start_of(factor: Factor, scale: float) -> dict[str, np.ndarray]:
    """Where the search for the mode starts: effects of moderate size."""
    return {sd_parameter(factor): 0.2 * scale / factor.units}


def sampled_names(factor: Factor) -> dict[str, str]:
    """Names of a factor's coordinates: as the model has them -> as they are shown."""
    found = {f"{sd_parameter(factor)}[{k}]": name for k, name in enumerate(factor.sd_names)}
    labels = iter(factor.correlation_names)
    for number, (_, size) in enumerate(factor.correlated):
        name = correlation_parameter(factor, number)
        found |= {f"{name}[{i},{j}]": next(labels) for i in range(size) for j in range(i)}
    if not factor.integrated and factor.only_intercept:
        name = sampled_parameter(factor)
        found |= {f"{name}[{k},0]": f"{name}[{k}]" for k in range(len(factor.levels))}
    return found


def named_factor_draws(factor: Factor, draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws of sds and correlations (and effects) by name."""
    found = {name: draws[sd_parameter(factor)][:, k] for k, name in enumerate(factor.sd_names)}
    values = []
    for number, (_, size) in enumerate(factor.correlated):
        root = draws[correlation_parameter(factor, number)]
        matrix = root @ np.swapaxes(root, 1, 2)
        values += [matrix[:, i, j] for i in range(size) for j in range(i)]
    found |= dict(zip(factor.correlation_names, values, strict=True))
    if not factor.integrated:
        effects = draws[sampled_parameter(factor)]
        if factor.standardised:
            effects = _with_sds(factor, draws)
        found |= {effect_parameter(factor): effects if len(factor.effects) > 1 else effects[:, :, 0]}
    return found


def _with_sds(factor: Factor, draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """Effects (draw, level, effect) from standardised ones."""
    sds = draws[sd_parameter(factor)]
    roots = np.broadcast_to(np.eye(sds.shape[1]), (*sds.shape, sds.shape[1])).copy()
    for number, (first, size) in enumerate(factor.correlated):
        roots[:, first : first + size, first : first + size] = draws[correlation_parameter(factor, number)]
    return np.einsum("dij,dlj->dli", sds[:, :, None] * roots, draws[sampled_parameter(factor)])
