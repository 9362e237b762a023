"""The confidence sampler: accept or reject by concentration bounds, plain or with Taylor proxies of the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.field.method import check_range
from shardmc.field.metropolis import RowMetropolis, Widths
from shardmc.field.rows import RowPosterior
from shardmc.model import Model
from shardmc.programs.compiled import jit
from shardmc.types import Rows

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

    def measured(self, posterior: RowPosterior) -> tuple[Any, int]:
        radius = math.sqrt(posterior.dim) + 3
        largest = _largest_derivative(
            posterior.model,
            3 if self.proxies else 1,
            (posterior.data, posterior.frame, posterior.at_mode),
            jnp.asarray(radius * np.array(_GRID), float),
        )
        return self.safety * largest, (1 + len(_GRID)) * posterior.num_rows

    def bound(self, measured: Any, u: jax.Array, proposal: jax.Array) -> jax.Array:
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
def _largest_derivative(model: Model, order: int, parts: Any, steps: jax.Array) -> jax.Array:
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
