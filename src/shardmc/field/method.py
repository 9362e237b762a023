"""What the methods here share: how a call opens a job, and chains that read few rows per step, in random order."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.check import Certify
from shardmc.combiners import Recenter
from shardmc.data import Partition, as_source
from shardmc.data.batch import Blocks, wide
from shardmc.data.blocks import ArrayBlocks
from shardmc.data.gathered import GatheredBlocks
from shardmc.engine import Engine, Local
from shardmc.errors import DataError, OptionError
from shardmc.locate import asked_precision, precision_of_rows
from shardmc.locate.expansion import expand_likelihood
from shardmc.model import Model, Recipe
from shardmc.pipeline.counts import number_of_shards
from shardmc.pipeline.driver import Driver
from shardmc.pipeline.fitting import FrontEnd, as_front_end, check_options
from shardmc.pipeline.stage import Job
from shardmc.sample import Auto, Sampler
from shardmc.target import DeviceFrame
from shardmc.types import Data, Frame, Rows, RowValues, Tree


def rows_in_memory(blocks: Blocks) -> ArrayBlocks:
    """The same rows as arrays, from which any row can be taken at once."""
    if isinstance(blocks, GatheredBlocks):
        return blocks.copied()
    if not isinstance(blocks, ArrayBlocks):
        raise DataError(
            "Subsampling methods need all rows in memory, each by itself. For rows that are read from disk raise "
            "memory= of shardmc.data.as_source; for rows that belong to groups use shardmc.fit."
        )
    return blocks


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Minibatches:
    """All rows in random order. Minibatch b holds the rows from starts[b] to starts[b + 1].

    The order is drawn once, so each minibatch is a sample without replacement, and a method that picks minibatches at
    random, or goes through consecutive ones from a random start, estimates sums over all rows without bias.
    """

    rows: Rows  # (row, ...)
    weights: jax.Array  # (row,) the user's weights, or ones
    starts: jax.Array  # (minibatch + 1,)
    size: int = field(metadata={"static": True})
    """The most rows of a minibatch. Some have one row less."""

    @staticmethod
    def of(blocks: ArrayBlocks, size: int, rng: np.random.Generator) -> Minibatches:
        """Shuffle the rows of a partition, and cut them into minibatches of about this size."""
        count = blocks.num_rows
        starts = minibatch_starts(count, size)
        order = jnp.asarray(rng.permutation(count).astype(np.int32))
        rows, weights = jax.tree.map(lambda a: jnp.take(a, order, axis=0), (blocks.rows, blocks.row_weights))
        if weights is None:
            weights = jnp.ones(count, jnp.float32)
        largest = int(np.diff(starts).max())
        return Minibatches(rows, weights, jnp.asarray(starts.astype(np.int32)), largest)

    @property
    def num_rows(self) -> int:
        return self.weights.shape[0]

    @property
    def count(self) -> int:
        return self.starts.shape[0] - 1

    def take(self, b: jax.Array) -> tuple[Rows, jax.Array, jax.Array]:
        """Rows, weights, and which rows belong to minibatch b: one may be there only to fill up the array."""
        first, last = self.starts[b], self.starts[b + 1]
        # The last minibatch may have one row less, and must not be read past the end.
        start = jnp.minimum(first, self.num_rows - self.size)
        rows, weights = jax.tree.map(
            lambda a: wide(lax.dynamic_slice_in_dim(a, start, self.size)), (self.rows, self.weights)
        )
        position = start + jnp.arange(self.size)
        inside = (position >= first) & (position < last)
        return rows, jnp.where(inside, weights, 0), inside


def minibatch_starts(num_rows: int, size: int) -> np.ndarray:
    """First rows of minibatches whose sizes differ by at most one, and the number of rows.

    >>> minibatch_starts(10, 3)
    array([ 0,  3,  6, 10])
    """
    count = max(1, num_rows // min(size, num_rows))
    return np.arange(count + 1) * num_rows // count


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Expanded:
    """Gradient and Hessian of the log-likelihood of all rows at the mode, in whitened coordinates."""

    gradient: jax.Array  # (dim,)
    hessian: jax.Array  # (dim, dim)

    @staticmethod
    def of(model: Model, blocks: Blocks, frame: Frame, engine: Engine) -> Expanded:
        """Compute both in one pass over all rows."""
        found, real = expand_likelihood(model, blocks, frame, engine), jnp.result_type(float)
        hessian = -frame.basis.T @ found.curvature @ frame.basis
        return Expanded(jnp.asarray(frame.basis.T @ found.gradient, real), jnp.asarray(hessian, real))

    @staticmethod
    def unknown(dim: int) -> Expanded:
        """For methods that do not use them."""
        return Expanded(jnp.full(dim, jnp.nan), jnp.full((dim, dim), jnp.nan))


@dataclass(frozen=True)
class RowPosterior:
    """The posterior of all rows in whitened coordinates u, theta = mode + basis u, seen through minibatches."""

    model: Model
    data: Minibatches
    frame: DeviceFrame
    at_mode: Expanded

    @property
    def dim(self) -> int:
        return self.frame.center.shape[0]

    @property
    def num_rows(self) -> int:
        return self.data.num_rows

    def log_prior(self, u: jax.Array) -> jax.Array:
        return self.model.log_prior(self.frame.to_theta(u))

    def log_likelihood(self, u: jax.Array, rows: Rows) -> jax.Array:
        """Log-likelihood of every row, (row,)."""
        return self.model.log_likelihood(self.frame.to_theta(u), rows)

    def minibatch_gradient(self, u: jax.Array, b: jax.Array) -> jax.Array:
        """Gradient of the log-likelihood of all rows, estimated from minibatch b without bias."""
        rows, weights, _ = self.data.take(b)
        total = jax.grad(lambda u: jnp.sum(weights * self.log_likelihood(u, rows)))(u)
        return self.data.count * total


def batches_of(total: int, most: int) -> Sequence[int]:
    """Equal parts of about `total` steps, so that progress can be shown: at most `most` parts.

    >>> batches_of(1000, 20)[:2], len(batches_of(3, 20))
    ([50, 50], 3)
    """
    parts = max(1, min(most, total))
    return [math.ceil(total / parts)] * parts


State: TypeAlias = tuple[jax.Array, ...]
"""Where a chain is. The first entry is the position."""


class Tuned(NamedTuple):
    """Numbers that a method chose before it starts."""

    values: Tree
    """For `step`."""
    thin: int
    """Steps per draw."""
    evaluations: int = 0
    """Rows that were evaluated to find them."""
    notes: tuple[str, ...] = ()


class Stepped(NamedTuple):
    """One step of a chain."""

    evaluations: jax.Array  # () rows whose log-likelihood or gradient was evaluated
    acceptance: jax.Array  # () 1 if the proposal was accepted; always 1 for methods without one


class Subsampler(ABC):
    """A chain where the posterior is about standard normal. Implementations are frozen dataclasses."""

    needs_expansion: ClassVar[bool] = False
    """Whether it uses gradient and Hessian of all rows at the mode, which take one pass."""
    together: ClassVar[bool] = True
    """Whether chains advance together. If their steps take different numbers of rows, they run one after another."""
    advice: ClassVar[str]
    """What to do if the draws are off."""

    minibatch: int
    chains: int
    warmup: int

    @abstractmethod
    def tune(self, posterior: RowPosterior, key: jax.Array) -> Tuned:
        """Choose step sizes and the like."""

    @abstractmethod
    def start(self, u: jax.Array) -> State:
        """The state of a chain at u."""

    @abstractmethod
    def step(
        self, posterior: RowPosterior, values: Tree, key: jax.Array, state: State
    ) -> tuple[State, Stepped]:
        """The next state."""


def check_counts(method: object, **least: int) -> None:
    """Refuse options of a method that are not whole numbers, or are below their least value."""
    for name, smallest in least.items():
        value = getattr(method, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < smallest:
            kind = type(method).__name__
            raise OptionError(f"{name} of {kind} must be a whole number from {smallest}, not {value!r}.")


def check_range(method: object, name: str, low: float, high: float, allowed: float | None = None) -> None:
    """Refuse an option of a method that does not lie strictly between two numbers, one of which may be allowed."""
    value = getattr(method, name)
    if value is None:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and (low < value < high or value == allowed)):
        limit = f"at least {low:g}" if allowed == low else f"above {low:g}"
        if not math.isinf(high):
            limit += f" and at most {high:g}" if allowed == high else f" and below {high:g}"
        raise OptionError(f"{name} of {type(method).__name__} must be {limit}; {value!r} was given.")


def open_job(
    driver: Driver,
    model: Recipe | FrontEnd,
    data: Data,
    sampler: Sampler | Auto,
    *,
    shards: int | str,
    draws: int,
    seed: int,
    weights: RowValues,
    engine: Engine | None,
    certify: Certify | None,
    precision: str,
    stratify: RowValues = None,
    shuffled: bool | None = None,
) -> tuple[FrontEnd, Job]:
    """The model as a front end, and the job: the options are those of `fit`."""
    check_options(draws, seed, None, certify is not None, polish=False)
    precision, front_end = asked_precision(precision), as_front_end(model)
    with precision_of_rows(precision):
        rows, bound = driver.timed("read", front_end.open, as_source(data), int(seed))
        count = number_of_shards(shards, rows, bound.dim, int(draws))
        partition = Partition(count, stratify=stratify, weights=weights)
        blocks = driver.timed("split", rows.split, partition, int(seed))
    job = Job(
        model=bound,
        blocks=blocks,
        engine=Local() if engine is None else engine,
        seed=int(seed),
        combiner=Recenter(),
        sampler=sampler,
        draws_per_shard=int(draws),
        precision=precision,
        certify=certify,
        shuffled=shuffled,
        options=frozenset({"shards", "stratify"}),
    )
    return front_end, job
