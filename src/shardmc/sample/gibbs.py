"""A user's own conditional updates on weighted rows, and draws of latent labels for them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from shardmc.errors import ModelError, OptionError
from shardmc.model import Model
from shardmc.model.fingerprint import fingerprint
from shardmc.model.traced import few_rows, traced_fingerprint
from shardmc.sample.sampler import Chains, Sampler, State, Tuning
from shardmc.target import Target
from shardmc.types import Params, Rows

_CHUNK = 100
"""Number of copies whose labels are drawn by one inversion: (1/2)^100 is still a normal float32."""


def whole_multiplicities(key: jax.Array, weights: jax.Array) -> jax.Array:
    """Weights rounded at random to integers, each with the weight as its mean, by systematic sampling.

    Integer weights do not change. Of the others the integer part stays, and the fractions f_j become
    floor(F_j + u) - floor(F_{j-1} + u), with F_j = f_1 + ... + f_j and one uniform u. The total changes by less than
    one.

    Parameters
    ----------
    weights
        (row,) non-negative numbers.

    Examples
    --------
    >>> whole_multiplicities(jax.random.key(0), jnp.array([20.0, 1.5, 1.5, 0.0])).sum()
    Array(23., dtype=float32)
    """
    nearest = jnp.round(weights)
    near = jnp.abs(weights - nearest) <= 1e-5 * nearest
    base = jnp.where(near, nearest, jnp.floor(weights))
    fraction = jnp.where(near, 0, weights - base)
    rounded = jnp.floor(jnp.cumsum(fraction) + jax.random.uniform(key, dtype=weights.dtype))
    return base + jnp.diff(rounded, prepend=jnp.zeros(1, weights.dtype))


def binomial_labels(key: jax.Array, multiplicity: jax.Array, probability: jax.Array) -> jax.Array:
    """The number of each row's copies with the label: z_j ~ Binomial(w_j, p_j), exact to rounding.

    By inversion of the distribution function for all rows together, which is much faster than a uniform for every copy.
    Rows of weight 0 have none.

    Parameters
    ----------
    multiplicity
        (row,) integer numbers w_j of copies.
    probability
        (row,) p_j.

    Returns
    -------
    (row,) counts, of the type of `probability`.

    Examples
    --------
    >>> binomial_labels(jax.random.key(0), jnp.array([0.0, 5.0, 5.0]), jnp.array([0.5, 0.0, 1.0]))
    Array([0., 0., 5.], dtype=float32)
    """
    copies = multiplicity.astype(probability.dtype)
    return lax.cond(jnp.all(copies <= 1), _single, _several, key, copies, probability)


def _single(key: jax.Array, copies: jax.Array, probability: jax.Array) -> jax.Array:
    """Labels of rows that count once or not at all."""
    return copies * jax.random.bernoulli(key, probability)


def _several(key: jax.Array, copies: jax.Array, probability: jax.Array) -> jax.Array:
    # The rarer of the two labels is counted, so that the mass at zero does not underflow.
    rare = jnp.minimum(probability, 1 - probability)
    odds, log_other = rare / (1 - rare), jnp.log1p(-rare)

    def chunk(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, remaining, counted = state
        key, key_uniform = jax.random.split(key)
        n = jnp.minimum(remaining, _CHUNK)
        uniform = jax.random.uniform(key_uniform, rare.shape, rare.dtype)
        return key, remaining - n, counted + _invert(uniform, n, odds, jnp.exp(n * log_other))

    start = (key, copies, jnp.zeros_like(rare))
    _, _, counted = lax.while_loop(lambda state: jnp.any(state[1] > 0), chunk, start)
    return jnp.where(probability > 0.5, copies - counted, counted)


def _invert(uniform: jax.Array, n: jax.Array, odds: jax.Array, mass: jax.Array) -> jax.Array:
    """The smallest z with P(Z <= z) > uniform, Z binomial of n trials; `mass` is P(Z = 0)."""
    most = jnp.max(n)

    def searching(state: tuple[jax.Array, ...]) -> jax.Array:
        z, _, rest, _ = state
        return (z < most) & jnp.any(rest >= 0)

    def advance(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        z, mass, rest, counted = state
        rest = rest - mass
        # The mass after the n-th success is exactly 0, so that rounding of the uniform cannot add a success.
        counted = counted + ((rest >= 0) & (z < n))
        return z + 1, mass * odds * jnp.maximum(n - z, 0) / (z + 1), rest, counted

    zero = jnp.zeros((), uniform.dtype)
    return lax.while_loop(searching, advance, (zero, mass, uniform, jnp.zeros_like(uniform)))[3]


def multinomial_labels(key: jax.Array, multiplicity: jax.Array, probabilities: jax.Array) -> jax.Array:
    """The number of each row's copies with each label: z_j ~ Multinomial(w_j, p_j), copy by copy.

    Parameters
    ----------
    multiplicity
        (row,) integer numbers w_j of copies.
    probabilities
        (row, label). They need not sum to 1.

    Returns
    -------
    (row, label) counts, of the type of `probabilities`.

    Examples
    --------
    >>> p = jnp.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
    >>> multinomial_labels(jax.random.key(0), jnp.array([0.0, 4.0]), p)
    Array([[0., 0., 0.],
           [0., 4., 0.]], dtype=float32)
    """
    # Labels first: every operation then runs along the rows.
    zero = jnp.zeros(probabilities.shape[0], probabilities.dtype)
    _, bounds = lax.scan(lambda total, p: (total + p, total + p), zero, probabilities.T)
    copies = multiplicity.astype(bounds.dtype)

    def one(copy: jax.Array, below: jax.Array) -> jax.Array:
        uniform = jax.random.uniform(jax.random.fold_in(key, copy), copies.shape, bounds.dtype)
        point = jnp.where(copy < copies, uniform * bounds[-1], jnp.inf)
        return below + (point < bounds)

    below = lax.fori_loop(0, jnp.max(copies).astype(int), one, jnp.zeros_like(bounds))
    return jnp.diff(below, axis=0, prepend=jnp.zeros_like(below[:1])).T


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

    step: Callable[..., State]
    init: Callable[[jax.Array, Rows, jax.Array], State]
    observe: Callable[[State], Params | jax.Array]
    warmup: int = 100
    thin: int = 1
    chains: int = 1
    whole: bool = True
    needs_mode = False
    uses_rows = True

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

    def content(self, rows: Rows) -> list[object]:
        def sweep(rows: Rows, weights: jax.Array, power: jax.Array) -> tuple[State, Params | jax.Array]:
            key = jax.random.key(0)
            extra = (power,) if self.takes_power else ()
            state = self.step(key, self.init(key, rows, weights), rows, weights, *extra)
            return state, self.observe(state)

        few = few_rows(rows)
        weights = jax.ShapeDtypeStruct(jax.tree.leaves(few)[0].shape[:1], np.float32)
        try:
            computed = traced_fingerprint(sweep, few, weights, jax.ShapeDtypeStruct((), np.float32))
        except Exception:  # sampling says what is wrong with the functions
            computed = fingerprint(self.step, self.init, self.observe)
        return [computed, self.warmup, self.thin, self.chains, self.whole]

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Tuning) -> Chains:
        key_whole, key_start, key_run = jax.random.split(key, 3)
        power = jnp.asarray(target.power, float)
        weights = target.weights * power
        if self.whole:
            weights = whole_multiplicities(key_whole, weights)
        sweep = _Sweep(self, target.model, target.rows, weights, power)
        states = jax.vmap(sweep.start)(jax.random.split(key_start, self.chains))

        def advance(states: State, key: jax.Array) -> tuple[State, jax.Array]:
            def one(count: int, states: State) -> State:
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

    def start(self, key: jax.Array) -> State:
        """The chain's first state, in the types that `step` returns (1 is an integer in Python)."""
        state = jax.tree.map(jnp.asarray, self.gibbs.init(key, self.rows, self.weights))
        after = jax.eval_shape(self._step, key, state)
        return jax.tree.map(lambda a, b: a.astype(b.dtype), state, after)

    def step(self, key: jax.Array, state: State) -> State:
        return jax.tree.map(lambda a, b: a.astype(b.dtype), self._step(key, state), state)

    def _step(self, key: jax.Array, state: State) -> State:
        extra = (self.power,) if self.gibbs.takes_power else ()
        after = self.gibbs.step(key, state, self.rows, self.weights, *extra)
        if jax.tree.structure(after) != jax.tree.structure(state):
            raise ModelError(
                f"step of Gibbs must return a state like the one it was given, {jax.tree.structure(state)}; "
                f"it returned {jax.tree.structure(after)}."
            )

        def alike(path: jax.tree_util.KeyPath, before: jax.Array, after: ArrayLike) -> jax.Array:
            if jnp.shape(after) != before.shape:
                name = jax.tree_util.keystr(path) or "the state"
                raise ModelError(
                    f"step of Gibbs changed the shape of {name} from {before.shape} to {jnp.shape(after)}; "
                    "it must stay the same."
                )
            return jnp.asarray(after)

        return jax.tree_util.tree_map_with_path(alike, state, after)

    def theta(self, state: State) -> jax.Array:
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
