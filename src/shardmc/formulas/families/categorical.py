"""Levels without an order: multinomial logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from shardmc.formulas.families.family import Auxiliary, Moments, ResponseSummary
from shardmc.formulas.families.levels import Levels
from shardmc.formulas.priors import Prior
from shardmc.model import Parameter


@final
@dataclass(frozen=True)
class Categorical(Levels):
    """y is one of several levels; log(P(level k) / P(first level)) = eta_k, so that the first level is the reference.

    Log-likelihood eta_y - log(1 + sum_k e^eta_k), with eta of the first level 0.
    """

    name = "categorical"
    kinds_of_levels = "text or whole numbers"
    several_predictors = True

    @property
    def equations(self) -> tuple[str, ...]:
        return tuple(str(level) for level in self.levels[1:])

    @property
    def location_support(self) -> Parameter:
        return Parameter(len(self.equations))

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        # One array for each level: jaxlib 0.10.2 compiles jnp.sum(matrix * eta, axis=-1) beside another reduction of
        # eta to wrong numbers on CPUs.
        columns = [eta[..., k] for k in range(len(self.equations))]
        chosen = sum(jnp.where(response == k + 1, column, 0) for k, column in enumerate(columns))
        return chosen - log_total(columns)

    def extremes(self, response: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return tuple(response == number for number in range(len(self.levels)))

    def separates(self, parts: Sequence[Moments], num_rows: int) -> np.ndarray:
        # No overlap, except in one common value, between some of the levels and the others.
        low, high = (np.stack([getattr(part, end) for part in parts]) for end in ("low", "high"))
        order = np.lexsort((high, low), axis=0)
        low, high = np.take_along_axis(low, order, axis=0), np.take_along_axis(high, order, axis=0)
        return np.logical_or.reduce(np.maximum.accumulate(high)[:-1] <= low[1:])

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"Intercept": Prior("student_t", (3.0, 0.0, 2.5))}

    def start(self, response: ResponseSummary) -> dict[str, Any]:
        counts = np.array(self.counts(response), float)
        return {"Intercept": np.log(counts[1:] / counts[0])}

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return special.softmax(with_reference(eta), axis=-1)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        every = with_reference(eta)
        return (every + rng.gumbel(size=every.shape)).argmax(axis=-1).astype(np.float64)


def log_total(columns: Sequence[jax.Array]) -> jax.Array:
    """log(1 + sum_k e^eta_k), from the linear predictors (row,) of each level but the first."""
    top = lax.stop_gradient(reduce(jnp.maximum, columns, jnp.zeros_like(columns[0])))
    return top + jnp.log(sum((jnp.exp(column - top) for column in columns), jnp.exp(-top)))


def with_reference(eta: np.ndarray) -> np.ndarray:
    """Linear predictors (..., equation) of all levels (..., level): 0 for the first."""
    return np.concatenate([np.zeros_like(eta[..., :1]), eta], axis=-1)
