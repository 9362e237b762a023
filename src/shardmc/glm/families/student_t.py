"""Student's t response: a regression that outliers do not move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import OptionError
from shardmc.glm.families.base import Auxiliary, Family
from shardmc.glm.families.response import Seen
from shardmc.glm.families.special import log_gamma_half_step
from shardmc.glm.prior import Prior, rounded


@final
@dataclass(frozen=True)
class StudentT(Family):
    """y ~ eta + sigma t(nu), with nu unknown unless `df` gives it.

    Log-likelihood log Gamma((nu + 1) / 2) - log Gamma(nu / 2) - log(nu) / 2 - log sigma
    - (nu + 1) / 2 log(1 + z^2 / nu), with z = (y - eta) / sigma.
    """

    name = "student_t"
    location_scale = True
    df: float | None = None

    def __post_init__(self) -> None:
        if self.df is not None and not self.df > 0:
            raise OptionError(f"df of family 'student_t' must be positive; {self.df!r} was given.")

    @property
    def auxiliaries(self) -> Mapping[str, Any]:
        return {"sigma": "positive"} | ({"nu": "positive"} if self.df is None else {})

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        sigma = auxiliary["sigma"]
        nu = jnp.asarray(auxiliary["nu"] if self.df is None else self.df, eta.dtype)
        z = (response - eta) / sigma
        return log_gamma_half_step(nu / 2) - jnp.log(sigma) - 0.5 * (nu + 1) * jnp.log1p(z * z / nu)

    def refuse(self, seen: Seen) -> None:
        seen.refuse_constant()

    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        priors = {
            "Intercept": Prior("normal", (rounded(seen.mean), rounded(2.5 * seen.sd))),
            "sigma": Prior("exponential", (rounded(1 / seen.sd),)),
        }
        return priors | ({"nu": Prior("gamma", (2.0, 0.1))} if self.df is None else {})

    def coefficient_scale(self, seen: Seen) -> float:
        return 2.5 * seen.sd

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return eta

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        nu = auxiliary["nu"] if self.df is None else self.df
        return eta + auxiliary["sigma"] * rng.standard_t(np.broadcast_to(nu, eta.shape))
