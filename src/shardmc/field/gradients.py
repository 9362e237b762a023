"""Estimates of the gradient of the log posterior from minibatches, with and without control variates."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from shardmc.field.rows import RowPosterior
from shardmc.model import Model
from shardmc.programs.compiled import jit

_POINTS = 16
_BATCHES = 16
_MOST_STEPS = 100


def estimated_gradient(
    posterior: RowPosterior, u: jax.Array, b: jax.Array, control_variates: bool
) -> jax.Array:
    """An unbiased estimate of the gradient of the log posterior at u, from minibatch b.

    Plain: grad log prior(u) + (N / n) sum_j grad l_j(u). With control variates (Baker et al. 2019) the sum is over
    grad l_j(u) - grad l_j(0), and the gradient of all rows at the mode is added.
    """
    gradient = jax.grad(posterior.log_prior)(u) + posterior.minibatch_gradient(u, b)
    if control_variates:
        gradient += posterior.at_mode.gradient - posterior.minibatch_gradient(jnp.zeros_like(u), b)
    return gradient


def rows_per_gradient(posterior: RowPosterior, b: jax.Array, control_variates: bool) -> jax.Array:
    """Row evaluations of one estimate: with control variates every row is evaluated at two points."""
    size = posterior.data.starts[b + 1] - posterior.data.starts[b]
    return size * (2 if control_variates else 1)


def gradient_noise(posterior: RowPosterior, key: jax.Array, control_variates: bool) -> tuple[float, int]:
    """The variance of the estimate in the noisiest coordinate, and the rows that were evaluated to find it.

    It is the average over points of a standard normal, that is over the posterior as the mode's curvature has it.
    """
    variance = _variance(
        posterior.model, control_variates, posterior.data, posterior.frame, posterior.at_mode, key
    )
    rows = _POINTS * _BATCHES * posterior.data.size * (2 if control_variates else 1)
    return float(jnp.max(variance)), rows


@partial(jit, static_argnums=(0, 1))
def _variance(model: Model, control_variates: bool, data, frame, at_mode, key: jax.Array) -> jax.Array:
    posterior = RowPosterior(model, data, frame, at_mode)

    def at_point(key: jax.Array) -> jax.Array:
        key_point, key_batch = jax.random.split(key)
        u = jax.random.normal(key_point, (posterior.dim,))
        chosen = jax.random.randint(key_batch, (_BATCHES,), 0, data.count)
        estimates = jax.lax.map(lambda b: estimated_gradient(posterior, u, b, control_variates), chosen)
        return jnp.var(estimates, axis=0, ddof=1)

    with jax.default_matmul_precision("highest"):
        return jnp.mean(jax.lax.map(at_point, jax.random.split(key, _POINTS)), axis=0)


def steps_per_draw(step_size: float) -> int:
    """About the steps in which a chain forgets where it was, at most 100.

    >>> steps_per_draw(0.2), steps_per_draw(1e-4)
    (5, 100)
    """
    return min(max(1, round(1 / step_size)), _MOST_STEPS)
