"""Stochastic gradient Langevin dynamics, with and without control variates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from shardmc.field.gradients import GradientSampler, estimated_gradient, rows_per_gradient
from shardmc.field.method import Stepped, check_range
from shardmc.field.rows import RowPosterior


@final
@dataclass(frozen=True)
class SGLD(GradientSampler):
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011; control variates: Baker et al. 2019).

    In coordinates u in which the posterior is about standard normal,

        u <- u + (eps_t / 2) g(u) + N(0, eps_t),    eps_t = step_size (1 + t / delay)^-decay,

    where g estimates the gradient of the log posterior from a minibatch (BlackJAX's integrator). There is no accept
    step, so the draws are biased: for a Gaussian posterior and a gradient of variance V their variance is
    (1 + eps V / 4) / (1 - eps / 4) times the right one. V is about N / n without control variates, and does not depend
    on N with them.

    Parameters
    ----------
    control_variates
        Whether gradients are differences from those at the mode.
    step_size
        eps. By default so small that the variance above is too large by `inflation`, with V measured at the start.
    inflation
        See `step_size`.
    minibatch
        Rows per step, n.
    chains
        Chains, which advance together.
    warmup
        Draws of each chain that are thrown away. Chains start from draws of N(mode, curvature^-1).
    thin
        Steps per draw. By default 1 / step_size, at most 100.
    decay, delay
        The step size falls from `step_size` as a power of the number of steps. With decay=0 it is constant.

    Examples
    --------
    >>> SGLD(control_variates=True).minibatch
    100
    """

    advice = (
        'Use a smaller step_size or a larger minibatch, and control variates ("sgld-cv"); or use shardmc.fit.'
    )
    longest_step = 4.0

    decay: float = 0.0
    delay: float = 1000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "decay", -1e-9, 1.0)
        check_range(self, "delay", 0.0, math.inf)

    def step_for(self, noise: float) -> float:
        # (1 + eps V / 4) / (1 - eps / 4) = 1 + inflation
        return 4 * self.inflation / (1 + self.inflation + noise)

    def start(self, u: jax.Array) -> tuple[jax.Array, ...]:
        return u, jnp.zeros(())

    def step(
        self, posterior: RowPosterior, values: Any, key: jax.Array, state: Any
    ) -> tuple[tuple[jax.Array, ...], Stepped]:
        from blackjax.sgmcmc.diffusions import overdamped_langevin

        u, count = state
        key_batch, key_noise = jax.random.split(key)
        b = jax.random.randint(key_batch, (), 0, posterior.data.count)
        gradient = estimated_gradient(posterior, u, b, self.control_variates)
        step_size = values * (1 + count / self.delay) ** -self.decay if self.decay else values
        u = overdamped_langevin()(key_noise, u, gradient, step_size / 2)
        rows = rows_per_gradient(posterior, b, self.control_variates)
        return (u, count + 1), Stepped(rows, jnp.ones(()))  # pyright: ignore[reportReturnType]
