"""Latent labels of weighted rows: draws for the conditional updates of a Gibbs sampler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

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
