"""Random-walk Metropolis in the shard's whitened coordinates: slow, simple, and needs no gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from shardmc.sample.sampler import Moved, Walker
from shardmc.target import Target


@final
@dataclass(frozen=True)
class RandomWalk(Walker):
    """Random-walk Metropolis (BlackJAX's kernel) with Gaussian steps.

    Parameters
    ----------
    chains
        Chains per shard.
    warmup
        Rounds of each chain before the first draw is kept.
    step_size
        Standard deviation of a step, one for all shards; adapted on pilot shards by default.
    target_acceptance
        The acceptance that the adaptation aims at.
    thin
        Steps per draw.

    Examples
    --------
    >>> RandomWalk(chains=4, thin=20).thin
    20
    """

    needs_mode = False

    chains: int = 8
    warmup: int = 50
    target_acceptance: float = 0.25
    thin: int = 10

    def start(self, target: Target, u: jax.Array) -> Any:
        from blackjax.mcmc import random_walk

        return random_walk.init(u, target.log_density)

    def step(self, target: Target, key: jax.Array, states: Any, step_size: Any) -> tuple[Any, Moved]:
        from blackjax.mcmc import random_walk

        kernel = random_walk.build_additive_step()
        metric_draw = random_walk.normal(step_size * jnp.ones(target.dim))

        def one(key: jax.Array, state: Any):
            def hop(state: Any, key: jax.Array):
                state, info = kernel(key, state, target.log_density, metric_draw)
                return state, info.acceptance_rate

            state, acceptance = jax.lax.scan(hop, state, jax.random.split(key, self.thin))
            return state, jnp.mean(acceptance)

        states, acceptance = jax.vmap(one)(jax.random.split(key, self.chains), states)
        each = jnp.full(self.chains, self.thin)
        return states, Moved(acceptance, jnp.zeros(self.chains, bool), each)
