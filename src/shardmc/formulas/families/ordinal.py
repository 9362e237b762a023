"""Ordered levels: proportional odds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from shardmc.formulas.families.family import Auxiliary, ResponseSummary
from shardmc.formulas.families.levels import Levels
from shardmc.formulas.families.special import softplus
from shardmc.formulas.priors import Prior
from shardmc.model import Parameter

_BEYOND = 1e4  # a cutpoint with nothing beyond it, but finite, so that gradients are finite too


@final
@dataclass(frozen=True)
class Ordinal(Levels):
    """y is one of ordered levels; logit P(y <= level k) = cutpoint_k - eta.

    With a and b the cutpoints above and below, less eta: log P = log s(a) + log s(-b) + log(1 - e^(b - a)), where s is
    the logistic function.
    """

    name = "ordinal"
    kinds_of_levels = "whole numbers or ordered categories"
    levels_are_ordered = True
    location = "cutpoint"
    location_is_auxiliary = True

    @property
    def location_support(self) -> Parameter:
        return Parameter(len(self.levels) - 1, "ordered")

    def move_location(self, location: Any, by: Any) -> Any:
        return location - by[..., None]

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        cutpoints = auxiliary["cutpoint"]
        padding = jnp.full((1,), _BEYOND, cutpoints.dtype)
        points = jnp.concatenate([-padding, cutpoints, padding])
        widths = jnp.log1p(-jnp.exp(points[:-1] - points[1:]))
        # With many draws, a product with the level's indicator is faster than indexing.
        indicator = jax.nn.one_hot(response, len(self.levels), dtype=eta.dtype)
        above, below, width = (
            jnp.matmul(indicator, v, precision="highest") for v in (points[1:], points[:-1], widths)
        )
        return width - softplus(eta - above) - softplus(below - eta)

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"cutpoint": Prior("student_t", (3.0, 0.0, 2.5))}

    def start(self, response: ResponseSummary) -> dict[str, Any]:
        below = np.cumsum(self.counts(response))
        return {"cutpoint": special.logit(below[:-1] / below[-1])}

    def probabilities(self, eta: np.ndarray, cutpoints: np.ndarray) -> np.ndarray:
        """Probability of every level, (draw, row, level), for eta (draw, row) and cutpoints (draw, cutpoint)."""
        below = special.expit(cutpoints[:, None, :] - eta[..., None])
        ends = np.zeros((*eta.shape, 1))
        return np.diff(np.concatenate([ends, below, ends + 1], axis=-1), axis=-1)

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return self.probabilities(eta, auxiliary["cutpoint"])

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        latent = eta + rng.logistic(size=eta.shape)
        return (latent[..., None] > auxiliary["cutpoint"][:, None, :]).sum(axis=-1).astype(np.float64)
