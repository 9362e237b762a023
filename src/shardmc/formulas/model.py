"""The model of a design: linear predictor, family and priors as functions of named parameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.formulas.design import CENTERED, Design
from shardmc.formulas.priors import COEFFICIENTS, log_density
from shardmc.model import Model

Arrays = Mapping[str, jax.Array]
"""Named parameters, or columns of rows."""


def location_name(design: Design) -> str:
    """The name under which the location is sampled."""
    return design.family.location + (CENTERED if design.scaling.is_shifted else "")


def build_model(design: Design, start: Mapping[str, Any]) -> Model:
    """The model, with coefficients on the scale of the original columns.

    eta = location + sum_k b_k x_k. If columns are shifted, the sampled location belongs to the shifted columns at zero,
    and `named_draws` computes that of the original columns.
    """
    location = location_name(design)
    parameters: dict[str, Any] = {}
    if design.has_location:
        parameters[location] = design.family.location_support
    if design.names:
        parameters[COEFFICIENTS] = len(design.names)
    parameters |= design.family.auxiliaries
    renamed = {location if name == design.family.location else name: value for name, value in start.items()}
    model = Model(_LogLikelihood(design), _LogPrior(design), parameters, initial=renamed)
    # One vector compiles several times faster than one parameter per column; messages and tables name the columns.
    entries = dict(zip([f"{COEFFICIENTS}[{k}]" for k in range(len(design.names))], design.names, strict=True))
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
        moved = draws[COEFFICIENTS] @ design.scaling.shifts if design.names else np.zeros(len(draws[sampled]))
        unshifted = design.family.move_location(draws[sampled], -moved)
        every[location] = unshifted + design.scaling.response_shift
    order = [location, *design.names, *design.family.auxiliaries, sampled]
    return {name: every[name] for name in dict.fromkeys(order) if name in every}


class _Part:
    """A function of a model's parameters, identified by its design."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.fingerprint = f"{type(self).__name__} {design.label}"
        self.names = design.names
        self.location = location_name(design)
        self.has_location = design.has_location


class _LogLikelihood(_Part):
    def __init__(self, design: Design) -> None:
        super().__init__(design)
        scaling = design.scaling
        self.units = scaling.sds / scaling.response_scale

    def __call__(self, params: Arrays, rows: Arrays) -> jax.Array:
        family = self.design.family
        auxiliary = {name: params[name] for name in family.auxiliaries}
        if family.location_is_auxiliary:
            auxiliary[family.location] = params[self.location]
        if family.location_scale:
            auxiliary["sigma"] = auxiliary["sigma"] / self.design.scaling.response_scale
        linear_predictor = partial(self._linear_predictor, params, rows)
        return family.log_likelihood_of_rows(
            linear_predictor, rows["response"], auxiliary, rows.get("trials")
        )

    def _linear_predictor(self, params: Arrays, rows: Arrays, factor: jax.Array | None) -> jax.Array:
        """Location, columns and offset as one matrix product, times a factor per row.

        Adding a term after the product would keep a CPU from its fastest form of the sum over rows.
        """
        real = jnp.result_type(float)
        count = rows["response"].shape[0]
        columns, factors = [jnp.zeros((count, 0), real)], [jnp.zeros(0, real)]
        if self.names:
            columns.append(rows["design"])
            factors.append(params[COEFFICIENTS] * jnp.asarray(self.units, real))
        if self.has_location and not self.design.family.location_is_auxiliary:
            columns.append(jnp.ones((count, 1), real))
            factors.append(jnp.reshape(params[self.location] / self.design.scaling.response_scale, 1))
        if "offset" in rows:
            columns.append(rows["offset"][:, None])
            factors.append(jnp.ones(1, real))
        matrix = jnp.concatenate(columns, axis=1)
        if factor is not None:
            matrix = factor[:, None] * matrix
        return jnp.matmul(matrix, jnp.concatenate(factors), precision="highest")


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
        return total

    def _location(self, params: Arrays) -> jax.Array:
        design, value = self.design, params[self.location]
        scaling = design.scaling
        if self.names:
            shifted_means = jnp.asarray(scaling.means - scaling.shifts, jnp.result_type(float))
            value = design.family.move_location(value, jnp.dot(shifted_means, params[COEFFICIENTS]))
        prior = design.priors[design.family.location]
        return jnp.sum(prior.log_density(value + scaling.response_shift))
