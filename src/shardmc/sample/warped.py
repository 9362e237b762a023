"""Sampling of skewed targets in coordinates that are bent to make them about normal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.sample.independence import Independence
from shardmc.sample.sampler import Chains, Sampler, Tuning
from shardmc.target import Target
from shardmc.warp import GRID, Warp, transport


@final
@dataclass(frozen=True)
class Warped(Sampler):
    """Another sampler in warped coordinates, for parameters with skewed densities.

    The coefficient of a level with one outcome only has a long tail on one side and a wall on the other. For each
    parameter a monotone map takes a normal variable to its density: theta_k = c_k + s_k g_k(z_k), with z normal with
    the correlations of the shard's curvature. The density along a parameter is its profile: the others follow on the
    line of their conditional means. Profiles are evaluated on pilot shards and their maps averaged, so all shards
    share the g_k, in units of their own s_k. The target includes the maps' slopes, so the draws are exact for any maps;
    better maps are accepted more often.

    Parameters
    ----------
    sampler
        What draws in the warped coordinates.

    Examples
    --------
    >>> from shardmc.sample import HMC
    >>> Warped(HMC(chains=8)).sampler.chains
    8
    """

    sampler: Sampler = field(default_factory=Independence)

    @property
    def takes_power(self) -> bool:
        return self.sampler.takes_power

    @property
    def tunes(self) -> bool:
        return True

    @property
    def tuning_steps(self) -> int:
        return self.sampler.tuning_steps + 1

    def steps(self, num_draws: int) -> int:
        return self.sampler.steps(num_draws)

    def tune(self, target: Target, key: jax.Array) -> Tuning:
        """The maps of this shard, and the sampler's own numbers on the warped target."""
        log_slopes, medians = jax.vmap(transport)(profiles(target))
        warped = replace(target, warp=Warp.of(log_slopes, medians))
        return log_slopes, medians, self.sampler.tune(warped, key) if self.sampler.tunes else ()

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        log_slopes, medians, own = tuning
        warped = replace(target, warp=Warp.of(log_slopes, medians))
        # Other random numbers than those of an attempt without the warp.
        return in_frame(warped, self.sampler.sample(warped, jax.random.fold_in(key, 1), num_draws, own))


def profiles(target: Target) -> jax.Array:
    """Log densities (dim, point) along each parameter at the points of `GRID`, in standard deviations.

    The other parameters follow on the line of their conditional means, given the curvature.
    """
    frame = target.frame
    directions = frame.basis / frame.scales[:, None]
    grid = jnp.asarray(GRID, directions.dtype)
    return lax.map(lambda direction: target.log_densities(grid[:, None] * direction), directions)


def in_frame(target: Target, chains: Chains) -> Chains:
    """Chains in the coordinates of a warped target's frame."""
    flat = chains.u.reshape(-1, target.dim)
    gaps = jax.vmap(lambda u: target.to_theta(u)[0] - target.frame.center)(flat)
    u = jnp.linalg.solve(target.frame.basis, gaps.T).T
    return replace(chains, u=u.reshape(chains.u.shape))
