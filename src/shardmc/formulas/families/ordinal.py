"""Ordered levels: proportional odds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from shardmc.errors import DataError
from shardmc.formulas.chunk import Level
from shardmc.formulas.families.family import Auxiliary, Family, ResponseSummary, Statistic, share_of
from shardmc.formulas.families.special import softplus
from shardmc.formulas.priors import Prior
from shardmc.model import Parameter

_BEYOND = 1e4  # a cutpoint with nothing beyond it, but finite, so that gradients are finite too
_MOST_LEVELS = 50


@final
@dataclass(frozen=True)
class Ordinal(Family):
    """y is one of ordered levels; logit P(y <= level k) = cutpoint_k - eta.

    With a and b the cutpoints above and below, less eta: log P = log s(a) + log s(-b) + log(1 - e^(b - a)), where s is
    the logistic function. Rows hold the level's number.
    """

    name = "ordinal"
    learns_from_one_row = False
    takes_levels = True
    location = "cutpoint"
    location_is_auxiliary = True
    mean_is_probability = True
    levels: tuple[Level, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))

    @property
    def levels_of_response(self) -> tuple[Level, ...]:
        return self.levels

    @property
    def exp_of_link(self) -> str:
        return "odds_ratio"

    def with_levels(
        self, levels: Sequence[Level] | None, response: ResponseSummary
    ) -> tuple[Ordinal, ResponseSummary]:
        if levels is not None:
            return Ordinal(tuple(levels)), response
        found = sorted(response.values or ())
        if response.values is None or response.fractions:
            raise DataError(
                f"The response {response.name!r} of family 'ordinal' must have few levels, whole numbers or ordered "
                "categories; for numbers take family 'gaussian'."
            )
        counts = {float(number): response.values[value] for number, value in enumerate(found)}
        return Ordinal(tuple(int(value) for value in found)), replace(response, values=counts)

    @property
    def location_support(self) -> Parameter:
        return Parameter(len(self.levels) - 1, "ordered")

    def move_location(self, location: Any, by: Any) -> Any:
        return location - by[..., None]

    def encode(self, response: np.ndarray) -> np.ndarray:
        return response.astype(np.int32)

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

    def refuse(self, response: ResponseSummary) -> None:
        if len(self.levels) < 3:
            raise DataError(
                f"The response {response.name!r} of family 'ordinal' has {len(self.levels)} levels; it needs three or "
                "more. For two take family 'bernoulli'."
            )
        if len(self.levels) > _MOST_LEVELS:
            raise DataError(
                f"The response {response.name!r} of family 'ordinal' has {len(self.levels)} levels; at most "
                f"{_MOST_LEVELS} make sense. For numbers take family 'gaussian'."
            )
        empty = [
            level
            for number, level in enumerate(self.levels)
            if not (response.values or {}).get(float(number))
        ]
        if empty:
            raise DataError(
                f"Level {empty[0]!r} of the response {response.name!r} occurs in no row; leave it out of the levels."
            )

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"cutpoint": Prior("student_t", (3.0, 0.0, 2.5))}

    def start(self, response: ResponseSummary) -> dict[str, Any]:
        counts = np.array([(response.values or {}).get(float(k), 1) for k in range(len(self.levels))], float)
        return {"cutpoint": special.logit(np.cumsum(counts)[:-1] / counts.sum())}

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

    @property
    def statistics(self) -> dict[str, Statistic]:
        return {f"share of {level}": share_of(number) for number, level in enumerate(self.levels)}
