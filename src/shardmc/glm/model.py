"""The shardmc model of a design: linear predictor, family and priors as functions of named parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.glm.design import CENTERED, COEFFICIENTS, Design
from shardmc.glm.families import Bernoulli, Ordinal
from shardmc.glm.prior import log_density
from shardmc.model import Model, Parameter


def location_name(design: Design) -> str:
    """The parameter by which the location is sampled."""
    return design.family.location + (CENTERED if design.scaling.is_shifted else "")


def build_model(design: Design, start: dict[str, Any]) -> Model:
    """The model, with coefficients on the scale of the original columns.

    eta = location + sum_k b_k x_k. Where columns are shifted the location that is sampled belongs to shifted columns
    at zero, and `named_draws` has that of the original columns; without shifts they are the same.
    """
    location = location_name(design)
    parameters: dict[str, Any] = {}
    if design.has_location:
        levels = design.response_levels
        parameters[location] = Parameter(len(levels) - 1, "ordered") if levels is not None else ()
    if design.names:
        parameters[COEFFICIENTS] = len(design.names)
    parameters |= design.family.auxiliaries
    renamed = {location if name == design.family.location else name: value for name, value in start.items()}
    model = Model(
        _LogLikelihood(design),
        _LogPrior(design),
        parameters,
        initial=renamed,
    )
    # One vector compiles several times faster than a parameter for each column; messages and tables name the columns.
    entries = dict(zip([f"{COEFFICIENTS}[{k}]" for k in range(len(design.names))], design.names, strict=True))
    model.names = [entries.get(name, name) for name in model.names]
    return model


def named_draws(design: Design, draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A model's draws in the columns' own units, each under its own name: location, coefficients, the rest.

    Where columns are shifted the location of the original columns is worked out here, in float64: it is the
    difference of numbers that may be large.
    """
    every = {**draws, **{name: draws[COEFFICIENTS][:, k] for k, name in enumerate(design.names)}}
    sampled, location = location_name(design), design.family.location
    if sampled != location and sampled in draws:
        moved = draws[COEFFICIENTS] @ design.scaling.shifts if design.names else np.zeros(len(draws[sampled]))
        ordinal = isinstance(design.family, Ordinal)
        every[location] = (
            draws[sampled] + moved[:, None]
            if ordinal
            else draws[sampled] - moved + design.scaling.response_shift
        )
    order = [location, *design.names, *design.family.auxiliaries, sampled]
    return {name: every[name] for name in dict.fromkeys(order) if name in every}


class _Part:
    """A function of a model's parameters that is known by the design it belongs to."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.fingerprint = f"{type(self).__name__} {design.label}"
        self.names = design.names
        self.location = location_name(design)
        self.has_location = design.has_location

    def coefficients(self, params: Any) -> jax.Array:
        return params[COEFFICIENTS]


class _LogLikelihood(_Part):
    def __init__(self, design: Design) -> None:
        super().__init__(design)
        scaling = design.scaling
        self.units = scaling.sds / scaling.response_scale
        self.is_ordinal = isinstance(design.family, Ordinal)

    def __call__(self, params: Any, rows: Any) -> jax.Array:
        design, scale = self.design, self.design.scaling.response_scale
        response = rows["response"]
        if isinstance(design.family, Bernoulli):
            # The sign goes into the matrix, once a row and not once a row and point.
            return design.family.log_likelihood_towards(
                self._linear_predictor(params, rows, 2 * response - 1)
            )
        eta = self._linear_predictor(params, rows)
        auxiliary = {name: params[name] for name in design.family.auxiliaries}
        if self.is_ordinal:
            auxiliary["cutpoint"] = params[self.location]
        if design.family.location_scale:
            auxiliary["sigma"] = auxiliary["sigma"] / scale
        return design.family.log_likelihood(eta, response, auxiliary, rows.get("trials"))

    def _linear_predictor(self, params: Any, rows: Any, factor: jax.Array | None = None) -> jax.Array:
        """Location, columns and offset as one matrix product; times a factor per row.

        What is added to a product afterwards keeps a CPU from the form of the sum over rows that it does quickest.
        """
        real = jnp.result_type(float)
        count = rows["response"].shape[0]
        columns, factors = [jnp.zeros((count, 0), real)], [jnp.zeros(0, real)]
        if self.names:
            columns.append(rows["design"])
            factors.append(self.coefficients(params) * jnp.asarray(self.units, real))
        if self.has_location and not self.is_ordinal:
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
    """Priors of coefficients and auxiliary parameters, and that of the location with all columns at their means."""

    def __call__(self, params: Any) -> jax.Array:
        design = self.design
        total = jnp.zeros((), jnp.result_type(float))
        if self.names:
            priors = [design.priors[name] for name in self.names]
            total = total + log_density(priors, self.coefficients(params))
        if self.has_location:
            total = total + self._location(params)
        for name in design.family.auxiliaries:
            total = total + design.priors[name].log_density(params[name])
        return total

    def _location(self, params: Any) -> jax.Array:
        design, value = self.design, params[self.location]
        scaling = design.scaling
        ordinal = isinstance(design.family, Ordinal)
        if self.names:
            inside = jnp.asarray(scaling.means - scaling.shifts, jnp.result_type(float))
            moved = jnp.dot(inside, self.coefficients(params))
            value = value - moved if ordinal else value + moved
        prior = design.priors[design.family.location]
        return jnp.sum(prior.log_density(value + scaling.response_shift))
