"""Metropolis-Hastings that decides from a part of the rows: by a sequential test, or by concentration bounds."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

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


Numbers: TypeAlias = tuple[Widths, jax.Array, jax.Array]
"""What `RowMetropolis.step` uses: the widths, what was measured, and the scale of a step."""


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

    def measured(self, posterior: RowPosterior) -> tuple[jax.Array, int]:
        """What else the test needs to know about the rows, and the evaluations that it took."""
        return jnp.zeros(()), 0

    def bound(self, measured: jax.Array, u: jax.Array, proposal: jax.Array) -> jax.Array:
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

    def start(self, u: jax.Array) -> State:
        return (u,)

    def step(
        self, posterior: RowPosterior, values: Numbers, key: jax.Array, state: State
    ) -> tuple[State, Stepped]:
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

    The t-test assumes that the mean of a minibatch is normal. If a few rows matter much (rare events), it decides too
    early.

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


_GRID = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Where the rows' derivatives are measured, relative to the radius of the posterior."""
_POWER = 2.0
"""p of the error probabilities (p - 1) / (p k^p) delta of look k, which sum to less than delta."""


@final
@dataclass(frozen=True)
class Confidence(RowMetropolis):
    """The confidence sampler (Bardenet, Doucet and Holmes 2014, 2017).

    The mean of the rows' differences is known up to s sqrt(2 log(3 / d) / n) + 6 C log(3 / d) / n after n rows, with
    probability 1 - d (empirical Bernstein bound; C bounds the differences' absolute values). Rows are read until that
    decides, and looked at after 1, 2, 4, ... minibatches, with error probabilities d that sum to less than `tolerance`.
    So the decision of a step is the exact one with probability at least 1 - tolerance.

    With `proxies`, the second-order Taylor polynomial of every row at the mode is subtracted from the differences. Its
    sum over all rows is known, and what remains is so small that few rows decide. Without them nearly all rows are
    read, as the authors found.

    C is C_1 |u' - u|, or C_3 (|u|^3 + |u'|^3) with proxies. C_1 is the largest gradient of a row, C_3 its largest third
    derivative over 6, measured for every row along its own gradient, which is where the largest one lies in a model
    with one linear predictor.

    Parameters
    ----------
    proxies
        Whether to use Taylor proxies.
    tolerance
        The authors' delta.
    safety
        C is multiplied by this, since it is measured at some points only.
    minibatch
        Rows that are read before the first look.
    chains, warmup, thin, scale
        As for `Austerity`.

    Examples
    --------
    >>> Confidence(proxies=True).row_cost
    4
    """

    proxies: bool = False
    tolerance: float = 0.1
    safety: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "tolerance", 0.0, 1.0)
        check_range(self, "safety", 0.0, math.inf)

    @property
    def needs_expansion(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.proxies

    @property
    def row_cost(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Evaluations of a row that is read: at both points, and with proxies twice more at the mode."""
        return 4 if self.proxies else 2

    def widths(self, num_rows: int, read: np.ndarray) -> Widths:
        minibatches = np.arange(1, len(read) + 1)
        look = np.log2(minibatches) + 1  # 1, 2, 3, ... at 1, 2, 4, ... minibatches
        error = self.tolerance * (_POWER - 1) / (_POWER * look**_POWER)
        level = np.where(look == np.round(look), np.log(3 / error), np.inf)
        return Widths.of(np.sqrt(2 * level / read), 6 * level / read)

    def measured(self, posterior: RowPosterior) -> tuple[jax.Array, int]:
        radius = math.sqrt(posterior.dim) + 3
        largest = _largest_derivative(
            posterior.model,
            3 if self.proxies else 1,
            (posterior.data, posterior.frame, posterior.at_mode),
            jnp.asarray(radius * np.array(_GRID), float),
        )
        return self.safety * largest, (1 + len(_GRID)) * posterior.num_rows

    def bound(self, measured: jax.Array, u: jax.Array, proposal: jax.Array) -> jax.Array:
        if self.proxies:
            return measured * (jnp.sum(u**2) ** 1.5 + jnp.sum(proposal**2) ** 1.5)
        return measured * jnp.sqrt(jnp.sum((proposal - u) ** 2))

    def compared(
        self, posterior: RowPosterior, u: jax.Array, proposal: jax.Array
    ) -> tuple[Callable[[Rows], jax.Array], jax.Array]:
        if not self.proxies:
            return super().compared(posterior, u, proposal)

        def remainder(rows: Rows) -> jax.Array:
            exact = posterior.log_likelihood(proposal, rows) - posterior.log_likelihood(u, rows)
            return exact - _taylor(posterior, proposal, rows) + _taylor(posterior, u, rows)

        at_mode = posterior.at_mode
        known = at_mode.gradient @ (proposal - u)
        known += 0.5 * (proposal @ at_mode.hessian @ proposal - u @ at_mode.hessian @ u)
        return remainder, known


def _taylor(posterior: RowPosterior, u: jax.Array, rows: Rows) -> jax.Array:
    """First and second order of each row's log-likelihood at the mode in the direction u, (row,)."""

    def along(t: jax.Array) -> jax.Array:
        return posterior.log_likelihood(t * u, rows)

    one = jnp.ones(())
    first, second = jax.jvp(lambda t: jax.jvp(along, (t,), (one,))[1], (jnp.zeros(()),), (one,))
    return first + 0.5 * second


@partial(jit, static_argnums=(0, 1))
def _largest_derivative(
    model: Model, order: int, parts: tuple[Minibatches, DeviceFrame, Expanded], steps: jax.Array
) -> jax.Array:
    """The largest absolute derivative of any row along its own gradient at the mode, divided by order!."""
    posterior = RowPosterior(model, *parts)
    origin = jnp.zeros(posterior.dim)

    def of_row(row: Rows, weight: jax.Array) -> jax.Array:
        def value(u: jax.Array) -> jax.Array:
            return weight * posterior.log_likelihood(u, jax.tree.map(lambda a: a[None], row))[0]

        gradient = jax.grad(value)(origin)
        norm = jnp.sqrt(jnp.sum(gradient**2))
        direction = gradient / jnp.where(norm > 0, norm, 1)

        def along(t: jax.Array) -> jax.Array:
            return value(t * direction)

        derivative: Callable[[jax.Array], jax.Array] = along
        for _ in range(order):
            derivative = jax.grad(derivative)
        return jnp.max(jnp.abs(jax.vmap(derivative)(steps))) / math.factorial(order)

    def of_minibatch(b: jax.Array) -> jax.Array:
        rows, weights, _ = posterior.data.take(b)
        return jnp.max(jax.vmap(of_row)(rows, weights))

    with jax.default_matmul_precision("highest"):
        return jnp.max(lax.map(of_minibatch, jnp.arange(posterior.data.count)))
