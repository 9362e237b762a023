"""Successes: one trial a row (Bernoulli), or several (binomial), with logit or probit link."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from scipy import special

from shardmc.errors import DataError, unknown
from shardmc.glm.families.base import Auxiliary, Family
from shardmc.glm.families.response import Seen
from shardmc.glm.prior import Prior, rounded

Link = Literal["logit", "probit"]
_LINKS = ("logit", "probit")


def _probability(link: Link, eta: np.ndarray) -> np.ndarray:
    return special.expit(eta) if link == "logit" else special.ndtr(eta)


def _quantile(link: Link, probability: float) -> float:
    return float(special.logit(probability) if link == "logit" else special.ndtri(probability))


def _binomial_logit(eta: jax.Array, successes: jax.Array, trials: jax.Array) -> jax.Array:
    """y d - n log(1 + p (e^d - 1)), with p about y / n and d = eta - logit(p); no exponential overflows."""
    share = (successes + 0.5) / (trials + 1)
    departure = eta - jnp.log(share) + jnp.log1p(-share)
    above = departure > 0
    down = jnp.where(above, -departure, departure)
    rest = jnp.log1p(jnp.where(above, 1 - share, share) * jnp.expm1(down))
    return successes * departure - trials * (jnp.where(above, departure, 0.0) + rest)


@final
@dataclass(frozen=True)
class Bernoulli(Family):
    """y is 1 with probability p, logit or probit of p is eta.

    Both outcomes mirror each other: with s = (2 y - 1) eta the log-likelihood is -log(1 + e^-s) for logit and
    log Phi(s) for probit.
    """

    name = "bernoulli"
    link: Link = "logit"

    def __post_init__(self) -> None:
        if self.link not in _LINKS:
            raise unknown("link of family 'bernoulli'", self.link, _LINKS)

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        return self.log_likelihood_towards((2 * response - 1) * eta)

    def log_likelihood_towards(self, eta: jax.Array) -> jax.Array:
        """Of the outcomes seen, given each row's linear predictor with the sign that favours its own."""
        if self.link == "logit":
            size = jnp.abs(eta)  # -softplus(-eta) with two operations a number fewer
            return 0.5 * (eta - size) - jnp.log1p(jnp.exp(-size))
        return log_ndtr(eta)

    def refuse(self, seen: Seen) -> None:
        seen.refuse_not_binary()
        seen.refuse_constant()

    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        return {"Intercept": Prior("normal", (rounded(_quantile(self.link, seen.mean)), 2.5))}

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return _probability(self.link, eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        return (rng.uniform(size=eta.shape) < _probability(self.link, eta)).astype(np.float64)


@final
@dataclass(frozen=True)
class Binomial(Family):
    """y successes in n trials, logit or probit of their probability is eta.

    Logit: y eta - n log(1 + e^eta), taken relative to the row's own share of successes so that large counts keep
    their digits. Probit: y log Phi(eta) + (n - y) log Phi(-eta).
    """

    name = "binomial"
    takes_trials = True
    link: Link = "logit"

    def __post_init__(self) -> None:
        if self.link not in _LINKS:
            raise unknown("link of family 'binomial'", self.link, _LINKS)

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        assert trials is not None
        if self.link == "logit":
            return _binomial_logit(eta, response, trials)
        return response * log_ndtr(eta) + (trials - response) * log_ndtr(-eta)

    def refuse(self, seen: Seen) -> None:
        seen.refuse_fractions(self.name, "give the number of successes, not their share")
        if seen.above_trials:
            raise DataError(
                f"The response {seen.name!r} exceeds the number of trials in {seen.above_trials} rows; "
                "it must count the successes among them."
            )
        if seen.mean == 0 or seen.mean * seen.moments.count == seen.trials:
            raise DataError(
                f"The response {seen.name!r} has only failures or only successes: nothing to explain."
            )

    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        share = seen.mean * seen.moments.count / seen.trials
        return {"Intercept": Prior("normal", (rounded(_quantile(self.link, share)), 2.5))}

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        assert trials is not None
        return trials * _probability(self.link, eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        assert trials is not None
        count = np.broadcast_to(trials, eta.shape).astype(np.int64)
        return rng.binomial(count, _probability(self.link, eta)).astype(np.float64)
