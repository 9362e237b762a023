"""Times until an event, some of them censored: Weibull responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from shardmc.errors import DataError
from shardmc.formulas.families.family import Auxiliary, ResponseSummary
from shardmc.formulas.families.positive import Positive
from shardmc.formulas.families.special import HALF_LOG_2_PI, bounded_exp, stirling_remainder_by_steps
from shardmc.formulas.priors import Prior, rounded


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
