"""Expansions of a log density to second order, and models whose prior is the posterior given earlier rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import DensityProgram, Engine, in_order
from shardmc.locate.terms import expanded
from shardmc.model import Model
from shardmc.model.precision import double_precision
from shardmc.model.predictors import row_derivatives
from shardmc.programs.process import TRACING
from shardmc.target import DeviceFrame
from shardmc.types import Frame, Mode, Rows


@dataclass(frozen=True)
class Expansion:
    """l(theta) ~ l(center) + g^T (theta - center) - (theta - center)^T H (theta - center) / 2."""

    center: np.ndarray  # (dim,)
    gradient: np.ndarray  # (dim,) g
    curvature: np.ndarray  # (dim, dim) H, minus the Hessian

    def __add__(self, other: Expansion) -> Expansion:
        """The sum of two log densities that are expanded at the same point."""
        return Expansion(self.center, self.gradient + other.gradient, self.curvature + other.curvature)

    def times(self, factor: float) -> Expansion:
        """The expansion of factor * l."""
        return Expansion(self.center, factor * self.gradient, factor * self.curvature)

    def at(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Value, less that at the centre, and gradient at theta."""
        gap = theta - self.center
        bend = self.curvature @ gap
        return float(gap @ (self.gradient - 0.5 * bend)), self.gradient - bend

    @property
    def step(self) -> np.ndarray:
        """The step from the centre to the maximum, H^-1 g."""
        return np.linalg.solve(self.curvature, self.gradient)

    @property
    def decrement(self) -> float:
        """The length of that step in standard deviations, sqrt(g^T H^-1 g)."""
        return float(np.sqrt(max(self.gradient @ self.step, 0.0)))


def expand_prior(model: Model, theta: np.ndarray) -> Expansion:
    """The log prior at theta, in double precision.

    >>> model = Model(lambda params, rows: -((rows - params["mu"]) ** 2), lambda p: -(p["mu"] ** 2), {"mu": ()})
    >>> expansion = expand_prior(model, np.array([3.0]))
    >>> expansion.gradient, expansion.curvature
    (array([-6.]), array([[2.]]))
    """
    with TRACING, double_precision():
        point = jnp.asarray(theta, jnp.float64)
        gradient, hessian = jax.grad(model.log_prior)(point), jax.hessian(model.log_prior)(point)
        return Expansion(np.asarray(theta, np.float64), np.asarray(gradient), -np.asarray(hessian))


def prior_gradients(model: Model, points: np.ndarray) -> np.ndarray:
    """Gradients (point, dim) of the log prior at many points (point, dim), in double precision."""
    with TRACING, double_precision():
        return np.asarray(jax.vmap(jax.grad(model.log_prior))(jnp.asarray(points, jnp.float64)))


@dataclass(frozen=True)
class LikelihoodTerms(DensityProgram[tuple[jax.Array, jax.Array]]):
    """Program: gradient and curvature of one shard's log-likelihood at a frame's centre, in its coordinates."""

    def __call__(
        self, rows: Rows, weights: jax.Array, shard: None, frame: DeviceFrame
    ) -> tuple[jax.Array, jax.Array]:
        by_rows = row_derivatives(self.model, frame.center, frame.basis, rows)
        if by_rows is not None:
            return by_rows.gradient(weights), -by_rows.hessian(weights)

        def log_likelihood(u: jax.Array) -> jax.Array:
            return jnp.sum(weights * self.model.log_likelihood(frame.to_theta(u), rows))

        return expanded(log_likelihood, jnp.zeros_like(frame.center))[1:]


def expand_likelihood(model: Model, blocks: Blocks, frame: Frame, engine: Engine) -> Expansion:
    """The log-likelihood of all rows at the frame's centre, in one pass over them.

    It is computed in the frame's coordinates, which are of order one.
    """
    device = DeviceFrame.of(frame)
    gradient, curvature = np.zeros(model.dim), np.zeros((model.dim, model.dim))
    results = engine.map(LikelihoodTerms(model), blocks, None, device)
    for shard, (slope, bend) in in_order(results, range(blocks.num_shards)):
        gradient += blocks.shares[shard] * np.asarray(slope, np.float64)
        curvature += blocks.shares[shard] * np.asarray(bend, np.float64)
    inverse = np.linalg.inv(frame.basis)
    whole = inverse.T @ curvature @ inverse
    # The point at which the device evaluated it, in the device's precision.
    center = np.asarray(device.center, np.float64)
    return Expansion(center, inverse.T @ gradient, (whole + whole.T) / 2)


def likelihood_at_mode(model: Model, mode: Mode) -> Expansion:
    """The log-likelihood of the rows whose posterior has this mode and curvature."""
    prior = expand_prior(model, mode.theta)
    return Expansion(mode.theta, -prior.gradient, mode.curvature - prior.curvature)


@dataclass(frozen=True, eq=False)
class OtherPrior(ABC):
    """A model with another prior: what the search for a mode needs from a model."""

    model: Model

    @property
    def dim(self) -> int:
        return self.model.dim

    @property
    def names(self) -> list[str]:
        return self.model.names

    @property
    def initial(self) -> np.ndarray:
        return self.model.initial

    def log_likelihood(self, theta: jax.Array, rows: Rows) -> jax.Array:
        return self.model.log_likelihood(theta, rows)

    @abstractmethod
    def log_prior(self, theta: jax.Array) -> jax.Array:
        """The other log prior, a number."""


@dataclass(frozen=True, eq=False)
class Conditioned(OtherPrior):
    """A model whose prior is the posterior given earlier rows, known by their expansion. Its rows are the new ones."""

    earlier: Expansion

    @property
    def initial(self) -> np.ndarray:
        return self.earlier.center

    def log_prior(self, theta: jax.Array) -> jax.Array:
        gap = jnp.asarray(theta) - self.earlier.center
        curvature = jnp.asarray(self.earlier.curvature, gap.dtype)
        return self.model.log_prior(theta) + gap @ (self.earlier.gradient - 0.5 * curvature @ gap)
