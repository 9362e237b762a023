"""Counts with a log link: Poisson, and the negative binomial for counts that scatter more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError
from shardmc.glm.families.base import Auxiliary, Family
from shardmc.glm.families.response import Seen
from shardmc.glm.families.special import stirling_remainder_by_steps, stirling_slope_by_steps
from shardmc.glm.prior import Prior, rounded

_LARGEST = 700.0  # exp of more overflows float64
_FARTHEST = 80.0  # and exp of more than this float32


def _departure(eta: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(scale s, d) with exp(eta) = s e^d: s is the count, or 1 for none, so that d is small where the fit is good.

    With the count's own size taken out, what is left in float32 is the departure from a perfect fit, however large
    the counts are.
    """
    scale = jnp.maximum(count, 1.0)
    return scale, eta - jnp.log(scale)


def _refuse(seen: Seen, family: str) -> None:
    seen.refuse_fractions(
        family, "for amounts take family 'gamma' or 'gaussian', for rates give the exposure"
    )
    if seen.mean == 0:
        raise DataError(f"The response {seen.name!r} is 0 in every row: there is nothing to explain.")


def _log_rate(seen: Seen) -> float:
    return float(np.log(seen.mean * seen.moments.count / seen.exposure))


@final
@dataclass(frozen=True)
class Poisson(Family):
    """y ~ Poisson(exp(eta)): log-likelihood y eta - exp(eta)."""

    name = "poisson"
    takes_exposure = True

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        scale, departure = _departure(eta, response)
        return response * departure - scale * jnp.expm1(departure)

    def refuse(self, seen: Seen) -> None:
        _refuse(seen, self.name)

    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        return {"Intercept": Prior("normal", (rounded(_log_rate(seen)), 2.5))}

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return np.exp(np.minimum(eta, _LARGEST))

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        return _poisson(rng, np.exp(np.minimum(eta, _LARGEST)))


@jax.custom_jvp
def _negative_binomial(eta: jax.Array, count: jax.Array, shape: jax.Array) -> jax.Array:
    """Log-likelihood of counts, less a term of the count alone.

    With s the count, d = eta - log s and w = s / (shape + s), log(shape + mu) is log(shape + s) + log1p(w (e^d - 1)),
    and of y d - (y + shape) times that logarithm two terms without cancellation are left. What depends on count and
    shape alone is Stirling's remainder and a logarithm, both small however large the counts.
    """
    scale, departure = _departure(eta, count)
    excess = jnp.log1p(scale / (shape + scale) * jnp.expm1(departure))
    lack = jnp.log1p(shape / (shape + scale) * jnp.expm1(jnp.minimum(-departure, _FARTHEST)))
    spread = stirling_remainder_by_steps(count + shape) - stirling_remainder_by_steps(shape)
    is_zero = 1 - jnp.minimum(count, 1.0)
    rest = 0.5 * jnp.log1p(count / shape) + is_zero * (shape * jnp.log1p(1 / shape))
    return spread - rest - shape * excess - count * lack


@_negative_binomial.defjvp
def _(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    # Written out, because the derivative that JAX finds of the above takes far longer.
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
class NegativeBinomial(Family):
    r"""y has mean mu = exp(eta) and variance mu + mu^2 / shape.

    Log-likelihood log Gamma(y + shape) - log Gamma(shape) + y log mu - (y + shape) log(shape + mu) + shape log shape.
    """

    name = "negative_binomial"
    takes_exposure = True

    @property
    def auxiliaries(self) -> Mapping[str, Any]:
        return {"shape": "positive"}

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        return _negative_binomial(eta, response, auxiliary["shape"])

    def refuse(self, seen: Seen) -> None:
        _refuse(seen, self.name)

    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        return {
            "Intercept": Prior("normal", (rounded(_log_rate(seen)), 2.5)),
            "shape": Prior("exponential", (1.0,)),
        }

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return np.exp(np.minimum(eta, _LARGEST))

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        shape = np.broadcast_to(auxiliary["shape"], eta.shape)
        return _poisson(rng, rng.gamma(shape, np.exp(np.minimum(eta, _LARGEST)) / shape))


def _poisson(rng: np.random.Generator, rate: np.ndarray) -> np.ndarray:
    """Poisson draws; beyond the range of NumPy's, the normal distribution that they then follow."""
    small = np.minimum(rate, 1e15)
    return np.where(
        rate > 1e15, np.round(rng.normal(rate, np.sqrt(rate))), rng.poisson(small).astype(np.float64)
    )
