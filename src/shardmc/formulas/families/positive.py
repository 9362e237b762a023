"""Positive numbers: gamma, lognormal and inverse Gaussian responses, and times until an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from shardmc.errors import DataError
from shardmc.formulas.families.continuous import Normal
from shardmc.formulas.families.family import Auxiliary, Family, ResponseSummary
from shardmc.formulas.families.special import (
    HALF_LOG_2_PI,
    bounded_exp,
    stirling_remainder,
    stirling_remainder_by_steps,
)
from shardmc.formulas.priors import Prior, rounded


class Positive(Family):
    """What families of positive numbers share: eta is a logarithm, rows hold log y, and most have a shape."""

    takes_exposure = True

    @property
    def auxiliaries(self) -> Mapping[str, Any]:
        return {"shape": "positive"}

    @property
    def exp_of_link(self) -> str:
        return "ratio"

    def encode(self, response: np.ndarray) -> np.ndarray:
        return np.log(response)

    def refuse(self, response: ResponseSummary) -> None:
        bad = response.negative + response.zero
        if bad:
            raise DataError(
                f"The response {response.name!r} of family {self.name!r} must be positive, but {bad} of "
                f"{response.moments.count} values are zero or negative; drop those rows, or model them separately."
            )
        response.refuse_constant()

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return bounded_exp(eta)


@final
@dataclass(frozen=True)
class Gamma(Positive):
    """y has mean mu = exp(eta) and variance mu^2 / shape.

    Log-likelihood shape log shape - log Gamma(shape) + shape (d - e^d) with d = log y - eta.
    """

    name = "gamma"

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        shape = auxiliary["shape"]
        departure = response - eta
        spread = 0.5 * jnp.log(shape) - stirling_remainder(shape)
        return shape * (departure - jnp.expm1(departure)) + spread

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return -response - HALF_LOG_2_PI

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (rounded(response.log_rate), 2.5)),
            "shape": Prior("exponential", (1.0,)),
        }

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return rng.gamma(shape, bounded_exp(eta) / shape)


@final
@dataclass(frozen=True)
class Lognormal(Normal, Positive):
    """log y ~ Normal(eta, sigma), so that y has median exp(eta) and mean exp(eta + sigma^2 / 2)."""

    name = "lognormal"
    summarises_logs = True

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return -response - HALF_LOG_2_PI

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        middle, sd = float(response.logs.mean), float(response.logs.sd)
        return {
            "Intercept": Prior("normal", (rounded(middle), rounded(2.5 * sd))),
            "sigma": Prior("exponential", (rounded(1 / sd),)),
        }

    def coefficient_scale(self, response: ResponseSummary) -> float:
        return 2.5 * float(response.logs.sd)

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return bounded_exp(eta + 0.5 * auxiliary["sigma"] ** 2)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        return bounded_exp(rng.normal(eta, auxiliary["sigma"]))


@final
@dataclass(frozen=True)
class InverseGaussian(Positive):
    """y has mean mu = exp(eta) and variance mu^3 / shape.

    Log-likelihood log(shape) / 2 - shape (y - mu)^2 / (2 mu^2 y), where the fraction is 2 e^-eta sinh(d / 2)^2 with
    d = log y - eta.
    """

    name = "inverse_gaussian"

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        shape = auxiliary["shape"]
        return 0.5 * jnp.log(shape) - 2 * shape * jnp.exp(-eta) * jnp.sinh(0.5 * (response - eta)) ** 2

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return -1.5 * response - HALF_LOG_2_PI

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (rounded(response.log_rate), 2.5)),
            "shape": Prior("gamma", (0.01, 0.01)),
        }

    def start(self, response: ResponseSummary) -> dict[str, Any]:
        return {"shape": response.mean**3 / response.sd**2}

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        return rng.wald(bounded_exp(eta), np.broadcast_to(auxiliary["shape"], eta.shape))


@final
@dataclass(frozen=True)
class Weibull(Positive):
    """y has mean mu = exp(eta), shape k and scale s = mu / Gamma(1 + 1 / k).

    With z = log(y / s), the log-likelihood of an event is log k + k z - e^(k z), and that of a time at which the event
    had not happened yet (right censoring) is -e^(k z). Rows hold log y, and 1 for an event or 0 for a censored time.
    """

    name = "weibull"
    takes_censoring = True

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        shape = auxiliary["shape"]
        after = 1 + 1 / shape
        # log Gamma of it, by Stirling's formula and its remainder.
        log_gamma = (
            (after - 0.5) * jnp.log(after) - after + HALF_LOG_2_PI + stirling_remainder_by_steps(after)
        )
        power = shape * (response[..., 0] - eta + log_gamma)
        return response[..., 1] * (jnp.log(shape) + power) - jnp.exp(power)

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return -response[..., 0] * response[..., 1]

    def refuse(self, response: ResponseSummary) -> None:
        super().refuse(response)
        if response.censored == response.moments.count:
            raise DataError(
                f"Every time in {response.name!r} is censored, so no event tells how long it takes. The column of "
                "censored= must be 1 (or true) where the event had not happened yet, and 0 where it had."
            )

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        # Time at risk per event, as for exponential times.
        events = response.moments.count - response.censored
        middle = response.log_rate + np.log(response.moments.count / events)
        return {
            "Intercept": Prior("normal", (rounded(float(middle)), 2.5)),
            "shape": Prior("exponential", (1.0,)),
        }

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return bounded_exp(eta) / special.gamma(1 + 1 / shape) * rng.weibull(shape)
