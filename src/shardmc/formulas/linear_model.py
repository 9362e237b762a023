"""The model of a design: its likelihood, its priors, where its mode is searched first, and the names of its draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.reduction import CONSTANT
from shardmc.formulas.design import CENTERED, Design
from shardmc.formulas.families.family import Declared, Start
from shardmc.formulas.mixed import (
    GroupLogLikelihood,
    log_prior_of,
    named_factor_draws,
    parameters_of,
    sampled_names,
    start_of,
)
from shardmc.formulas.preparing import Prepared
from shardmc.formulas.priors import COEFFICIENTS, log_density
from shardmc.model import Model

Arrays = Mapping[str, jax.Array]
"""Named parameters, or columns of rows."""
_ADDED_UP = 16
"""Columns up to which a linear predictor is a sum over columns."""


@jax.custom_jvp
def _added_up(factors: jax.Array, columns: jax.Array) -> jax.Array:
    """The sum of factors times columns (column, ...): for a few columns one by one, because a product takes longer."""
    if len(factors) > _ADDED_UP:
        return jnp.tensordot(factors, columns, 1, precision="highest")
    return sum((columns[k] * factors[k] for k in range(1, len(factors))), columns[0] * factors[0])


@_added_up.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    # A product is stored, and serves all that depends on it. A sum would be computed anew for each.
    factors, columns = primals
    product = partial(jnp.tensordot, b=columns, axes=1, precision="highest")
    return product(factors), product(tangents[0])


def location_name(design: Design) -> str:
    """The name under which the location is sampled."""
    return design.family.location + (CENTERED if design.scaling.is_shifted else "")


def note_on_location(design: Design) -> tuple[str, ...]:
    """What a location that is sampled under another name means; nothing if it has its own."""
    name, own = location_name(design), design.family.location
    if name == own or not design.has_location:
        return ()
    shifts = [(n, s) for n, s in zip(design.column_names, design.scaling.shifts.tolist(), strict=True) if s]
    listed = ", ".join(f"{column} at {shift:.6g}" for column, shift in shifts[:3])
    more = f" and {len(shifts) - 3} more columns at their means" if len(shifts) > 3 else ""
    at = f" of a row with {listed}{more}" if shifts else ""
    less = f", less {design.scaling.response_shift:.6g}" if design.scaling.response_shift else ""
    return (
        f"{name} is the value of {own}{at}{less}. It is sampled instead of {own}, because such columns are far from "
        f"zero, and {own} is computed from it.",
    )


def build_model(design: Design, start: Start) -> Model:
    """The model, with coefficients on the scale of the original columns.

    eta = location + sum_k b_k x_k. If columns are shifted, the sampled location belongs to the shifted columns at zero,
    and `named_draws` computes that of the original columns.
    """
    location = location_name(design)
    parameters: dict[str, Declared] = {}
    if design.has_location:
        parameters[location] = design.family.location_support
    if design.names:
        parameters[COEFFICIENTS] = len(design.names)
    parameters |= design.family.auxiliaries
    for factor in design.factors:
        parameters |= parameters_of(factor)
    renamed = {location if name == design.family.location else name: value for name, value in start.items()}
    likelihood = RowLogLikelihood(design)
    if design.unit is not None:
        likelihood = GroupLogLikelihood(design, likelihood)
    model = Model(likelihood, _LogPrior(design), parameters, initial=renamed)
    # One vector compiles several times faster than one parameter per column; messages and tables name the columns.
    entries = dict(zip([f"{COEFFICIENTS}[{k}]" for k in range(len(design.names))], design.names, strict=True))
    for k, equation in enumerate(design.family.equations):
        entries[f"{location}[{k}]"] = f"{location}[{equation}]"
    for factor in design.factors:
        entries |= sampled_names(factor)
    model.names = [entries.get(name, name) for name in model.names]
    return model


def named_draws(design: Design, draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A model's draws in the columns' own units, each under its own name: location, coefficients, the rest.

    If columns are shifted, the location of the original columns is computed here, in float64, because it is a
    difference of numbers that may be large.
    """
    every = {**draws, **{name: draws[COEFFICIENTS][:, k] for k, name in enumerate(design.names)}}
    sampled, location = location_name(design), design.family.location
    if sampled != location and sampled in draws:
        moved = _moved(design, draws) if design.names else np.zeros(len(draws[sampled]))
        unshifted = design.family.move_location(draws[sampled], -moved)
        every[location] = unshifted + design.scaling.response_shift
    for name in {location, sampled} & set(every) if design.family.equations else ():
        every |= dict(zip(design.entries_of(name), every[name].T, strict=True))
    grouped = {n: d for factor in design.factors for n, d in named_factor_draws(factor, draws).items()}
    every |= grouped
    names = (*design.names, *design.family.auxiliaries, *grouped)
    order = (*design.entries_of(location), *names, *design.entries_of(sampled))
    return {name: every[name] for name in dict.fromkeys(order) if name in every}


