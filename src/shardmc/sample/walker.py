"""Samplers that walk: several chains of a shard advance together, so that a step is a matrix product over its rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.sample.sampler import Chains, Sampler, student_t, student_t_log_density
from shardmc.target import Target

_START_DF = 20
_START_CANDIDATES = 16
_PILOT_STEPS = 120


class Moved(NamedTuple):
    """One step of all chains of a shard."""

    # BlackJAX annotates one chain's scalars; here they are arrays over chains.
    acceptance: Any  # (chain,) probabilities
    divergent: Any  # (chain,)
    evaluations: Any  # (chain,) how often the target was evaluated


@dataclass(frozen=True)
class Walker(Sampler):
    """Chains with a step size: adapted by dual averaging on pilot shards unless it is given, then one for all shards.

    A subclass says how a chain starts and how all chains of a shard make one step.
    """

    chains: int = 8
    warmup: int = 30
    step_size: float | None = None
    target_acceptance: float = 0.8

    @property
    def tunes(self) -> bool:
        return self.step_size is None

    @abstractmethod
    def start(self, target: Target, u: jax.Array) -> Any:
        """State of one chain at u."""

    @abstractmethod
    def step(self, target: Target, key: jax.Array, states: Any, step_size: Any) -> tuple[Any, Moved]:
        """All chains' next states, and how they got there."""

    def tune(self, target: Target, key: jax.Array) -> jax.Array:
        """Log step size at which the chains' mean acceptance is the wanted one (Nesterov's dual averaging)."""
        from blackjax.optimizers.dual_averaging import dual_averaging

        init, update, final = dual_averaging()
        key_start, key_adapt = jax.random.split(key)

        def advance(carry: tuple[Any, Any], key: jax.Array):
            states, averaging = carry
            states, moved = self.step(target, key, states, jnp.exp(averaging.log_x))
            gap = self.target_acceptance - jnp.mean(jnp.nan_to_num(moved.acceptance))
            return (states, update(averaging, gap)), None

        initial = (self._starts(target, key_start), init(jnp.asarray(1.0 / target.dim**0.25)))
        (_, averaging), _ = lax.scan(advance, initial, jax.random.split(key_adapt, _PILOT_STEPS))
        return jnp.log(final(averaging))

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Any) -> Chains:
        step_size = jnp.exp(tuning) if self.step_size is None else jnp.asarray(self.step_size, float)
        key_start, key_run = jax.random.split(key)

        def advance(states: Any, key: jax.Array):
            states, moved = self.step(target, key, states, step_size)
            return states, (states.position, moved)

        each = math.ceil(num_draws / self.chains)
        # One loop for warm-up and draws: two would be compiled twice.
        keys = jax.random.split(key_run, self.warmup + each)
        _, (u, moved) = lax.scan(advance, self._starts(target, key_start), keys)
        kept = slice(self.warmup, None)
        return Chains(
            jnp.swapaxes(u[kept], 0, 1),
            jnp.mean(moved.acceptance[kept]),
            jnp.sum(moved.divergent[kept]),
            self.chains * _START_CANDIDATES + jnp.sum(moved.evaluations),
        )

    def _starts(self, target: Target, key: jax.Array) -> Any:
        """Of a handful of Student t draws for each chain, one in proportion to its importance weight."""
        key_candidates, key_choice = jax.random.split(key)
        shape = (self.chains, _START_CANDIDATES, _START_DF + target.dim)
        candidates = student_t(jax.random.normal(key_candidates, shape), _START_DF)
        density = target.log_densities(candidates.reshape(-1, target.dim)).reshape(
            self.chains, _START_CANDIDATES
        )
        log_weights = density - student_t_log_density(candidates, _START_DF)
        log_weights = jnp.where(jnp.isfinite(log_weights), log_weights, -1e30)
        choice = jax.random.categorical(key_choice, log_weights)
        u = jnp.take_along_axis(candidates, choice[:, None, None], axis=1)[:, 0]
        return jax.vmap(lambda u: self.start(target, u))(u)
