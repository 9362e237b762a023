"""Successes in one trial (Bernoulli) or several (binomial)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import log_ndtr
from scipy import special

from shardmc.errors import DataError, counted, unknown
from shardmc.formulas.families.family import (
    Auxiliary,
    AuxiliaryDraws,
    Family,
    Moments,
    ResponseSummary,
    Statistic,
    share_of,
)
from shardmc.formulas.families.special import FARTHEST, bounded_exp
from shardmc.formulas.priors import Prior, to_four_digits
from shardmc.mixed.rows import around_middle, multiplied, summed

Link = Literal["logit", "probit", "cloglog"]
_LINKS = ("logit", "probit", "cloglog")
_SMALL_HAZARD = 0.1


@dataclass(frozen=True)
class _Successes(Family):
    """What families of successes share."""

    link: Link = "logit"

    def __post_init__(self) -> None:
        if self.link not in _LINKS:
            raise unknown(f"link of family {self.name!r}", self.link, _LINKS)

    @property
    def exp_of_link(self) -> str | None:
        return "odds_ratio" if self.link == "logit" else None

    def separates(self, parts: Sequence[Moments], num_rows: int) -> np.ndarray:
        lowest, highest = parts
        # No overlap, except in one common value, between failures and successes; no row has both.
        apart = (lowest.high <= highest.low) | (highest.high <= lowest.low)
        return apart & (lowest.count + highest.count == num_rows)

    def _probability(self, eta: np.ndarray) -> np.ndarray:
        match self.link:
            case "logit":
                return special.expit(eta)
            case "probit":
                return special.ndtr(eta)
        return -np.expm1(-bounded_exp(eta))

    def _intercept_prior(self, probability: float) -> Prior:
        match self.link:
            case "logit":
                middle = special.logit(probability)
            case "probit":
                middle = special.ndtri(probability)
            case _:
                middle = np.log(-np.log1p(-probability))
        return Prior("normal", (to_four_digits(float(middle)), 2.5))


def _log_probabilities(eta: jax.Array, link: Link) -> tuple[jax.Array, jax.Array]:
    """Log probabilities of a failure and of a success, for links other than logit.

    With h = e^eta, the complementary log-log link has -h and log(1 - e^-h); for small h the latter is
    eta - h / 2 + h^2 / 24.
    """
    if link == "probit":
        return log_ndtr(-eta), log_ndtr(eta)
    hazard = jnp.exp(jnp.minimum(eta, FARTHEST))
    small = jnp.minimum(hazard, _SMALL_HAZARD)
    large = jnp.maximum(hazard, _SMALL_HAZARD)
    series = eta - small * (0.5 - small * (1 / 24 - small * small / 2880))
    return -hazard, jnp.where(hazard < _SMALL_HAZARD, series, jnp.log(-jnp.expm1(-large)))


def _binomial_logit(eta: jax.Array, successes: jax.Array, trials: jax.Array) -> jax.Array:
    """y d - n log(1 + p (e^d - 1)), with p close to y / n and d = eta - logit(p): no exponential overflows."""
    share = (successes + 0.5) / (trials + 1)
    departure = eta - jnp.log(share) + jnp.log1p(-share)
    above = departure > 0
    down = jnp.where(above, -departure, departure)
    rest = jnp.log1p(jnp.where(above, 1 - share, share) * jnp.expm1(down))
    return successes * departure - trials * (jnp.where(above, departure, 0.0) + rest)


@jax.custom_jvp
def _log_probability_of_stretches(signed_eta: jax.Array, present: jax.Array) -> jax.Array:
    """Sums over rows (stretch,) of log probabilities of 0 and 1, given s = (2 y - 1) eta; `present` is 0 or 1.

    It takes one logarithm for all rows of a stretch. Their product lies between 1 and 2^64.
    """
    size = jnp.abs(signed_eta)
    together = multiplied(1 + present * jnp.exp(-size))
    return 0.5 * summed(present * (signed_eta - size)) - jnp.log(together)


@_log_probability_of_stretches.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    # The derivative of a product by JAX is far slower.
    signed_eta, present = primals
    slope = present / (1 + jnp.exp(signed_eta))
    return _log_probability_of_stretches(signed_eta, present), jnp.sum(slope * tangents[0], axis=0)


def _odds(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(a, b) with 1 + e^x = (a + b) e^max(x, 0); neither is above 1."""
    smaller = jnp.exp(-jnp.abs(x))
    return jnp.where(x > 0, smaller, 1.0), jnp.where(x > 0, 1.0, smaller)


