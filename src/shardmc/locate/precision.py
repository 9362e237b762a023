"""How far rounding in single precision would move the posterior, and which precision to use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Batch, Blocks
from shardmc.data.grouped import GroupedRows
from shardmc.engine import Engine
from shardmc.errors import unknown
from shardmc.locate.newton import Start, near_mode
from shardmc.locate.terms import row_scores
from shardmc.model import Density, Model
from shardmc.model.precision import Precision, double_precision
from shardmc.model.shared import joined, with_shared
from shardmc.programs.compiled import RUNS_ONCE, CompiledFor
from shardmc.programs.threads import aside
from shardmc.target import DeviceFrame
from shardmc.types import Frame, Rows, Tree

_NAMES = ("auto", "single", "double")

LOG_DENSITY = 0.2
"""With more noise in a shard's log density, single precision is not enough.

Noise of standard deviation s that has the same law everywhere does not change a chain's stationary distribution; it
lowers the acceptance rate by the factor erfc(s / 2), here 0.89. Double precision takes about twice as long on a CPU.
"""
GRADIENT = 0.02
"""With more noise in the gradient of all rows (as a shift of the mode in posterior sd) it is not enough."""

_POINTS = 8
_FEW_POINTS, _MANY = 2, 64
"""Points for groups with many effects or more parameters than that: each parameter is a pass over the rows."""
_GROUPS = 32
_ROWS = (2_048, 16_384, 65_536, 1_048_576)
"""Numbers of rows used: few different ones, so that few programs are compiled."""


@dataclass(frozen=True)
class Noise:
    """The effect of rounding in single precision on the posterior of all rows."""

    log_density: float
    """Standard deviation of the error of a shard's log density, at points about one posterior sd from the mode."""
    gradient: float
    """The shift of a parameter, in posterior sd, caused by the error of the gradient of all rows."""

    @property
    def matters(self) -> bool:
        # NaN counts as too much.
        return not (self.log_density <= LOG_DENSITY and self.gradient <= GRADIENT)

    @property
    def sentence(self) -> str:
        """What matters, in words, or else both numbers."""
        value = f"the log posterior by {_number(self.log_density)} ({LOG_DENSITY} is allowed)"
        slope = f"its mode by {_number(self.gradient)} posterior sd ({GRADIENT} is allowed)"
        if not self.matters:
            return f"in single precision rounding moves {value} and {slope}"
        if not np.isfinite([self.log_density, self.gradient]).all():
            return "in single precision the log posterior is not finite near its mode"
        what = value if not self.log_density <= LOG_DENSITY else slope.replace("its mode", "the mode")
        return f"in single precision rounding would move {what}"


