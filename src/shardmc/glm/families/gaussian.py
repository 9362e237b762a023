"""Normal response with unknown standard deviation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.glm.families.base import Auxiliary, Family
from shardmc.glm.families.response import Seen
from shardmc.glm.prior import Prior, rounded


@final
@dataclass(frozen=True)
class Gaussian(Family):
    """y ~ Normal(eta, sigma): log-likelihood -((y - eta) / sigma)^2 / 2 - log sigma."""

    name = "gaussian"
    location_scale = True

    @property
    def auxiliaries(self) -> Mapping[str, Any]:
        return {"sigma": "positive"}

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        sigma = auxiliary["sigma"]
        return -0.5 * ((response - eta) / sigma) ** 2 - jnp.log(sigma)

    def refuse(self, seen: Seen) -> None:
        seen.refuse_constant()

    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (rounded(seen.mean), rounded(2.5 * seen.sd))),
            "sigma": Prior("exponential", (rounded(1 / seen.sd),)),
        }

    def coefficient_scale(self, seen: Seen) -> float:
        return 2.5 * seen.sd

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return eta

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        return rng.normal(eta, auxiliary["sigma"])
