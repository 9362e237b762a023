"""Numbers of either sign: normal and Student's t responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import OptionError
from shardmc.formulas.families.family import Auxiliary, Family, ResponseSummary
from shardmc.formulas.families.special import HALF_LOG_2_PI, log_gamma_half_step
from shardmc.formulas.priors import Prior, rounded


class _LocationScale(Family):
    """A response around eta, with the scale sigma."""

    location_scale = True

    def refuse(self, response: ResponseSummary) -> None:
        response.refuse_constant()

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (rounded(response.mean), rounded(2.5 * response.sd))),
            "sigma": Prior("exponential", (rounded(1 / response.sd),)),
        }

    def coefficient_scale(self, response: ResponseSummary) -> float:
        return 2.5 * response.sd

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return np.full(len(response), -HALF_LOG_2_PI)

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return eta


class Normal(Family):
    """The response, as rows hold it, is normal around eta, with the standard deviation sigma."""

    integrates_exactly = True
    learns_from_one_row = False

    @property
    def auxiliaries(self) -> Mapping[str, Any]:
        return {"sigma": "positive"}

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        sigma = auxiliary["sigma"]
        return -0.5 * ((response - eta) / sigma) ** 2 - jnp.log(sigma)


@final
@dataclass(frozen=True)
class Gaussian(Normal, _LocationScale):
    """y ~ Normal(eta, sigma): log-likelihood -((y - eta) / sigma)^2 / 2 - log sigma."""

    name = "gaussian"

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        return rng.normal(eta, auxiliary["sigma"])


@final
@dataclass(frozen=True)
class StudentT(_LocationScale):
    """y ~ eta + sigma t(nu), with nu unknown unless `df` gives it.

    Log-likelihood log Gamma((nu + 1) / 2) - log Gamma(nu / 2) - log(nu) / 2 - log sigma
    - (nu + 1) / 2 log(1 + z^2 / nu), with z = (y - eta) / sigma.
    """

    name = "student_t"
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

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        nu = {"nu": Prior("gamma", (2.0, 0.1))} if self.df is None else {}
        return super().default_priors(response) | nu

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        nu = auxiliary["nu"] if self.df is None else self.df
        return eta + auxiliary["sigma"] * rng.standard_t(np.broadcast_to(nu, eta.shape))
