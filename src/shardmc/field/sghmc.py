"""Stochastic gradient Hamiltonian Monte Carlo, with and without control variates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.field.gradients import estimated_gradient, gradient_noise, rows_per_gradient, steps_per_draw
from shardmc.field.method import Stepped, Subsampler, Tuned, check_counts, check_range
from shardmc.field.rows import RowPosterior


@final
@dataclass(frozen=True)
class SGHMC(Subsampler):
    """Stochastic gradient Hamiltonian Monte Carlo with friction (Chen, Fox and Guestrin 2014).

    In coordinates u in which the posterior is about standard normal, with a momentum p,

        u <- u + h p,    p <- (1 - friction h) p + h g(u) + N(0, 2 friction h),

    where g estimates the gradient of the log posterior from a new minibatch in every step (BlackJAX's integrator). In
    the authors' symbols eta = h^2, alpha = friction h, and beta^ = 0. There is no accept step, so the draws are biased.

    Parameters
    ----------
    control_variates
        Whether gradients are differences from those at the mode.
    step_size
        h. By default the largest one at which the variance of a Gaussian posterior is wrong by at most `inflation`,
        with the gradient's variance measured at the start.
    inflation
        See `step_size`.
    friction
        How fast the momentum is forgotten. 2 is critical damping.
    minibatch, chains, warmup
        As for `SGLD`.
    thin
        Steps per draw. By default 1 / step_size, at most 100.

    Examples
    --------
    >>> SGHMC(friction=1.0).friction
    1.0
    """

    advice = 'Use a smaller step_size or a larger minibatch, and control variates ("sghmc-cv"); or use shardmc.fit.'

    control_variates: bool = False
    step_size: float | None = None
    inflation: float = 0.05
    friction: float = 2.0
    minibatch: int = 100
    chains: int = 4
    warmup: int = 20
    thin: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, minibatch=1, chains=1, warmup=0, thin=1)
        check_range(self, "step_size", 0.0, 1.0)
        check_range(self, "inflation", 0.0, 1.0)
        check_range(self, "friction", 0.0, math.inf)

    @property
    def needs_expansion(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.control_variates

    def tune(self, posterior: RowPosterior, key: jax.Array) -> Tuned:
        if self.step_size is not None:
            return Tuned(jnp.asarray(self.step_size, float), self.thin or steps_per_draw(self.step_size))
        noise, evaluations = gradient_noise(posterior, key, self.control_variates)
        step_size = _step_size(self.friction, noise, self.inflation)
        note = f"SGHMC uses the step size {step_size:.3g}: the gradient's variance is {noise:.3g}."
        return Tuned(
            jnp.asarray(step_size, float), self.thin or steps_per_draw(step_size), evaluations, (note,)
        )

    def start(self, u: jax.Array) -> tuple[jax.Array, ...]:
        return u, jnp.zeros_like(u)

    def step(
        self, posterior: RowPosterior, values: Any, key: jax.Array, state: Any
    ) -> tuple[tuple[jax.Array, ...], Stepped]:
        from blackjax.sgmcmc.diffusions import sghmc

        u, momentum = state
        key_batch, key_noise = jax.random.split(key)
        b = jax.random.randint(key_batch, (), 0, posterior.data.count)
        # As the authors have it: the gradient is that at the new position.
        gradient = estimated_gradient(posterior, u + values * momentum, b, self.control_variates)
        u, momentum = sghmc(self.friction)(key_noise, u, momentum, gradient, values)
        rows = rows_per_gradient(posterior, b, self.control_variates)
        return (u, momentum), Stepped(rows, jnp.ones(()))  # pyright: ignore[reportReturnType]


def stationary_variance(step_size: float, friction: float, noise: float) -> float:
    """The variance of u for a standard normal posterior and a gradient with this variance; infinite if it diverges.

    >>> round(stationary_variance(1e-3, 2.0, 0.0), 3)
    1.0
    """
    h = step_size
    step = np.array([[1.0, h], [-h, 1 - friction * h - h**2]])
    if np.abs(np.linalg.eigvals(step)).max() >= 1:
        return math.inf
    pushed = np.diag([0.0, 2 * friction * h + h**2 * noise]).ravel()
    return float(np.linalg.solve(np.eye(4) - np.kron(step, step), pushed)[0])


def _step_size(friction: float, noise: float, inflation: float) -> float:
    step_size = 1.0
    while abs(stationary_variance(step_size, friction, noise) - 1) > inflation:
        step_size *= 0.9
    return step_size
