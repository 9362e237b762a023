"""Continuous responses: numbers of either sign, proportions, positive numbers, and times until an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from shardmc.errors import DataError, OptionError
from shardmc.formulas.families.family import (
    Auxiliary,
    AuxiliaryDraws,
    Declared,
    Family,
    ResponseSummary,
    Start,
)
from shardmc.formulas.families.special import (
    HALF_LOG_2_PI,
    bounded_exp,
    log_gamma_half_step,
    softplus,
    stirling_remainder,
    stirling_remainder_by_steps,
)
from shardmc.formulas.priors import Prior, to_four_digits


class _LocationScale(Family):
    """A response around eta, with the scale sigma."""

    location_scale = True

    def refuse(self, response: ResponseSummary) -> None:
        response.refuse_constant()

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (to_four_digits(response.mean), to_four_digits(2.5 * response.sd))),
            "sigma": Prior("exponential", (to_four_digits(1 / response.sd),)),
        }

    def coefficient_scale(self, response: ResponseSummary) -> float:
        return 2.5 * response.sd

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return np.full(len(response), -HALF_LOG_2_PI)

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return eta


class Normal(Family):
    """The response, as rows hold it, is normal around eta, with the standard deviation sigma."""

    integrates_exactly = True
    learns_from_one_row = False

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
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
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
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
        given: object = self.df
        if given is not None and not (isinstance(given, int | float | np.number) and 0 < given < np.inf):
            raise OptionError(f"df of family 'student_t' must be a positive number; {given!r} was given.")

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
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
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        nu = auxiliary["nu"] if self.df is None else self.df
        return eta + auxiliary["sigma"] * rng.standard_t(np.broadcast_to(nu, eta.shape))


_SMALLEST = 1e-12  # a parameter of the beta distribution below this has gradients that overflow


def _lack(departure: jax.Array, share: jax.Array, rest: jax.Array) -> jax.Array:
    """m d - log(1 + m (e^d - 1)), not positive, with m the share and 1 - m the rest.

    It is the same for (1 - m, -d). Near 0 it takes the smaller of the two, so that nothing cancels; else the side where
    d is negative, so that nothing overflows.
    """
    small = share < rest
    part = jnp.where(small, share, rest)
    step = jnp.clip(jnp.where(small, departure, -departure), -1.0, 1.0)
    near = part * step - jnp.log1p(part * jnp.expm1(step))
    above = departure > 0
    down = jnp.where(above, -departure, departure)
    weight, other = jnp.where(above, rest, share), jnp.where(above, share, rest)
    far = weight * down - jnp.log(other + weight * jnp.exp(down))
    return jnp.where(jnp.abs(departure) < 1, near, far)


@final
@dataclass(frozen=True)
class Beta(Family):
    """y has mean mu, with logit(mu) = eta, and variance mu (1 - mu) / (1 + kappa); kappa is the precision.

    The parameters of the beta distribution are a = mu kappa and b = (1 - mu) kappa. Rows hold l = logit(y). With
    d = l - eta and Stirling's remainder S, the log-likelihood is kappa (mu d - log(1 + mu (e^d - 1)))
    + log(kappa mu (1 - mu)) / 2 + S(kappa) - S(a) - S(b): nothing large cancels, however precise the responses.
    """

    name = "beta"
    mean_is_probability = True

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
        return {"kappa": "positive"}

    @property
    def exp_of_link(self) -> str:
        return "odds_ratio"

    def encode(self, response: np.ndarray) -> np.ndarray:
        return special.logit(response)

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        kappa = auxiliary["kappa"]
        share, rest = jax.nn.sigmoid(eta), jax.nn.sigmoid(-eta)
        lack = _lack(response - eta, share, rest)
        a, b = jnp.maximum(share * kappa, _SMALLEST), jnp.maximum(rest * kappa, _SMALLEST)
        spread = sum(stirling_remainder_by_steps(z) for z in (a, b)) - stirling_remainder_by_steps(kappa)
        return kappa * lack + 0.5 * (jnp.log(kappa) - softplus(eta) - softplus(-eta)) - spread

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        return np.logaddexp(0, response) + np.logaddexp(0, -response) - HALF_LOG_2_PI

    def refuse(self, response: ResponseSummary) -> None:
        low, high = float(response.moments.low), float(response.moments.high)
        if low <= 0 or high >= 1:
            percent = "; divide percentages by 100" if 1 < high <= 100 and low >= 0 else ""
            raise DataError(
                f"The response {response.name!r} of family 'beta' must lie between 0 and 1, without the ends, but its "
                f"values go from {low:g} to {high:g}{percent}; drop rows with 0 or 1, or model them separately."
            )
        response.refuse_constant()

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (to_four_digits(float(special.logit(response.mean))), 2.5)),
            "kappa": Prior("gamma", (0.01, 0.01)),
        }

    def start(self, response: ResponseSummary) -> Start:
        return {"kappa": response.mean * (1 - response.mean) / response.sd**2}

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return special.expit(eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        mean, kappa = special.expit(eta), auxiliary["kappa"]
        smallest = np.finfo(float).tiny
        return rng.beta(np.maximum(mean * kappa, smallest), np.maximum((1 - mean) * kappa, smallest))


class Positive(Family):
    """What families of positive numbers share: eta is a logarithm, rows hold log y, and most have a shape."""

    takes_exposure = True

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
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

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
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
            "Intercept": Prior("normal", (to_four_digits(response.log_rate), 2.5)),
            "shape": Prior("exponential", (1.0,)),
        }

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
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
            "Intercept": Prior("normal", (to_four_digits(middle), to_four_digits(2.5 * sd))),
            "sigma": Prior("exponential", (to_four_digits(1 / sd),)),
        }

    def coefficient_scale(self, response: ResponseSummary) -> float:
        return 2.5 * float(response.logs.sd)

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return bounded_exp(eta + 0.5 * auxiliary["sigma"] ** 2)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
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
            "Intercept": Prior("normal", (to_four_digits(response.log_rate), 2.5)),
            "shape": Prior("gamma", (0.01, 0.01)),
        }

    def start(self, response: ResponseSummary) -> Start:
        return {"shape": response.mean**3 / response.sd**2}

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
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
                f"Every time in {response.name!r} is censored, so the rows do not show when events happen. The column "
                "of censored= must be 1 (or true) where the event had not happened yet, and 0 where it had."
            )

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        # Time at risk per event, as for exponential times.
        events = response.moments.count - response.censored
        middle = response.log_rate + np.log(response.moments.count / events)
        return {
            "Intercept": Prior("normal", (to_four_digits(float(middle)), 2.5)),
            "shape": Prior("exponential", (1.0,)),
        }

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return bounded_exp(eta) / special.gamma(1 + 1 / shape) * rng.weibull(shape)