def _log_probability_at_shifts(
    eta: jax.Array, shifts: jax.Array, response: jax.Array, present: jax.Array
) -> jax.Array:
    """Sums over rows (node, stretch) at eta (row, stretch) + shifts (node, stretch); `present` is 0 or 1.

    1 + e^(eta + u) = (a_eta a_u + b_eta b_u) e^(max(eta, 0) + max(u, 0)). So rows and nodes have their exponentials
    apart, and the product over rows needs one logarithm. It must not underflow: see `_product_is_safe`.
    """
    low, high = _odds(eta)
    shift_low, shift_high = _odds(shifts)
    low, high = jnp.where(present > 0, low, 1.0), present * high
    together = jnp.prod(low[:, None] * shift_low + high[:, None] * shift_high, axis=0)
    unshifted = jnp.sum(present * (response * eta - jnp.maximum(eta, 0.0)), axis=0)
    successes = jnp.sum(present * response, axis=0)
    return unshifted + successes * shifts - len(eta) * jnp.maximum(shifts, 0.0) - jnp.log(together)


def _product_is_safe(eta: jax.Array, shifts: jax.Array, present: jax.Array) -> jax.Array:
    """Whether no product over rows is below e^-80: each factor is at least e^-min(|eta|, |u|)."""
    farthest = jnp.max(jnp.abs(shifts), axis=0)
    each = jnp.where(present > 0, jnp.minimum(jnp.abs(eta), farthest), farthest)
    return jnp.max(jnp.sum(each, axis=0)) < FARTHEST


