"""Chains that follow estimates of the gradient from minibatches: SGLD and SGHMC, with and without control variates."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.field.method import (
    Expanded,
    Minibatches,
    RowPosterior,
    State,
    Stepped,
    Subsampler,
    Tuned,
    check_counts,
    check_range,
)
from shardmc.model import Model
from shardmc.programs.compiled import jit
from shardmc.target import DeviceFrame
from shardmc.types import Tree

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

    It is an average over draws from a standard normal: the posterior as the curvature at its mode describes it.
    """
    variance = _variance(
        posterior.model, control_variates, posterior.data, posterior.frame, posterior.at_mode, key
    )
    rows = _POINTS * _BATCHES * posterior.data.size * (2 if control_variates else 1)
    return float(jnp.max(variance)), rows


@partial(jit, static_argnums=(0, 1))
def _variance(
    model: Model,
    control_variates: bool,
    data: Minibatches,
    frame: DeviceFrame,
    at_mode: Expanded,
    key: jax.Array,
) -> jax.Array:
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
    """About the number of steps after which a chain is independent of where it was, at most 100.

    >>> steps_per_draw(0.2), steps_per_draw(1e-4)
    (5, 100)
    """
    return min(max(1, round(1 / step_size)), _MOST_STEPS)


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
        check_range(self, "decay", 0.0, 1.0, allowed=0.0)
        check_range(self, "delay", 0.0, math.inf)

    def step_for(self, noise: float) -> float:
        # (1 + eps V / 4) / (1 - eps / 4) = 1 + inflation
        return 4 * self.inflation / (1 + self.inflation + noise)

    def start(self, u: jax.Array) -> State:
        return u, jnp.zeros(())

    def step(
        self, posterior: RowPosterior, values: Tree, key: jax.Array, state: State
    ) -> tuple[State, Stepped]:
        from blackjax.sgmcmc.diffusions import overdamped_langevin

        u, count = state
        key_batch, key_noise = jax.random.split(key)
        b = jax.random.randint(key_batch, (), 0, posterior.data.count)
        gradient = estimated_gradient(posterior, u, b, self.control_variates)
        step_size = values * (1 + count / self.delay) ** -self.decay if self.decay else values
        u = overdamped_langevin()(key_noise, u, gradient, step_size / 2)
        rows = rows_per_gradient(posterior, b, self.control_variates)
        return (u, count + 1), Stepped(rows, jnp.ones(()))  # pyright: ignore[reportReturnType]


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

    def start(self, u: jax.Array) -> State:
        return u, jnp.zeros_like(u)

    def step(
        self, posterior: RowPosterior, values: Tree, key: jax.Array, state: State
    ) -> tuple[State, Stepped]:
        from blackjax.sgmcmc.diffusions import sghmc

        u, momentum = state
        key_batch, key_noise = jax.random.split(key)
        b = jax.random.randint(key_batch, (), 0, posterior.data.count)
        # As in the authors' algorithm, the gradient is taken at the new position.
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
