"""Positive amounts with a log link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.glm.families.base import Auxiliary, Family
from shardmc.glm.families.response import Seen
from shardmc.glm.families.special import stirling_remainder
from shardmc.glm.prior import Prior, rounded

_LARGEST = 700.0


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

    def encode(self, response: np.ndarray) -> np.ndarray:
        return np.log(response)

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        shape = auxiliary["shape"]
        departure = response - eta
        spread = 0.5 * jnp.log(shape) - stirling_remainder(shape)
        return shape * (departure - jnp.expm1(departure)) + spread

    def refuse(self, seen: Seen) -> None:
        seen.refuse_not_positive(self.name)
        seen.refuse_constant()

    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        rate = float(np.log(seen.mean * seen.moments.count / seen.exposure))
        return {"Intercept": Prior("normal", (rounded(rate), 2.5)), "shape": Prior("exponential", (1.0,))}

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return np.exp(np.minimum(eta, _LARGEST))

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return rng.gamma(shape, np.exp(np.minimum(eta, _LARGEST)) / shape)