def _moved(design: Design, draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """What the shifts of columns take from the linear predictor, (draw,) or (draw, equation)."""
    coefficients = design.per_equation(draws[COEFFICIENTS])
    if design.family.equations:
        return np.einsum("dce,c->de", coefficients, design.scaling.shifts)
    return coefficients @ design.scaling.shifts


class _Part:
    """A function of a model's parameters, identified by its design."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.fingerprint_text = design.label
        self.names = design.names
        self.location = location_name(design)
        self.has_location = design.has_location


class RowLogLikelihood(_Part):
    """The log-likelihood of rows, without effects of groups."""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        scaling = design.scaling
        self.units = scaling.sds / scaling.response_scale

    def __call__(self, params: Arrays, rows: Arrays) -> jax.Array:
        linear_predictor = partial(self.linear_predictor, params, rows)
        return self.design.family.log_likelihood_of_rows(
            linear_predictor, rows["response"], self.auxiliary(params), rows.get("trials")
        )

    def auxiliary(self, params: Arrays) -> dict[str, jax.Array]:
        """The family's own parameters, for the response as rows hold it."""
        family = self.design.family
        auxiliary = {name: params[name] for name in family.auxiliaries}
        if family.location_is_auxiliary:
            auxiliary[family.location] = params[self.location]
        if family.location_scale:
            auxiliary["sigma"] = auxiliary["sigma"] / self.design.scaling.response_scale
        return auxiliary

    def linear_predictor(self, params: Arrays, rows: Arrays, factor: jax.Array | None) -> jax.Array:
        """Location, columns and offset as one matrix product, times a factor per row: (row,) or (row, equation).

        Adding a term after the product would keep a CPU from its fastest form of the sum over rows.
        """
        real = jnp.result_type(float)
        count = rows["response"].shape[0]
        tail = (len(self.design.family.equations),) if self.design.family.equations else ()
        columns, factors = [jnp.zeros((count, 0), real)], [jnp.zeros((0, *tail), real)]
        if self.names:
            columns.append(rows["design"])
            units = jnp.asarray(self.units.reshape(-1, *(1 for _ in tail)), real)
            factors.append(self.design.per_equation(params[COEFFICIENTS]) * units)
        if self.has_location and not self.design.family.location_is_auxiliary:
            columns.append(rows[CONSTANT][:, None] if CONSTANT in rows else jnp.ones((count, 1), real))
            factors.append(
                jnp.reshape(params[self.location] / self.design.scaling.response_scale, (1, *tail))
            )
        if "offset" in rows:
            columns.append(rows["offset"][:, None])
            factors.append(jnp.ones(1, real))
        matrix = jnp.concatenate(columns, axis=1)
        if factor is not None:
            matrix = factor[:, None] * matrix
        return jnp.matmul(matrix, jnp.concatenate(factors), precision="highest")

    def linear_predictor_of_columns(self, params: Arrays, rows: Arrays) -> jax.Array:
        """The same from columns (column, row, stretch), for one equation: (row, stretch)."""
        real = jnp.result_type(float)
        eta = jnp.zeros((), real)
        if self.has_location and not self.design.family.location_is_auxiliary:
            eta = params[self.location] / self.design.scaling.response_scale
        if self.names:
            eta = eta + _added_up(params[COEFFICIENTS] * jnp.asarray(self.units, real), rows["design"])
        if "offset" in rows:
            eta = eta + rows["offset"]
        return jnp.broadcast_to(eta, rows["response"].shape[-2:])


class _LogPrior(_Part):
    """Priors of coefficients and auxiliary parameters, and of the location with all columns at their means."""

    def __call__(self, params: Arrays) -> jax.Array:
        design = self.design
        total = jnp.zeros((), jnp.result_type(float))
        if self.names:
            priors = [design.priors[name] for name in self.names]
            total = total + log_density(priors, params[COEFFICIENTS])
        if self.has_location:
            total = total + self._location(params)
        for name in design.family.auxiliaries:
            total = total + design.priors[name].log_density(params[name])
        for factor in design.factors:
            total = total + log_prior_of(factor, design.priors, params)
        return total

    def _location(self, params: Arrays) -> jax.Array:
        design, value = self.design, params[self.location]
        scaling = design.scaling
        if self.names:
            shifted_means = jnp.asarray(scaling.means - scaling.shifts, jnp.result_type(float))
            moved = jnp.dot(shifted_means, design.per_equation(params[COEFFICIENTS]))
            value = design.family.move_location(value, moved)
        priors = [design.priors[name] for name in design.entries_of(design.family.location)]
        value = value + scaling.response_shift
        # Cutpoints are several numbers with one prior.
        return jnp.sum(priors[0].log_density(value)) if len(set(priors)) == 1 else log_density(priors, value)


def model_of(prepared: Prepared) -> Model:
    """The model of a formula on a table: the same object, with its compiled programs, when both come again."""
    design, start = prepared.design, _start(prepared)
    return _built(_Asked(f"{design.label} {start}", type(design.family), design, start))


@dataclass(frozen=True)
class _Asked:
    """A design and a starting point, compared by their text and the type of the family, which may be a user's own."""

    text: str
    family: type
    design: Design = field(compare=False)
    start: Start = field(compare=False)


@lru_cache(maxsize=8)
def _built(asked: _Asked) -> Model:
    return build_model(asked.design, asked.start)


def _start(prepared: Prepared) -> Start:
    """Where to look for the mode first: the null model, whatever the user's priors."""
    design, response = prepared.design, prepared.response
    start: dict[str, float | np.ndarray] = {
        name: prior.middle for name, prior in design.family.default_priors(response).items()
    }
    start |= design.family.start(response)
    scale = design.family.coefficient_scale(response)
    for factor in design.factors:
        start |= start_of(factor, scale)
    location = design.family.location
    if not design.has_location:
        start.pop(location, None)
    elif design.scaling.response_shift:
        start[location] = start[location] - design.scaling.response_shift
    return start
