"""What the search for a mode, and a shard's target, need of a model."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np


class Density(Protocol):
    """A log prior and a log-likelihood of rows, over one unconstrained vector."""

    @property
    def dim(self) -> int:
        """The length of the vector."""
        ...

    @property
    def names(self) -> list[str]:
        """One name per coordinate."""
        ...

    @property
    def initial(self) -> np.ndarray:
        """Where to look for the mode first, (dim,)."""
        ...

    def log_likelihood(self, theta: Any, rows: Any) -> jax.Array:
        """Log-likelihood of every row, (row,)."""
        ...

    def log_prior(self, theta: Any) -> jax.Array:
        """Log prior, a number."""
        ...
