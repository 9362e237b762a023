"""The log density of one shard's subposterior, in coordinates where it is about standard normal."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from shardmc.data.batch import Rows
from shardmc.model import Model
from shardmc.types import Frame


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceFrame:
    """A `Frame` as the compiled programs see it: theta = center + basis @ u."""

    center: jax.Array  # (dim,)
    basis: jax.Array  # (dim, dim)

    def to_theta(self, u: jax.Array) -> jax.Array:
        return self.center + self.basis @ u

    @staticmethod
    def of(frame: Frame) -> DeviceFrame:
        real = jnp.result_type(float)
        return DeviceFrame(jnp.asarray(frame.center, real), jnp.asarray(frame.basis, real))


@dataclass(frozen=True)
class Target:
    """power * (log prior + sum_j w_j l_j) at theta = center + basis u, less its value at u = 0.

    Row by row the difference l_j(theta) - l_j(center) is summed instead of l_j, so that in float32 the sum keeps
    its precision however many rows there are. `power` is 1 for the rescaled subposterior and the shard's share for
    the fractional one.
    """

    model: Model
    rows: Rows
    weights: jax.Array  # (row,)
    frame: DeviceFrame
    power: jax.Array | float = 1.0
    reference: jax.Array = field(init=False)  # (row,) log-likelihoods at the centre

    def __post_init__(self) -> None:
        object.__setattr__(self, "reference", self.model.log_likelihood(self.frame.center, self.rows))

    @property
    def dim(self) -> int:
        return self.frame.center.shape[0]

    def log_density(self, u: jax.Array) -> jax.Array:
        """Log density at one point u (dim,), relative to u = 0."""
        theta = self.frame.to_theta(u)
        gain = jnp.sum(self.weights * (self.model.log_likelihood(theta, self.rows) - self.reference))
        prior_gain = self.model.log_prior(theta) - self.model.log_prior(self.frame.center)
        return self.power * (gain + prior_gain)

    def log_densities(self, u: jax.Array) -> jax.Array:
        """Log densities at many points (point, dim): one matrix computation over all rows and points."""
        return jax.vmap(self.log_density)(u)


def log_likelihood_sum(
    model: Model, rows: Rows, weights: jax.Array, frame: DeviceFrame, reference: jax.Array, u: jax.Array
) -> jax.Array:
    """sum_j w_j (l_j(theta(u)) - reference_j): the likelihood part of a target, for sums over shards."""
    return jnp.sum(weights * (model.log_likelihood(frame.to_theta(u), rows) - reference))
