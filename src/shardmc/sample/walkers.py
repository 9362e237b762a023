"""Chains with a step size in the shard's whitened coordinates: random walk, Hamiltonian Monte Carlo and NUTS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import jax
import jax.numpy as jnp

from shardmc.sample.sampler import Moved, State, Walker
from shardmc.target import LogDensity
from shardmc.types import Tree

Kernel: TypeAlias = Callable[..., tuple[State, Tree]]
"""BlackJAX's step of one chain: kernel(key, state, ...) -> state, info."""


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

    def start(self, target: LogDensity, u: jax.Array) -> State:
        from blackjax.mcmc import random_walk

        return random_walk.init(u, target.log_density)

    def step(
        self, target: LogDensity, key: jax.Array, states: State, step_size: jax.Array
    ) -> tuple[State, Moved]:
        from blackjax.mcmc import random_walk

        kernel = random_walk.build_additive_step()
        metric_draw = random_walk.normal(step_size * jnp.ones(target.dim))

        def one(key: jax.Array, state: State):
            def hop(state: State, key: jax.Array):
                state, info = kernel(key, state, target.log_density, metric_draw)
                return state, info.acceptance_rate

            state, acceptance = jax.lax.scan(hop, state, jax.random.split(key, self.thin))
            return state, jnp.mean(acceptance)

        states, acceptance = jax.vmap(one)(jax.random.split(key, self.chains), states)
        each = jnp.full(self.chains, self.thin)
        return states, Moved(acceptance, jnp.zeros(self.chains, bool), each)


_JITTER = (0.6, 1.4)
"""Shortest and longest trajectory of HMC, as parts of its mean length."""


def rotating(log_density: Callable[[jax.Array], jax.Array], kinetic_energy: object) -> Callable[..., State]:
    """An integrator for BlackJAX: half a kick by grad + u, a rotation of (u, momentum), half a kick.

    Like the leapfrog it conserves volume, is its own reverse and needs one gradient a step. The mass matrix must be
    the identity.
    """
    value_and_gradient = jax.value_and_grad(log_density)

    def step(state: State, step_size: jax.Array) -> State:
        u, half = state.position, step_size / 2
        momentum = state.momentum + half * (state.logdensity_grad + u)
        cosine, sine = jnp.cos(step_size), jnp.sin(step_size)
        u, momentum = cosine * u + sine * momentum, cosine * momentum - sine * u
        value, gradient = value_and_gradient(u)
        return type(state)(u, momentum + half * (gradient + u), value, gradient)

    return step


@final
@dataclass(frozen=True)
class HMC(Walker):
    """HMC (BlackJAX's kernel), with trajectories jittered around pi / 2 and steps that are exact for a normal target.

    A shard's target is about standard normal in its coordinates. The motion under a standard normal density is a
    rotation of position and momentum, which has no error at any step size. So a step rotates, and only what is left of
    the gradient, grad + u, changes the momentum (Shahbaba et al. 2014, "Split Hamiltonian Monte Carlo"). The more
    normal a target is, the fewer gradients a draw needs; a leapfrog needs about dim ** 0.25 of them even for a normal
    target.

    Parameters
    ----------
    chains
        Chains per shard. They advance together, so that a gradient is a matrix product.
    warmup
        Transitions of each chain before the first draw is kept. Chains already start near the target.
    step_size
        The longest step, one for all shards; adapted on pilot shards by default. A trajectory is divided into equal
        steps of at most this size.
    target_acceptance
        The acceptance that the adaptation aims at.
    trajectory
        Mean length of a trajectory. On a standard normal target pi / 2 gives uncorrelated draws.

    Examples
    --------
    >>> HMC(chains=8, target_acceptance=0.9).chains
    8
    """

    chains: int = 4
    warmup: int = 20
    target_acceptance: float = 0.85
    trajectory: float = math.pi / 2

    def start(self, target: LogDensity, u: jax.Array) -> State:
        from blackjax.mcmc import hmc

        return hmc.init(u, target.log_density)

    def tune(self, target: LogDensity, key: jax.Array) -> jax.Array:
        # A longer step than the longest trajectory means nothing, and would spoil the average over pilot shards.
        return jnp.minimum(super().tune(target, key), math.log(self.trajectory * _JITTER[1]))

    def step(
        self, target: LogDensity, key: jax.Array, states: State, step_size: jax.Array
    ) -> tuple[State, Moved]:
        from blackjax.mcmc import hmc

        key_jitter, key_chains = jax.random.split(key)
        # One length for all chains of the shard, so that none waits for another.
        length = self.trajectory * jax.random.uniform(key_jitter, minval=_JITTER[0], maxval=_JITTER[1])
        num_steps = jnp.clip(jnp.ceil(length / step_size), 1, 1000).astype(int)
        metric = jnp.ones(target.dim)
        keys = jax.random.split(key_chains, self.chains)
        kernel = hmc.build_kernel(integrator=rotating)
        return _moved(kernel, keys, states, target.log_density, length / num_steps, metric, num_steps)


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

    def start(self, target: LogDensity, u: jax.Array) -> State:
        from blackjax.mcmc import nuts

        return nuts.init(u, target.log_density)

    def step(
        self, target: LogDensity, key: jax.Array, states: State, step_size: jax.Array
    ) -> tuple[State, Moved]:
        from blackjax.mcmc import nuts

        metric = jnp.ones(target.dim)
        keys = jax.random.split(key, self.chains)
        kernel = nuts.build_kernel()
        return _moved(kernel, keys, states, target.log_density, step_size, metric, self.max_doublings)


def _moved(kernel: Kernel, keys: jax.Array, states: State, *options: object) -> tuple[State, Moved]:
    """The next states of all chains by a kernel, with the same options for all, and statistics of the step."""

    def one(key: jax.Array, state: State) -> tuple[State, Tree]:
        return kernel(key, state, *options)

    states, info = jax.vmap(one)(keys, states)
    return states, Moved(info.acceptance_rate, info.is_divergent, info.num_integration_steps)
