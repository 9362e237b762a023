"""Stochastic gradient Hamiltonian Monte Carlo, with and without control variates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.field.gradients import GradientSampler, estimated_gradient, rows_per_gradient
from shardmc.field.method import Stepped, check_range
from shardmc.field.rows import RowPosterior


@final
@dataclass(frozen=True)
class SGHMC(GradientSampler):
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
    minibatch, chains, warmup, thin
        As for `SGLD`.

    Examples
    --------
    >>> SGHMC(friction=1.0).friction
    1.0
    """

    advice = 'Use a smaller step_size or a larger minibatch, and control variates ("sghmc-cv"); or use shardmc.fit.'
    longest_step = 1.0

    friction: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "friction", 0.0, math.inf)

    def step_for(self, noise: float) -> float:
        step_size = 1.0
        while abs(stationary_variance(step_size, self.friction, noise) - 1) > self.inflation:
            step_size *= 0.9
        return step_size

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