@final
@dataclass(frozen=True)
class Bernoulli(_Successes):
    """y is 1 with probability p; logit, probit or log(-log(1 - p)) of p is eta.

    With logit and probit the two outcomes are symmetric: with s = (2 y - 1) eta the log-likelihood is -log(1 + e^-s)
    for logit and log Phi(s) for probit.
    """

    name = "bernoulli"
    learns_from_one_row = False
    mean_is_probability = True

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        if self.link == "cloglog":
            failure, success = _log_probabilities(eta, self.link)
            return jnp.where(response > 0.5, success, failure)
        return self._log_probability((2 * response - 1) * eta)

    def log_likelihood_of_rows(
        self,
        linear_predictor: Callable[[jax.Array | None], jax.Array],
        response: jax.Array,
        auxiliary: Auxiliary,
        trials: jax.Array | None,
    ) -> jax.Array:
        if self.link == "cloglog":
            return super().log_likelihood_of_rows(linear_predictor, response, auxiliary, trials)
        # The sign goes into the design matrix: once per row, not once per row and point.
        return self._log_probability(linear_predictor(2 * response - 1))

    def log_likelihood_of_groups(
        self,
        eta: jax.Array,
        response: jax.Array,
        auxiliary: Auxiliary,
        trials: jax.Array | None,
        weights: jax.Array,
        *,
        counted: bool,
    ) -> jax.Array:
        if self.link != "logit" or not counted:
            return super().log_likelihood_of_groups(
                eta, response, auxiliary, trials, weights, counted=counted
            )
        return _log_probability_of_stretches((2 * response - 1) * eta, weights)

    def log_likelihood_at_shifts(
        self,
        eta: jax.Array,
        shifts: jax.Array,
        response: jax.Array,
        trials: jax.Array | None,
        weights: jax.Array,
        *,
        counted: bool,
    ) -> jax.Array:
        plainly = partial(super().log_likelihood_at_shifts, trials=None, counted=counted)
        # An accelerator would compute both branches of the condition.
        if self.link != "logit" or not counted or jax.default_backend() != "cpu":
            return plainly(eta, shifts, response, weights=weights)
        eta, shifts = around_middle(eta, shifts)
        return lax.cond(
            _product_is_safe(eta, shifts, weights),
            _log_probability_at_shifts,
            lambda eta, shifts, response, present: plainly(eta, shifts, response, weights=present),
            eta,
            shifts,
            response,
            weights,
        )

    def slopes(
        self, eta: jax.Array, response: jax.Array, trials: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        if self.link != "logit":
            return super().slopes(eta, response, trials)
        probability = 1 / (1 + jnp.exp(-eta))
        return response - probability, -probability * (1 - probability)

    def _log_probability(self, signed_eta: jax.Array) -> jax.Array:
        """Log probability of the outcomes, given s = (2 y - 1) eta."""
        if self.link == "logit":
            size = jnp.abs(signed_eta)  # -softplus(-s) with two operations fewer per number
            return 0.5 * (signed_eta - size) - jnp.log1p(jnp.exp(-size))
        return log_ndtr(signed_eta)

    def refuse(self, response: ResponseSummary) -> None:
        found = sorted(response.values or ())
        if response.values is None or not set(found) <= {0.0, 1.0}:
            many = f"{len(found) if found else 'very many'} different values"
            shown = ", ".join(f"{v:g}" for v in found[:3]) + (", ..." if len(found) > 3 else "")
            raise DataError(
                f"The response {response.name!r} of family 'bernoulli' must be 0 or 1, but it has {many}"
                f"{f' ({shown})' if shown else ''}; write which of them is a success, as in "
                f'"I({response.name} == {found[-1] if found else 1:g}) ~ ...", or take another family.'
            )
        response.refuse_constant()

    def extremes(self, response: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return response == 0, response == 1

    @property
    def statistics(self) -> dict[str, Statistic]:
        return {"mean": lambda y: y.mean(axis=1)}

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"Intercept": self._intercept_prior(response.mean)}

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return self._probability(eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        return (rng.uniform(size=eta.shape) < self._probability(eta)).astype(np.float64)


@final
@dataclass(frozen=True)
class Binomial(_Successes):
    """y successes in n trials; logit, probit or log(-log(1 - p)) of their probability p is eta.

    Logit: y eta - n log(1 + e^eta), relative to the row's own share of successes, so that large counts keep their
    digits. Other links: y log p + (n - y) log(1 - p).
    """

    name = "binomial"
    fixes_variance = True
    takes_trials = True

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        assert trials is not None
        if self.link == "logit":
            return _binomial_logit(eta, response, trials)
        failure, success = _log_probabilities(eta, self.link)
        return response * success + (trials - response) * failure

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        assert trials is not None
        ways = -np.log1p(trials) - special.betaln(response + 1, trials - response + 1)
        if self.link != "logit":
            return ways
        share = (response + 0.5) / (trials + 1)  # as in `_binomial_logit`
        return ways + response * np.log(share) + (trials - response) * np.log1p(-share)

    def refuse(self, response: ResponseSummary) -> None:
        response.refuse_fractions(self.name, "give the number of successes, not their share")
        if response.above_trials:
            raise DataError(
                f"The response {response.name!r} exceeds the number of trials in "
                f"{counted(response.above_trials, 'row')}; "
                "it must count the successes among them."
            )
        if response.mean == 0 or response.mean * response.moments.count == response.trials:
            raise DataError(
                f"The response {response.name!r} has only failures or only successes: nothing to explain."
            )

    def extremes(self, response: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return response == 0, response == trials

    @property
    def statistics(self) -> dict[str, Statistic]:
        return super().statistics | {"share of zeros": share_of(0)}

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"Intercept": self._intercept_prior(response.mean * response.moments.count / response.trials)}

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        assert trials is not None
        return trials * self._probability(eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        assert trials is not None
        count = np.broadcast_to(trials, eta.shape).astype(np.int64)
        return rng.binomial(count, self._probability(eta)).astype(np.float64)
