"""Sampling of skewed targets in coordinates that are bent to make them about normal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.errors import OptionError
from shardmc.sample.independence import Independence
from shardmc.sample.sampler import Chains, Sampler, Tuning
from shardmc.target import GRID, Target, Warp, transport, unevenness

_PROBE = 2.0
_MOST = 32
"""Parameters with a map of their own: profiles of hundreds would take longer than sampling."""
_MATTERS = 0.1
"""The sum over parameters of the variance of the log slope. For a skewness g it is g^2 / 9, while proposals without a
warp have log weights with a variance of 5 g^2 / 12. Much below 0.1 the skewness is not what makes acceptance low."""


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
        What draws in the warped coordinates; by default independence sampling.

    Examples
    --------
    >>> from shardmc.sample import HMC
    >>> Warped(HMC(chains=8)).sampler.chains
    8
    """

    sampler: Sampler = field(default_factory=Independence)

    def __post_init__(self) -> None:
        if self.sampler.uses_rows or isinstance(self.sampler, Warped):
            raise OptionError(f"{self.sampler.name} does not sample in warped coordinates: leave out Warped.")

    @property
    def name(self) -> str:
        return f"Warped({self.sampler.name})"

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
        log_slopes, medians = maps(target)
        warped = replace(target, warp=Warp.of(log_slopes, medians))
        return log_slopes, medians, self.sampler.tune(warped, key) if self.sampler.tunes else ()

    def matters(self, tuning: Tuning) -> bool:
        """Whether parameters are skewed enough for the warp to change the acceptance much."""
        return unevenness(tuning[0]) > _MATTERS

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        log_slopes, medians, own = tuning
        warp = Warp.of(log_slopes, medians)
        # Other random numbers than those of an attempt without the warp.
        key = jax.random.fold_in(key, 1)
        chains = self.sampler.sample(replace(target, warp=warp), key, num_draws, own)
        shift = jax.vmap(jax.vmap(lambda u: target.shift(warp, u)[0]))(chains.u)
        return replace(chains, shift=shift)


def maps(target: Target) -> tuple[jax.Array, jax.Array]:
    """Log slopes (dim, knot) and medians (dim,) of the maps of the most skewed parameters, the identity of others."""
    frame = target.frame
    directions = frame.basis / frame.scales[:, None]
    both = jnp.concatenate([_PROBE * directions, -_PROBE * directions])
    # What the profile has beyond a normal density at two points. All of it is large where the density ends.
    excess = jnp.nan_to_num(target.log_densities(both) + 0.5 * _PROBE**2, nan=-jnp.inf, posinf=jnp.inf)
    _, most = lax.top_k(jnp.max(jnp.abs(excess).reshape(2, -1), axis=0), min(_MOST, target.dim))
    grid = jnp.asarray(GRID, directions.dtype)
    profiles = lax.map(lambda k: target.log_densities(grid[:, None] * directions[k]), most)
    log_slopes, medians = jax.vmap(transport)(profiles)
    flat = jnp.zeros((target.dim, log_slopes.shape[1]), log_slopes.dtype)
    return flat.at[most].set(log_slopes), flat[:, 0].at[most].set(medians)
