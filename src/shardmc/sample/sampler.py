"""What a sampler is: a pure function from one shard's target to draws, compiled once for all shards."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from shardmc.target import LogDensity, Target
from shardmc.types import Rows, Tree

State: TypeAlias = Tree
"""Where the chains of a shard are."""
Tuning: TypeAlias = Tree
"""What `tune` returns."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Chains:
    """Draws of one shard in its frame's coordinates, and statistics of the chains."""

    u: jax.Array  # (chain, draw, dim)
    acceptance: jax.Array  # () mean acceptance probability
    divergences: jax.Array  # () number of divergent transitions
    evaluations: jax.Array | int  # () how often each of the shard's rows was evaluated
    shift: jax.Array | None = None  # (chain, draw, dim) what a warp adds to the parameters at u


class Sampler(ABC):
    """Draws from one shard's target. Implementations are frozen dataclasses, so their options are static in JAX."""

    needs_mode: ClassVar[bool] = True
    """Whether it needs the modes. If not, it also works without them."""

    uses_rows: ClassVar[bool] = False
    """Whether it uses the target's rows, not only its log density."""

    @property
    def name(self) -> str:
        """How results and notes name it."""
        return type(self).__name__

    @property
    def takes_power(self) -> bool:
        """Whether it can raise the prior to a power, as fractional subposteriors need."""
        return True

    def tune(self, target: Target, key: jax.Array) -> Tuning:
        """Numbers that all shards share (a step size), from one pilot shard. They are averaged over pilots."""
        return ()

    @property
    def tunes(self) -> bool:
        """Whether there is anything to tune."""
        return False

    @property
    def tuning_steps(self) -> int:
        """Steps of the tuning on one pilot shard, in the unit of `steps`."""
        return 0

    def steps(self, num_draws: int) -> int:
        """Steps that `sample` takes, for an estimate of its time; 1 for a sampler without steps."""
        return 1

    def content(self, rows: Rows) -> object:
        """What it computes for rows of this structure, and its options: equal for equal samplers in every session."""
        return vars(self)

    @abstractmethod
    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        """At least `num_draws` draws after warm-up."""


class DensitySampler(Sampler):
    """A sampler that needs a log density only. So it can also draw from tilted and from warped densities."""

    def tune(self, target: LogDensity, key: jax.Array) -> Tuning:
        return ()

    @abstractmethod
    def sample(self, target: LogDensity, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains: ...


def student_t(noise: jax.Array, df: int) -> jax.Array:
    """Draws (..., dim) of a standard multivariate Student t from standard normal numbers (..., df + dim)."""
    # A sum of squares, not a gamma variate, whose rejection loop compiles slowly.
    chi2 = jnp.sum(noise[..., :df] ** 2, axis=-1)
    return noise[..., df:] * jnp.sqrt(df / chi2)[..., None]


def student_t_log_density(u: jax.Array, df: int) -> jax.Array:
    """Log density of the standard multivariate Student t, up to a constant."""
    return -0.5 * (df + u.shape[-1]) * jnp.log1p(jnp.sum(u**2, axis=-1) / df)


_START_DF = 20
_START_CANDIDATES = 16
_PILOT_STEPS = 120


class Moved(NamedTuple):
    """One step of all chains of a shard."""

    acceptance: jax.Array  # (chain,) probabilities
    divergent: jax.Array  # (chain,)
    evaluations: jax.Array  # (chain,) how often the target was evaluated


@dataclass(frozen=True)
class Walker(DensitySampler):
    """Chains with a step size, one for all shards, adapted by dual averaging on pilot shards unless it is given.

    A subclass defines how a chain starts and how all chains of a shard take one step. The chains of a shard advance
    together, so that a step is a matrix product over its rows.
    """

    chains: int = 8
    warmup: int = 30
    step_size: float | None = None
    target_acceptance: float = 0.8

    @property
    def tunes(self) -> bool:
        return self.step_size is None

    @property
    def tuning_steps(self) -> int:
        return _PILOT_STEPS if self.tunes else 0

    def steps(self, num_draws: int) -> int:
        return self.warmup + math.ceil(num_draws / self.chains)

    @abstractmethod
    def start(self, target: LogDensity, u: jax.Array) -> State:
        """State of one chain at u."""

    @abstractmethod
    def step(
        self, target: LogDensity, key: jax.Array, states: State, step_size: jax.Array
    ) -> tuple[State, Moved]:
        """The next states of all chains, and statistics of the step."""

    def tune(self, target: LogDensity, key: jax.Array) -> jax.Array:
        """Log step size that gives the target acceptance, by Nesterov's dual averaging."""
        from blackjax.optimizers.dual_averaging import dual_averaging

        init, update, final = dual_averaging()
        key_start, key_adapt = jax.random.split(key)

        def advance(carry: tuple[State, Tree], key: jax.Array):
            states, averaging = carry
            states, moved = self.step(target, key, states, jnp.exp(averaging.log_x))
            gap = self.target_acceptance - jnp.mean(jnp.nan_to_num(moved.acceptance))
            return (states, update(averaging, gap)), None

        initial = (self._starts(target, key_start), init(jnp.asarray(1.0 / target.dim**0.25)))
        (_, averaging), _ = lax.scan(advance, initial, jax.random.split(key_adapt, _PILOT_STEPS))
        return jnp.log(final(averaging))

    def sample(self, target: LogDensity, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        step_size = jnp.exp(tuning) if self.step_size is None else jnp.asarray(self.step_size, float)
        key_start, key_run = jax.random.split(key)

        def advance(states: State, key: jax.Array):
            states, moved = self.step(target, key, states, step_size)
            return states, (states.position, moved)

        # One loop for warm-up and draws, so that it is compiled once.
        keys = jax.random.split(key_run, self.steps(num_draws))
        _, (u, moved) = lax.scan(advance, self._starts(target, key_start), keys)
        kept = slice(self.warmup, None)
        return Chains(
            jnp.swapaxes(u[kept], 0, 1),
            jnp.mean(moved.acceptance[kept]),
            jnp.sum(moved.divergent[kept]),
            self.chains * _START_CANDIDATES + jnp.sum(moved.evaluations),
        )

    def _starts(self, target: LogDensity, key: jax.Array) -> State:
        """One of a few Student t draws for each chain, chosen by importance weight."""
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
