"""What a sampler is: a pure function from one shard's target to draws, compiled once for all shards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shardmc.target import Target


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chains:
    """Draws of one shard in its frame's coordinates, and what the chains did."""

    u: jax.Array  # (chain, draw, dim)
    acceptance: jax.Array  # () mean acceptance probability
    divergences: jax.Array  # () number of divergent transitions
    evaluations: jax.Array | int  # () how often each of the shard's rows was evaluated


class Sampler(ABC):
    """Draws from one shard's target. Implementations are frozen dataclasses: their options are compile-time."""

    needs_mode: ClassVar[bool] = True
    """Whether it can do nothing without the modes; otherwise it does without them where there are none."""

    @property
    def takes_power(self) -> bool:
        """Whether it can raise the prior to a power, as fractional subposteriors need."""
        return True

    def tune(self, target: Target, key: jax.Array) -> Any:
        """Numbers that all shards share (a step size), from one pilot shard; averaged over pilots. None by default."""
        return ()

    @property
    def tunes(self) -> bool:
        """Whether `tune` has anything to find out."""
        return False

    @abstractmethod
    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Any) -> Chains:
        """At least `num_draws` draws after warm-up."""


def student_t(noise: jax.Array, df: int) -> jax.Array:
    """Draws (..., dim) of a standard multivariate Student t from standard normal numbers (..., df + dim)."""
    # A sum of squares, not a gamma variate: its rejection loop takes longer to compile than all the rest.
    chi2 = jnp.sum(noise[..., :df] ** 2, axis=-1)
    return noise[..., df:] * jnp.sqrt(df / chi2)[..., None]


def student_t_log_density(u: jax.Array, df: int) -> jax.Array:
    """Log density of the standard multivariate Student t, up to a constant."""
    return -0.5 * (df + u.shape[-1]) * jnp.log1p(jnp.sum(u**2, axis=-1) / df)
