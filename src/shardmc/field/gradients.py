"""Chains that follow estimates of the gradient from minibatches, with and without control variates."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp

from shardmc.field.method import Subsampler, Tuned, check_counts, check_range
from shardmc.field.rows import RowPosterior
from shardmc.model import Model
from shardmc.programs.compiled import jit

_POINTS = 16
_BATCHES = 16
_MOST_STEPS = 100


@dataclass(frozen=True)
class GradientSampler(Subsampler):
    """A chain that follows estimated gradients. There is no accept step, so its draws are biased."""

    longest_step: ClassVar[float]
    """Above this, steps diverge."""

    control_variates: bool = False
    step_size: float | None = None
    inflation: float = 0.05
    minibatch: int = 100
    chains: int = 4
    warmup: int = 20
    thin: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, minibatch=1, chains=1, warmup=0, thin=1)
        check_range(self, "step_size", 0.0, self.longest_step)
        check_range(self, "inflation", 0.0, 1.0)

    @abstractmethod
    def step_for(self, noise: float) -> float:
        """The step size at which the variance is wrong by `inflation`, for gradients with this variance."""

    @property
    def needs_expansion(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.control_variates

    def tune(self, posterior: RowPosterior, key: jax.Array) -> Tuned:
        if self.step_size is not None:
            return Tuned(jnp.asarray(self.step_size, float), self.thin or steps_per_draw(self.step_size))
        noise, evaluations = gradient_noise(posterior, key, self.control_variates)
        step_size = self.step_for(noise)
        note = f"{type(self).__name__} uses the step size {step_size:.3g}: the gradient's variance is {noise:.3g}."
        return Tuned(
            jnp.asarray(step_size, float), self.thin or steps_per_draw(step_size), evaluations, (note,)
        )


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
