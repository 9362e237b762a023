"""Continuous responses: normal, Student's t, and gamma for positive amounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError, OptionError
from shardmc.formulas.families.family import Auxiliary, Family, ResponseSummary
from shardmc.formulas.families.special import bounded_exp, log_gamma_half_step, stirling_remainder
from shardmc.formulas.priors import Prior, rounded


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

    def refuse(self, response: ResponseSummary) -> None:
        response.refuse_constant()

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (rounded(response.mean), rounded(2.5 * response.sd))),
            "sigma": Prior("exponential", (rounded(1 / response.sd),)),
        }

    def coefficient_scale(self, response: ResponseSummary) -> float:
        return 2.5 * response.sd

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return eta

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        return rng.normal(eta, auxiliary["sigma"])


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

    def refuse(self, response: ResponseSummary) -> None:
        response.refuse_constant()

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        priors = {
            "Intercept": Prior("normal", (rounded(response.mean), rounded(2.5 * response.sd))),
            "sigma": Prior("exponential", (rounded(1 / response.sd),)),
        }
        return priors | ({"nu": Prior("gamma", (2.0, 0.1))} if self.df is None else {})

    def coefficient_scale(self, response: ResponseSummary) -> float:
        return 2.5 * response.sd

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return eta

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        nu = auxiliary["nu"] if self.df is None else self.df
        return eta + auxiliary["sigma"] * rng.standard_t(np.broadcast_to(nu, eta.shape))


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

    def refuse(self, response: ResponseSummary) -> None:
        bad = response.negative + response.zero
        if bad:
            raise DataError(
                f"The response {response.name!r} of family 'gamma' must be positive, but {bad} of "
                f"{response.moments.count} values are zero or negative; drop those rows, or model them separately."
            )
        response.refuse_constant()

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        rate = float(np.log(response.mean * response.moments.count / response.exposure))
        return {"Intercept": Prior("normal", (rounded(rate), 2.5)), "shape": Prior("exponential", (1.0,))}

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return bounded_exp(eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return rng.gamma(shape, bounded_exp(eta) / shape)
