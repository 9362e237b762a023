"""The No-U-Turn sampler in the shard's whitened coordinates, for comparison and for unusual shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from shardmc.sample.sampler import Moved, Walker
from shardmc.target import Target


@final
@dataclass(frozen=True)
class NUTS(Walker):
    """NUTS (BlackJAX's kernel).

    Parameters
    ----------
    chains
        Chains per shard.
    warmup
        Transitions of each chain before the first draw is kept.
    step_size
        One for all shards; adapted on pilot shards by default.
    target_acceptance
        The acceptance that the adaptation aims at.
    max_doublings
        Largest depth of a trajectory's tree.

    Examples
    --------
    >>> NUTS(chains=2, max_doublings=6).max_doublings
    6
    """

    needs_mode = False

    chains: int = 4
    warmup: int = 50
    max_doublings: int = 8

    def start(self, target: Target, u: jax.Array) -> Any:
        from blackjax.mcmc import nuts

        return nuts.init(u, target.log_density)

    def step(self, target: Target, key: jax.Array, states: Any, step_size: Any) -> tuple[Any, Moved]:
        from blackjax.mcmc import nuts

        kernel = nuts.build_kernel()
        metric = jnp.ones(target.dim)

        def one(key: jax.Array, state: Any):
            return kernel(key, state, target.log_density, step_size, metric, self.max_doublings)

        states, info = jax.vmap(one)(jax.random.split(key, self.chains), states)
        return states, Moved(info.acceptance_rate, info.is_divergent, info.num_integration_steps)
