"""The mode and curvature of the posterior of all rows, by a damped Newton method over sums of shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks, Rows
from shardmc.errors import ModelError
from shardmc.model import Model
from shardmc.target import DeviceFrame, log_likelihood_sum
from shardmc.types import Engine, Frame, Mode

DECREMENT = 0.01
"""A mode is found when the Newton decrement, its error in posterior standard deviations, is below this."""

_MAX_STEPS = 60
_START_ROWS = 20_000
_FLAT = 1e-4
"""Curvature along a direction, relative to what it was one step before, below which nothing holds the parameter."""


@dataclass(frozen=True)
class LikelihoodTerms:
    """Program: one shard's log-likelihood gain over another point, its gradient and curvature, in a frame."""

    model: Model

    def __call__(
        self, rows: Rows, weights: jax.Array, shard: None, shared: tuple[DeviceFrame, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        frame, previous = shared
        reference = self.model.log_likelihood(previous, rows)

        def gain(u: jax.Array) -> jax.Array:
            return log_likelihood_sum(self.model, rows, weights, frame, reference, u)

        origin = jnp.zeros_like(frame.center)
        value, gradient = jax.value_and_grad(gain)(origin)
        return value, gradient, -jax.hessian(gain)(origin)


@dataclass(frozen=True)
class _Terms:
    """Log posterior gain over the previous point, gradient and curvature at a frame's centre, in its coordinates."""

    gain: float
    gradient: np.ndarray
    curvature: np.ndarray


@dataclass(frozen=True)
class _Step:
    """A Newton step in a frame: where to go, in which coordinates to look next, and how far it is."""

    u: np.ndarray
    basis: np.ndarray
    decrement: float
    smallest: float

    @staticmethod
    def of(terms: _Terms) -> _Step:
        """Newton step with the curvature's negative eigenvalues turned, so that it always climbs."""
        diagonal = np.abs(np.diag(terms.curvature))
        scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values, vectors = np.linalg.eigh(scale[:, None] * terms.curvature * scale)
        basis = scale[:, None] * vectors / np.sqrt(np.maximum(np.abs(values), 1e-7))
        pull = basis.T @ terms.gradient
        return _Step(basis @ pull, basis, float(np.linalg.norm(pull)), float(values[0]))


class _Evaluator:
    """Sums of the log posterior over shards, for the Newton iteration; counts the passes over the data."""

    def __init__(self, model: Model, blocks: Blocks, engine: Engine) -> None:
        self.model, self.blocks, self.engine = model, blocks, engine
        self.passes = 0.0

    def __call__(self, frame: Frame, previous: np.ndarray, shards: Sequence[int] | None = None) -> _Terms:
        """Terms at the frame's centre from all shards, or from some that stand for all."""
        device = DeviceFrame.of(frame)
        center = jnp.asarray(previous, jnp.result_type(float))
        shares = self.blocks.shares if shards is None else self.blocks.shares[list(shards)]
        total_share = float(shares.sum())
        gain, gradient, curvature = (
            np.asarray(t, dtype=np.float64) for t in _prior_terms(self.model, device, center)
        )
        program = LikelihoodTerms(self.model)
        for shard, terms in self.engine.map(program, self.blocks, None, (device, center), shards):
            weight = self.blocks.shares[shard] / total_share
            gain = gain + weight * np.float64(terms[0])
            gradient = gradient + weight * np.asarray(terms[1], np.float64)
            curvature = curvature + weight * np.asarray(terms[2], np.float64)
        self.passes += total_share
        return _Terms(float(gain), gradient, (curvature + curvature.T) / 2)


def _prior_terms_of(model: Model, frame: DeviceFrame, previous: jax.Array):
    def gain(u: jax.Array) -> jax.Array:
        return model.log_prior(frame.to_theta(u)) - model.log_prior(previous)

    origin = jnp.zeros_like(frame.center)
    value, gradient = jax.value_and_grad(gain)(origin)
    return value, gradient, -jax.hessian(gain)(origin)


_prior_terms = jax.jit(_prior_terms_of, static_argnums=0)


def locate(
    model: Model,
    blocks: Blocks,
    engine: Engine,
    *,
    on_step: Callable[[int, float], None] | None = None,
) -> Mode:
    """Mode and curvature of the posterior of all rows, by a damped Newton method.

    Values, gradients and Hessians are float32 sums within shards and float64 sums over them, each taken in the
    coordinates of the last curvature, where the problem is well conditioned however the columns are scaled. The
    iteration starts on a sample of the shards, so that few passes over all rows remain.

    Raises
    ------
    ModelError
        If there is no mode: the message names the parameters along which the posterior does not fall.
    """
    evaluate = _Evaluator(model, blocks, engine)
    theta = np.asarray(model.initial, dtype=np.float64)
    some = _sample_of_shards(blocks, model.dim)
    frame = Frame(theta, np.eye(model.dim))
    if some is not None:
        frame, _ = _climb(evaluate, frame, some, model, on_step, tolerance=1.0, may_fail=True)
    frame, mode = _climb(evaluate, frame, None, model, on_step, tolerance=DECREMENT, may_fail=False)
    assert mode is not None
    return mode


def _sample_of_shards(blocks: Blocks, dim: int) -> list[int] | None:
    """The first few shards, enough rows to start from; None where that would be most of the data."""
    wanted = max(_START_ROWS, 200 * dim)
    count = int(np.searchsorted(np.cumsum(blocks.sizes), wanted)) + 1
    return list(range(count)) if 4 * count <= blocks.num_shards else None


def _climb(
    evaluate: _Evaluator,
    frame: Frame,
    shards: Sequence[int] | None,
    model: Model,
    on_step: Callable[[int, float], None] | None,
    tolerance: float,
    may_fail: bool,
) -> tuple[Frame, Mode | None]:
    """Damped Newton from the frame's centre until the decrement is below the tolerance."""
    start = frame
    terms = evaluate(frame, frame.center, shards)
    if not np.isfinite(terms.gradient).all() or not np.isfinite(terms.curvature).all():
        if may_fail:
            return start, None
        raise ModelError(_not_finite(terms, model, frame))
    length = 1.0
    step = _Step.of(terms)
    for count in range(_MAX_STEPS):
        if on_step is not None:
            on_step(count, step.decrement)
        if step.decrement < tolerance and step.smallest > _FLAT:
            theta = frame.center + frame.basis @ step.u
            inverse = np.linalg.inv(frame.basis)
            curvature = inverse.T @ terms.curvature @ inverse
            mode = Mode(theta, (curvature + curvature.T) / 2, step.decrement, evaluate.passes)
            return Frame(theta, frame.basis @ step.basis), mode
        trial = Frame(frame.center + length * frame.basis @ step.u, frame.basis @ step.basis)
        there = evaluate(trial, frame.center, shards)
        predicted = step.decrement**2 * (length - length**2 / 2)
        # Within float32 noise of the summit the gain says nothing: a step that small is taken on trust.
        noise = 0.05 if step.decrement < 0.5 else 0.0
        finite = (
            np.isfinite(there.gain)
            and np.isfinite(there.gradient).all()
            and np.isfinite(there.curvature).all()
        )
        if finite and there.gain >= 1e-3 * predicted - noise:
            frame, terms, length = trial, there, 1.0
            previous, step = step, _Step.of(terms)
            if count > 3 and step.smallest < _FLAT and previous.smallest < _FLAT and step.decrement < 1.0:
                break
        else:
            length /= 4
            if length < 1e-6:
                break
    if may_fail:
        return start, None
    raise ModelError(_no_mode(frame, step, terms, model))


def _largest(direction: np.ndarray, names: Sequence[str]) -> str:
    """The parameters that make up a direction, in words."""
    weight = np.abs(direction) / np.abs(direction).max()
    order = [int(k) for k in np.argsort(-weight) if weight[k] > 0.3][:3]
    named = [repr(names[k]) for k in order]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " and " + named[-1]


def _no_mode(frame: Frame, step: _Step, terms: _Terms, model: Model) -> str:
    scaled_basis = frame.basis @ step.basis
    # The first column of the step's basis is the direction of smallest curvature, stretched to where it would end.
    direction = scaled_basis[:, 0] if step.smallest < _FLAT * 10 else frame.basis @ step.u
    return (
        f"The posterior has no mode: it does not fall along {_largest(direction, model.names)}. "
        "No row and no prior holds that direction (collinear columns, complete separation, or a parameter that no row "
        "informs); give it a proper prior or leave it out."
    )


def _not_finite(terms: _Terms, model: Model, frame: Frame) -> str:
    bad = [model.names[k] for k in np.flatnonzero(~np.isfinite(terms.gradient))] or list(model.names)
    return (
        f"The log posterior has no finite gradient at the starting point (for {', '.join(map(repr, bad[:3]))}). "
        "Scale the columns, or give the model an `initial` point where the likelihood is finite."
    )
