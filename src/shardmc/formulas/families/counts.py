"""Counts: Poisson and negative binomial, with and without more zeros than these have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from shardmc.errors import DataError
from shardmc.formulas.families.family import (
    Auxiliary,
    AuxiliaryDraws,
    Declared,
    Family,
    Moments,
    ResponseSummary,
    Start,
    Statistic,
    share_of,
)
from shardmc.formulas.families.special import (
    FARTHEST,
    bounded_exp,
    stirling_remainder_by_steps,
    stirling_slope_by_steps,
)
from shardmc.formulas.priors import Prior, to_four_digits
from shardmc.mixed.rows import around_middle


def _departure(eta: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(scale s, d) with exp(eta) = s e^d: s is the count, or 1 for a count of 0, so that d is small for a good fit.

    Without the size of the count, float32 has to hold only the departure from a perfect fit, however large the counts.
    """
    scale = jnp.maximum(count, 1.0)
    return scale, eta - jnp.log(scale)


class _Counts(Family):
    """What families of counts share."""

    takes_exposure = True

    @property
    def exp_of_link(self) -> str:
        return "ratio"

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        """Relative to a perfect fit, as `_departure` is: y log y - y - log y!."""
        return special.xlogy(response, response) - response - special.gammaln(response + 1)

    def refuse(self, response: ResponseSummary) -> None:
        response.refuse_fractions(
            self.name, "for amounts take family 'gamma' or 'gaussian', for rates give the exposure"
        )
        if response.mean == 0:
            raise DataError(f"The response {response.name!r} is 0 in every row: there is nothing to explain.")

    def extremes(self, response: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        return response == 0, response != 0

    def separates(self, parts: Sequence[Moments], num_rows: int) -> np.ndarray:
        lowest, highest = parts
        # Counts have no highest value: a predictor separates if it is constant, at an end of its range, where they
        # are positive.
        at_end = (highest.low == lowest.low) | (highest.high == lowest.high)
        return (highest.low == highest.high) & at_end

    @property
    def statistics(self) -> dict[str, Statistic]:
        return super().statistics | {"share of zeros": share_of(0)}

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return bounded_exp(eta)


@final
@dataclass(frozen=True)
class Poisson(_Counts):
    """y ~ Poisson(exp(eta)): log-likelihood y eta - exp(eta)."""

    name = "poisson"
    fixes_variance = True

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        scale, departure = _departure(eta, response)
        return response * departure - scale * jnp.expm1(departure)

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
        # A shift u takes d to d + u: three sums over rows serve all nodes.
        eta, shifts = around_middle(eta, shifts)
        scale, departure = _departure(eta, response)
        near = jnp.minimum(departure, FARTHEST)
        unshifted = jnp.sum(weights * (response * departure - scale * jnp.expm1(near)), axis=0)
        counts = jnp.sum(weights * response, axis=0)
        means = jnp.sum(weights * scale * jnp.exp(near), axis=0)  # 1 + expm1 would lose small ones
        return unshifted + counts * shifts - means * jnp.expm1(shifts)

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        # A count of 0 has the scale 1, whose term is not part of the density.
        return super().log_base(response, trials) - (response == 0)

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"Intercept": Prior("normal", (to_four_digits(response.log_rate), 2.5))}

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        return _poisson(rng, bounded_exp(eta))


@jax.custom_jvp
def _negative_binomial(eta: jax.Array, count: jax.Array, shape: jax.Array) -> jax.Array:
    """Log-likelihood of counts, up to a term of the count alone.

    With s the count, d = eta - log s and w = s / (shape + s), log(shape + mu) is log(shape + s) + log1p(w (e^d - 1)).
    Then y d - (y + shape) times that logarithm becomes two terms without cancellation. What depends on count and shape
    alone is Stirling's remainder and a logarithm, both small however large the counts.
    """
    scale, departure = _departure(eta, count)
    excess = jnp.log1p(scale / (shape + scale) * jnp.expm1(departure))
    lack = jnp.log1p(shape / (shape + scale) * jnp.expm1(jnp.minimum(-departure, FARTHEST)))
    spread = stirling_remainder_by_steps(count + shape) - stirling_remainder_by_steps(shape)
    is_zero = 1 - jnp.minimum(count, 1.0)
    rest = 0.5 * jnp.log1p(count / shape) + is_zero * (shape * jnp.log1p(1 / shape))
    return spread - rest - shape * excess - count * lack