@dataclass(frozen=True)
class Choice:
    """The precision in which a posterior is computed, and why."""

    double: bool
    reason: str
    noise: Noise | None = None
    """The noise, if it was measured."""
    start: Start | None = field(default=None, repr=False, compare=False)
    """The point near the mode at which it was measured. `locate` can continue from there."""

    @property
    def name(self) -> str:
        return "double" if self.double else "single"

    @property
    def plan(self) -> dict[str, str | float]:
        """For `posterior.plan`."""
        measured = {}
        if self.noise is not None:
            measured = {"noise_log_density": self.noise.log_density, "noise_gradient": self.noise.gradient}
        return {"precision": self.name, "precision_reason": self.reason, **measured}

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if double precision was chosen by measurement."""
        if not self.double or self.noise is None:
            return ()
        return (f"Computed in double precision: {self.reason}.",)

    def applied(self) -> AbstractContextManager[None]:
        """A context in which JAX computes in this precision."""
        return Precision(self.double, Precision.here().matmul).applied()

    def to_array(self) -> np.ndarray:
        """Precision and noise as numbers, for a run folder."""
        noise = (np.nan, np.nan) if self.noise is None else (self.noise.log_density, self.noise.gradient)
        return np.array([float(self.double), *noise])

    @staticmethod
    def from_array(numbers: np.ndarray, asked: str) -> Choice:
        double, *noise = map(float, numbers)
        return _asked(asked) or _measured(None if np.isnan(noise).all() else Noise(*noise), bool(double))


A = TypeVar("A")


class RoundingTerms(NamedTuple, Generic[A]):
    """Gains over the frame's centre and their gradients at some points, for groups of rows and for the prior.

    JAX arrays inside the program, float64 NumPy arrays outside.
    """

    values: A  # (group, point)
    gradients: A  # (group, point, dim)
    weights: A  # (group,) sums of weights
    prior_values: A  # (point,)
    prior_gradients: A  # (point, dim)
    total_weight: A  # () of the whole shard


def _rounding(
    kind: Density, num_rows: int, numbers: Tree, batch: Batch, frame: DeviceFrame, points: jax.Array
) -> RoundingTerms[jax.Array]:
    """The terms of the log density of a batch's first shard, in the current precision."""
    model = joined(kind, numbers)
    with jax.default_matmul_precision("highest"):
        rows, weights = batch.take(0)
        groups = min(_GROUPS, weights.shape[0])
        each = min(num_rows, weights.shape[0]) // groups

        def prior_gain(u: jax.Array) -> jax.Array:
            return model.log_prior(frame.to_theta(u)) - model.log_prior(frame.center)

        prior_values, prior_gradients = jax.vmap(jax.value_and_grad(prior_gain))(points)
        if isinstance(rows, GroupedRows):
            reference = model.log_likelihood(frame.center, rows)

            def parts(every: jax.Array) -> jax.Array:
                """Sums (..., group) of the weighted terms (..., row) of rows."""
                some = (weights * every)[..., : groups * each]
                return some.reshape(*every.shape[:-1], groups, each).sum(axis=-1)

            def at(u: jax.Array) -> tuple[jax.Array, jax.Array]:
                def log_likelihood(u: jax.Array, some: Rows) -> jax.Array:
                    return model.log_likelihood(frame.to_theta(u), some)

                return parts(log_likelihood(u, rows) - reference), parts(row_scores(log_likelihood, u, rows))

            values, gradients = jax.lax.map(at, points)
            values, gradients = values.T, jnp.moveaxis(gradients, (0, 1, 2), (1, 2, 0))
            sums = parts(jnp.ones_like(weights))
            return RoundingTerms(values, gradients, sums, prior_values, prior_gradients, jnp.sum(weights))
        some = jax.tree.map(lambda a: a[: groups * each].reshape(groups, each, *a.shape[1:]), (rows, weights))

        def group(rows: Rows, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
            reference = model.log_likelihood(frame.center, rows)

            def gain(u: jax.Array) -> jax.Array:
                return jnp.sum(weights * (model.log_likelihood(frame.to_theta(u), rows) - reference))

            return jax.vmap(jax.value_and_grad(gain))(points)

        values, gradients = jax.vmap(group)(*some)
        sums = jnp.sum(some[1], axis=1)
        return RoundingTerms(values, gradients, sums, prior_values, prior_gradients, jnp.sum(weights))


_in_single, _in_double = (
    CompiledFor(_rounding, static=2, most=4, compiler_options=RUNS_ONCE) for _ in range(2)
)


def asked_precision(precision: str) -> str:
    """The user's option, checked. "auto" is "double" if JAX runs in float64 anyway."""
    if precision not in _NAMES:
        raise unknown("precision", precision, _NAMES)
    return "double" if precision == "auto" and Precision.here().double else precision


def precision_of_rows(asked: str) -> AbstractContextManager[None]:
    """A context for reading rows: they are float64 in memory only if JAX runs in float64 anyway."""
    here = Precision.here()
    return Precision(here.double and asked != "single", here.matmul).applied()


def choose_precision(
    asked: str, model: Model, blocks: Blocks, engine: Engine, near: Frame | None = None
) -> Choice:
    """The precision asked for, or the one that the noise of single precision requires.

    Parameters
    ----------
    asked
        "single", "double", or "auto" for a choice by measurement.
    blocks
        The noise is measured on rows of the first shard. Some shards are used to find a point near the mode.
    near
        A point near the mode and the posterior's scale there, if they are known.
    """
    given = _asked(asked)
    if given is not None:
        return given
    start = None
    if near is None:
        compiled = _compile_ahead(model, blocks)
        start = near_mode(model, blocks, engine)
        near = start.frame
        compiled()
        if not start.found:
            return Choice(True, "no mode was found in single precision", start=start)
    try:
        noise = measure_noise(model, blocks, near)
    except (TypeError, ValueError) as error:
        # JAX refuses in one precision what it compiled in the other: see `Rewritten`.
        reason = f"the model cannot be computed in double precision ({str(error).splitlines()[0][:100]})"
        return Choice(False, reason, start=start)
    return replace(_measured(noise, noise is not None and noise.matters), start=start)


def _asked(asked: str) -> Choice | None:
    if asked == "auto":
        return None
    if asked == "double" and Precision.here().double:
        return Choice(True, "JAX runs in float64")
    return Choice(asked == "double", f"precision={asked!r}")


def _measured(noise: Noise | None, double: bool) -> Choice:
    return Choice(double, "rounding could not be measured" if noise is None else noise.sentence, noise)


def _compile_ahead(model: Model, blocks: Blocks) -> Callable[[], object]:
    """Compile the programs of `measure_noise` in the background. Call the result to wait for it."""
    if not blocks.in_memory:
        return lambda: None  # rows would have to be read
    points = np.zeros((_POINTS, model.dim), np.float32)

    def compile_both() -> None:
        with suppress(Exception):  # raised again when the program is needed
            for double in (True, False):
                _terms(model, blocks, Frame.identity(model.dim), points, double=double)

    return aside(compile_both, "shardmc-precision").result


def measure_noise(model: Model, blocks: Blocks, frame: Frame) -> Noise | None:
    """Compare single with double precision on some rows, and scale the difference to all. None if impossible.

    The frame's centre is near the mode, and its basis is the scale of the posterior of all rows. The error of a row's
    gain l_j(theta) - l_j(center) has a part that all rows share, which grows with the number of rows N, and a part that
    is independent between rows. With m the mean of the errors over n rows, and e its standard error, the noise of the
    log density of a shard of n_i rows is N sqrt(m^2 - e^2 + e^2 n / n_i). For the gradient over all rows, N replaces
    n_i.
    """
    few = blocks.of_groups and (blocks.matched or model.dim > _MANY)
    count = _FEW_POINTS if few else _POINTS
    points = np.random.default_rng(0).normal(size=(count, model.dim)).astype(np.float32)
    single, double = (_terms(model, blocks, frame, points, double=d) for d in (False, True))
    sound = np.isfinite(double.values).all(axis=0) & np.isfinite(double.gradients).all(axis=(0, 2))
    if not sound.any() or not (double.weights > 0).any():
        return None
    counted = double.weights > 0
    weights = double.weights[counted]
    rows = min(_rows(blocks), int(blocks.sizes[0]))
    total = float(double.total_weight)
    errors = (single.values - double.values)[counted][:, sound]
    variance = _variance(errors, weights, total, rows / blocks.sizes[0])
    prior = (single.prior_values - double.prior_values)[sound]
    log_density = np.sqrt(variance + np.mean(prior**2))
    # The error of the whitened gradient, as a shift of every parameter in posterior sd.
    shift = (frame.basis / np.linalg.norm(frame.basis, axis=1)[:, None]).T
    errors = (single.gradients - double.gradients)[counted][:, sound] @ shift
    variance = _variance(errors, weights, total, rows / blocks.num_rows)
    prior = (single.prior_gradients - double.prior_gradients)[sound] @ shift
    gradient = np.sqrt(np.max(variance + np.mean(prior**2, axis=0)))
    return Noise(*(float(x) if np.isfinite(x) else float("inf") for x in (log_density, gradient)))


def _terms(
    model: Model, blocks: Blocks, frame: Frame, points: np.ndarray, *, double: bool
) -> RoundingTerms[np.ndarray]:
    with double_precision(double):
        _, batch = next(iter(blocks.batches([0], 1)))
        real = jnp.result_type(float)
        program = _in_double if double else _in_single
        arguments = (batch, DeviceFrame.of(frame), points.astype(real))

        def run(kind: Density, numbers: Tree) -> RoundingTerms[jax.Array]:
            return program(kind, _rows(blocks), numbers, *arguments)

        terms = with_shared(run, model, batch.rows) if isinstance(batch, Batch) else run(model, None)
        return RoundingTerms(*(np.asarray(part, np.float64) for part in terms))


def _variance(errors: np.ndarray, weights: np.ndarray, total: float, part: float) -> np.ndarray:
    """Mean square over points of errors (group, point, ...), scaled to all rows. See `measure_noise`."""
    mean = errors.sum(axis=0) / weights.sum()
    rates = errors / weights.reshape(-1, *[1] * (errors.ndim - 1))
    chance = rates.var(axis=0, ddof=1) / len(weights) if len(weights) > 1 else np.zeros_like(mean)
    shared = np.maximum(np.mean(mean**2 - chance, axis=0), 0.0)
    return total**2 * (shared + np.mean(chance, axis=0) * part)


def _rows(blocks: Blocks) -> int:
    """The number of rows to use. More if there are many, so that independent errors do not look shared."""
    wanted = min(4e-10 * blocks.num_rows**2, blocks.capacity)
    return next((rows for rows in _ROWS if rows >= wanted), _ROWS[-1])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
