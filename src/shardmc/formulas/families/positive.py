"""Positive numbers: gamma responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError
from shardmc.formulas.families.family import Auxiliary, Family, ResponseSummary
from shardmc.formulas.families.special import (
    HALF_LOG_2_PI,
    bounded_exp,
    stirling_remainder,
)
from shardmc.formulas.priors import Prior, rounded


@final
@dataclass(frozen=True)
class Gamma(Family):
    """y has mean mu = exp(eta) and variance mu^2 / shape.

    Log-likelihood shape log shape - log Gamma(shape) + shape (d - e^d) with d = log y - eta. Rows hold log y.
    """

    name = "gamma"
    takes_exposure = True

    @property
    def auxiliaries(self) -> Mapping[str, Any]:
        return {"shape": "positive"}

    @property
    def exp_of_link(self) -> str:
        return "ratio"

    def encode(self, response: np.ndarray) -> np.ndarray:
        return np.log(response)

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        shape = auxiliary["shape"]
        departure = response - eta
        spread = 0.5 * jnp.log(shape) - stirling_remainder(shape)
        return shape * (departure - jnp.expm1(departure)) + spread

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return -response - HALF_LOG_2_PI

    def refuse(self, response: ResponseSummary) -> None:
        bad = response.negative + response.zero
        if bad:
            raise DataError(
                f"The response {response.name!r} of family 'gamma' must be positive, but {bad} of "
                f"{response.moments.count} values are zero or negative; drop those rows, or model them separately."
            )
        response.refuse_constant()

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (rounded(response.log_rate), 2.5)),
            "shape": Prior("exponential", (1.0,)),
        }

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return bounded_exp(eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return rng.gamma(shape, bounded_exp(eta) / shape)