@_negative_binomial.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    # Written out, because the derivative that JAX derives from the above is far slower.
    eta, count, shape = primals
    mean = jnp.exp(eta)
    ratio = (count + shape) / (mean + shape)
    digammas = 0.5 / shape - 0.5 / (count + shape)
    digammas = digammas + stirling_slope_by_steps(count + shape) - stirling_slope_by_steps(shape)
    by_shape = jnp.log1p(count / shape) - jnp.log1p(mean / shape) + digammas + 1 - ratio
    tangent = shape * (ratio - 1) * tangents[0] + by_shape * tangents[2]
    return _negative_binomial(eta, count, shape), tangent


@final
@dataclass(frozen=True)
class NegativeBinomial(_Counts):
    r"""y has mean mu = exp(eta) and variance mu + mu^2 / shape.

    Log-likelihood log Gamma(y + shape) - log Gamma(shape) + y log mu - (y + shape) log(shape + mu) + shape log shape.
    """

    name = "negative_binomial"

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
        return {"shape": "positive"}

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        return _negative_binomial(eta, response, auxiliary["shape"])

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (to_four_digits(response.log_rate), 2.5)),
            "shape": Prior("exponential", (1.0,)),
        }

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return _poisson(rng, rng.gamma(shape, bounded_exp(eta) / shape))


class _ZeroInflated(_Counts):
    """Counts that are 0 with probability zi, and else follow another distribution of counts.

    With m = log P(0) of that distribution, log P(0) is log(1 - zi) + log(zi / (1 - zi) + e^m).
    """

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
        return {"zi": "unit_interval"}

    def _inflated(
        self, positive: jax.Array, log_zero: jax.Array, count: jax.Array, zi: jax.Array
    ) -> jax.Array:
        """The log-likelihood, from that of positive counts and the log probability of 0 without inflation."""
        log_other = jnp.log1p(-zi)
        zero = jnp.logaddexp(jnp.log(zi) - log_other, log_zero)
        return log_other + jnp.where(count > 0, positive, zero)

    def refuse(self, response: ResponseSummary) -> None:
        super().refuse(response)
        if not response.zero:
            raise DataError(
                f"The response {response.name!r} has no zeros, which family {self.name!r} is for; take family "
                f"{self.name.removeprefix('zero_inflated_')!r}."
            )

    def start(self, response: ResponseSummary) -> Start:
        return {"zi": min(max(0.5 * response.zero / response.moments.count, 0.01), 0.99)}

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return (1 - auxiliary["zi"]) * bounded_exp(eta)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        counted = rng.uniform(size=eta.shape) >= auxiliary["zi"]
        return counted * self._simulate_counted(rng, eta, auxiliary)

    @abstractmethod
    def _simulate_counted(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws
    ) -> np.ndarray:
        """Counts of the distribution without inflation."""


@final
@dataclass(frozen=True)
class ZeroInflatedPoisson(_ZeroInflated):
    """y is 0 with probability zi, and else y ~ Poisson(exp(eta))."""

    name = "zero_inflated_poisson"
    fixes_variance = True

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        eta = jnp.minimum(eta, FARTHEST)
        positive = Poisson().log_likelihood(eta, response, {}, None)
        return self._inflated(positive, -jnp.exp(eta), response, auxiliary["zi"])

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return Poisson().default_priors(response) | {"zi": Prior("beta", (1.0, 1.0))}

    def _simulate_counted(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws
    ) -> np.ndarray:
        return Poisson().simulate(rng, eta, auxiliary, None)


@final
@dataclass(frozen=True)
class ZeroInflatedNegativeBinomial(_ZeroInflated):
    """y is 0 with probability zi, and else negative binomial with mean mu = exp(eta) and variance mu + mu^2 / shape."""

    name = "zero_inflated_negative_binomial"

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
        return {**NegativeBinomial().auxiliaries, **super().auxiliaries}

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        eta, shape = jnp.minimum(eta, FARTHEST), auxiliary["shape"]
        log_zero = -shape * jnp.log1p(jnp.exp(eta) / shape)
        positive = _negative_binomial(eta, response, shape)
        return self._inflated(positive, log_zero, response, auxiliary["zi"])

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return NegativeBinomial().default_priors(response) | {"zi": Prior("beta", (1.0, 1.0))}

    def _simulate_counted(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws
    ) -> np.ndarray:
        return NegativeBinomial().simulate(rng, eta, auxiliary, None)


def _poisson(rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
    """Poisson draws; normal ones where the rate is too large for NumPy."""
    small = np.minimum(rate, 1e15)
    return np.where(
        rate > 1e15, np.round(rng.normal(rate, np.sqrt(rate))), rng.poisson(small).astype(np.float64)
    )
