"""What a family of a generalised linear model promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

import jax
import numpy as np

from shardmc.glm.families.response import Seen
from shardmc.glm.prior import Prior

Auxiliary = Mapping[str, Any]
"""Parameters of a family besides the linear predictor, by name."""


class Family(ABC):
    """A distribution of the response given the linear predictor eta.

    On the device: `log_likelihood`, one number per row, up to a term that no parameter enters. On the host, in
    float64: what the response is expected to be, and what it may be.
    """

    name: ClassVar[str]
    location_scale: ClassVar[bool] = False
    """Whether response and linear predictor are in the same units, so that both can be rescaled."""
    takes_trials: ClassVar[bool] = False
    takes_exposure: ClassVar[bool] = False
    location: ClassVar[str] = "Intercept"
    """The parameter that moves the linear predictor of all rows."""

    @property
    def auxiliaries(self) -> Mapping[str, Any]:
        """Name -> support of the parameters besides the coefficients."""
        return {}

    @abstractmethod
    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        """Log-likelihood of each row, (row,), less what no parameter enters; `response` is that of `encode`."""

    def encode(self, response: np.ndarray) -> np.ndarray:
        """The response as the log-likelihood takes it."""
        return response

    @abstractmethod
    def refuse(self, seen: Seen) -> None:
        """Raise one sentence where the response cannot be of this family."""

    @abstractmethod
    def default_priors(self, seen: Seen) -> dict[str, Prior]:
        """Priors of the location (predictors at their means) and of the family's own parameters."""

    def coefficient_scale(self, seen: Seen) -> float:
        """Prior standard deviation of a coefficient, for a predictor with standard deviation 1."""
        return 2.5

    def start(self, seen: Seen) -> dict[str, Any]:
        """Where to start looking for the mode, other than at the priors' locations."""
        return {}

    @abstractmethod
    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        """Expected response, (draw, row); eta is (draw, row) and auxiliary parameters are (draw, 1)."""

    @abstractmethod
    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        """Responses drawn from their distribution, (draw, row)."""

    def to_dict(self) -> dict[str, Any]:
        """Name and options, as JSON can hold them."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"name": self.name, **{key: _plain(value) for key, value in options.items()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
