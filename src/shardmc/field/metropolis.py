"""Metropolis-Hastings that decides from a part of the rows: a sequential test on growing samples of them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from shardmc.field.method import Stepped, Subsampler, Tuned, check_counts, check_range
from shardmc.field.rows import RowPosterior
from shardmc.types import Rows


class Seen(NamedTuple):
    """The rows that a test has read: how many, and the mean and the sum of squared deviations of their values."""

    minibatches: jax.Array
    rows: jax.Array
    mean: jax.Array
    squares: jax.Array
    decided: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Widths:
    """Half-widths of the interval for the mean of all rows, after 1, 2, ... minibatches: sd * s + range * C.

    s is the standard deviation of the rows read, C a bound of the values. After all rows the width is 0.
    """

    sd: jax.Array  # (minibatch,)
    range: jax.Array  # (minibatch,)

    @staticmethod
    def of(sd: np.ndarray, range: np.ndarray) -> Widths:
        """From arrays (minibatch,). Infinite: no decision there. The last one is set to 0."""
        sd, range = sd.copy(), range.copy()
        sd[-1] = range[-1] = 0.0
        real = jnp.result_type(float)
        return Widths(jnp.asarray(sd, real), jnp.asarray(range, real))


def mean_exceeds(
    posterior: RowPosterior,
    first: jax.Array,
    values: Callable[[Rows], jax.Array],
    threshold: jax.Array,
    bound: jax.Array,
    widths: Widths,
) -> tuple[jax.Array, Seen]:
    """Whether the weighted mean of values(rows) over all rows exceeds a threshold, as far as the rows read can tell.

    Consecutive minibatches are read from `first` on, until the interval does not contain the threshold.
    """
    data = posterior.data

    def undecided(seen: Seen) -> jax.Array:
        return ~seen.decided

    def read(seen: Seen) -> Seen:
        rows, weights, inside = data.take((first + seen.minibatches) % data.count)
        found = jnp.where(inside, weights * values(rows), 0)
        count = jnp.sum(inside, dtype=jnp.int32)
        mean = jnp.sum(found) / count
        squares = jnp.sum(jnp.where(inside, (found - mean) ** 2, 0))
        # Chan's update of mean and squares by those of another group.
        total = seen.rows + count
        gap = mean - seen.mean
        joint = seen.mean + gap * (count / total)
        squares = seen.squares + squares + gap**2 * (seen.rows / total) * count
        sd = jnp.sqrt(squares / jnp.maximum(total - 1, 1))
        at = seen.minibatches
        # Not a product where nothing is known: infinity times zero is not a number.
        width = jnp.where(jnp.isinf(widths.sd[at]), jnp.inf, widths.sd[at] * sd + widths.range[at] * bound)
        decided = (jnp.abs(joint - threshold) > width) | (at + 1 == data.count)
        return Seen(at + 1, total, joint, squares, decided)

    zero = jnp.zeros(())
    start = Seen(jnp.int32(0), jnp.int32(0), zero, zero, jnp.array(False))
    seen = lax.while_loop(undecided, read, start)
    return seen.mean > threshold, seen


@dataclass(frozen=True)
class RowMetropolis(Subsampler):
    """Random-walk Metropolis in whitened coordinates whose accept step reads only as many rows as it needs.

    With a uniform number v, a proposal u' is accepted from u if the mean over all rows of l_j(u') - l_j(u) exceeds
    (log v - log prior(u') + log prior(u)) / N. A subclass says how sure of that it must be.
    """

    together = False
    row_cost: ClassVar[int] = 2
    """Evaluations of a row that is read: at both points."""

    advice = "Use a smaller tolerance, or a smaller scale if few proposals are accepted; or use shardmc.fit."

    minibatch: int = 100
    chains: int = 4
    warmup: int = 20
    thin: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        check_counts(self, minibatch=2, chains=1, warmup=0, thin=1)
        check_range(self, "scale", 0.0, math.inf)

    @abstractmethod
    def widths(self, num_rows: int, read: np.ndarray) -> Widths:
        """Widths after these numbers of rows, (minibatch,)."""

    def measured(self, posterior: RowPosterior) -> tuple[Any, int]:
        """What else the test needs to know about the rows, and the evaluations that it took."""
        return jnp.zeros(()), 0

    def bound(self, measured: Any, u: jax.Array, proposal: jax.Array) -> jax.Array:
        """C: the values of all rows lie between -C and C."""
        return jnp.zeros(())

    def compared(
        self, posterior: RowPosterior, u: jax.Array, proposal: jax.Array
    ) -> tuple[Callable[[Rows], jax.Array], jax.Array]:
        """A function of rows, and the sum over all rows of what it leaves out of l_j(u') - l_j(u)."""

        def difference(rows: Rows) -> jax.Array:
            return posterior.log_likelihood(proposal, rows) - posterior.log_likelihood(u, rows)

        return difference, jnp.zeros(())

    def tune(self, posterior: RowPosterior, key: jax.Array) -> Tuned:
        read = np.asarray(posterior.data.starts)[1:]
        measured, evaluations = self.measured(posterior)
        scale = 2.38 / math.sqrt(posterior.dim) if self.scale is None else self.scale
        values = (self.widths(posterior.num_rows, read), measured, jnp.asarray(scale, float))
        return Tuned(values, self.thin or posterior.dim, evaluations)

    def start(self, u: jax.Array) -> tuple[jax.Array, ...]:
        return (u,)

    def step(
        self, posterior: RowPosterior, values: Any, key: jax.Array, state: Any
    ) -> tuple[tuple[jax.Array, ...], Stepped]:
        (u,), (widths, measured, scale) = state, values
        key_move, key_accept, key_rows = jax.random.split(key, 3)
        proposal = u + scale * jax.random.normal(key_move, u.shape)
        prior_gain = posterior.log_prior(proposal) - posterior.log_prior(u)
        function, known = self.compared(posterior, u, proposal)
        log_uniform = jnp.log1p(-jax.random.uniform(key_accept))
        threshold = (log_uniform - prior_gain - known) / posterior.num_rows
        first = jax.random.randint(key_rows, (), 0, posterior.data.count)
        bound = self.bound(measured, u, proposal)
        accepted, seen = mean_exceeds(posterior, first, function, threshold, bound, widths)
        rows = self.row_cost * seen.rows
        return (jnp.where(accepted, proposal, u),), Stepped(rows, accepted.astype(float))


@final
@dataclass(frozen=True)
class Austerity(RowMetropolis):
    """Approximate Metropolis-Hastings by sequential t-tests (Korattikara, Chen and Welling 2014).

    After n rows the mean difference has the standard error s / sqrt(n) sqrt(1 - (n - 1) / (N - 1)). The test stops as
    soon as the probability of Student's t beyond the distance to the threshold is below `tolerance`; with all rows the
    decision is exact. The smaller the tolerance, the smaller the bias, and the more rows are read.

    The t-test takes the mean of a minibatch for normal. If a few rows matter much (rare events), it decides too early.

    Parameters
    ----------
    tolerance
        The authors' epsilon: the probability of a wrong decision, at one look, that is accepted.
    minibatch
        Rows that are read before each look.
    chains, warmup
        As for `SGLD`. Chains run one after another.
    thin
        Steps per draw. By default the number of parameters.
    scale
        Standard deviation of a step in posterior standard deviations. By default 2.38 / sqrt(dim).

    Examples
    --------
    >>> Austerity(tolerance=0.01).minibatch
    500
    """

    minibatch: int = 500
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "tolerance", 0.0, 0.5)

    def widths(self, num_rows: int, read: np.ndarray) -> Widths:
        unread = 1 - (read - 1) / max(num_rows - 1, 1)
        quantile = special.stdtrit(np.maximum(read - 1, 1), 1 - self.tolerance)
        return Widths.of(quantile * np.sqrt(unread / read), np.zeros(len(read)))
