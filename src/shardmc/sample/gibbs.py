"""A user's own conditional updates on weighted rows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.batch import Rows
from shardmc.errors import ModelError, OptionError
from shardmc.model import Model
from shardmc.sample.labels import whole_multiplicities
from shardmc.sample.sampler import Chains, Sampler
from shardmc.target import Target


@final
@dataclass(frozen=True)
class Gibbs(Sampler):
    """Gibbs sampling, or any other Markov chain with latent variables, by the user's own functions in JAX.

    The weight of a row is a multiplicity: a row of weight w stands for w copies of itself, each with its own latent
    variable (z_j ~ Binomial(w_j, p_j) if one copy has z_j ~ Bernoulli(p_j)), and counts w times in every conditional of
    the parameters. The stationary distribution is then prior * prod_j likelihood_j ** w_j, with the latent variables
    summed out. Rows of weight 0 are padding and must have no effect.

    Parameters
    ----------
    step
        `step(key, state, rows, weights) -> state`: one sweep over all conditionals. With a fifth argument `power` it
        also works with combiners of fractional draws: raise the prior to that power.
    init
        `init(key, rows, weights) -> state`: the start of a chain, any pytree of arrays.
    observe
        `observe(state) -> params`: the model's parameters on their natural scale, as a dictionary, or as one vector
        in the order of the model's parameters.
    warmup
        Sweeps before the first draw is kept.
    thin
        Sweeps per draw.
    chains
        Chains per shard. They run in parallel.
    whole
        Whether `step` gets integer weights. If shards differ in size, weights such as 19.98 are rounded at random to a
        neighbouring integer, once per shard. Use False for updates that take any weights.

    Examples
    --------
    The mean and variance of normal rows, with flat priors on mu and log sigma:

    >>> def step(key, state, y, weights):
    ...     key_mu, key_sigma = jax.random.split(key)
    ...     n = weights.sum()
    ...     mu = weights @ y / n + jnp.sqrt(state["variance"] / n) * jax.random.normal(key_mu)
    ...     half_sum = weights @ (y - mu) ** 2 / 2
    ...     return {"mu": mu, "variance": half_sum / jax.random.gamma(key_sigma, n / 2)}
    >>> def init(key, y, weights):
    ...     return {"mu": weights @ y / weights.sum(), "variance": 1.0}
    >>> Gibbs(step, init, observe=lambda state: state, warmup=50).chains
    1
    """

    step: Callable[..., Any]
    init: Callable[[jax.Array, Rows, jax.Array], Any]
    observe: Callable[[Any], Mapping[str, Any] | jax.Array]
    warmup: int = 100
    thin: int = 1
    chains: int = 1
    whole: bool = True
    needs_mode = False

    def __post_init__(self) -> None:
        for name in ("step", "init", "observe"):
            if not callable(getattr(self, name)):
                given = type(getattr(self, name)).__name__
                raise OptionError(f"{name} of Gibbs must be a function; {given} was given.")
        for name, least in (("warmup", 0), ("thin", 1), ("chains", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise OptionError(f"{name} of Gibbs must be a whole number from {least}, not {value!r}.")

    @property
    def takes_power(self) -> bool:
        """Whether `step` takes a fifth argument."""
        try:
            inspect.signature(self.step).bind(*range(5))
        except TypeError:
            return False
        return True

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Any) -> Chains:
        key_whole, key_start, key_run = jax.random.split(key, 3)
        power = jnp.asarray(target.power, float)
        weights = target.weights * power
        if self.whole:
            weights = whole_multiplicities(key_whole, weights)
        sweep = _Sweep(self, target.model, target.rows, weights, power)
        states = jax.vmap(sweep.start)(jax.random.split(key_start, self.chains))

        def advance(states: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            def one(count: int, states: Any) -> Any:
                keys = jax.random.split(jax.random.fold_in(key, count), self.chains)
                return jax.vmap(sweep.step)(keys, states)

            states = lax.fori_loop(0, self.thin, one, states)
            return states, jax.vmap(sweep.theta)(states)

        each = math.ceil(num_draws / self.chains)
        # One loop for warm-up and draws, so that it is compiled once.
        early = math.ceil(self.warmup / self.thin)
        _, theta = lax.scan(advance, states, jax.random.split(key_run, early + each))
        theta = jnp.swapaxes(theta[early:], 0, 1)
        if not self.takes_power:
            # Otherwise the prior would silently count once per shard.
            theta = jnp.where(power == 1, theta, jnp.nan)
        u = jnp.linalg.solve(target.frame.basis, (theta - target.frame.center)[..., None])[..., 0]
        sweeps = self.chains * self.thin * (early + each)
        return Chains(u, jnp.ones(()), jnp.int32(0), jnp.int32(sweeps))


@dataclass(frozen=True)
class _Sweep:
    """The user's functions on one shard's weighted rows, with states of one structure and type."""

    gibbs: Gibbs
    model: Model
    rows: Rows
    weights: jax.Array
    power: jax.Array

    def start(self, key: jax.Array) -> Any:
        """The chain's first state, in the types that `step` returns (1 is an integer in Python)."""
        state = jax.tree.map(jnp.asarray, self.gibbs.init(key, self.rows, self.weights))
        after = jax.eval_shape(self._step, key, state)
        return jax.tree.map(lambda a, b: a.astype(b.dtype), state, after)

    def step(self, key: jax.Array, state: Any) -> Any:
        return jax.tree.map(lambda a, b: a.astype(b.dtype), self._step(key, state), state)

    def _step(self, key: jax.Array, state: Any) -> Any:
        extra = (self.power,) if self.gibbs.takes_power else ()
        after = self.gibbs.step(key, state, self.rows, self.weights, *extra)
        if jax.tree.structure(after) != jax.tree.structure(state):
            raise ModelError(
                f"step of Gibbs must return a state like the one it was given, {jax.tree.structure(state)}; "
                f"it returned {jax.tree.structure(after)}."
            )

        def alike(path: Any, before: jax.Array, after: Any) -> jax.Array:
            if jnp.shape(after) != before.shape:
                name = jax.tree_util.keystr(path) or "the state"
                raise ModelError(
                    f"step of Gibbs changed the shape of {name} from {before.shape} to {jnp.shape(after)}; "
                    "it must stay the same."
                )
            return jnp.asarray(after)

        return jax.tree_util.tree_map_with_path(alike, state, after)

    def theta(self, state: Any) -> jax.Array:
        observed = self.gibbs.observe(state)
        if not isinstance(observed, Mapping):
            observed = self._named(jnp.asarray(observed))
        return self.model.unconstrain(observed)

    def _named(self, vector: jax.Array) -> dict[str, jax.Array]:
        shapes = {name: p.shape for name, p in self.model.parameters.items()}
        sizes = [math.prod(shape) for shape in shapes.values()]
        if vector.shape != (sum(sizes),):
            raise ModelError(
                f"observe of Gibbs must return a dictionary of the parameters {', '.join(shapes)} or a vector of "
                f"their {sum(sizes)} numbers; an array of shape {vector.shape} was returned."
            )
        parts = jnp.split(vector, np.cumsum(sizes)[:-1].tolist())
        pairs = zip(shapes.items(), parts, strict=True)
        return {name: part.reshape(shape) for (name, shape), part in pairs}
