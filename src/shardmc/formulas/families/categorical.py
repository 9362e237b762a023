"""Levels without an order: multinomial logit, for one of them or for counts of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from shardmc.errors import DataError
from shardmc.formulas.chunk import Level
from shardmc.formulas.families.family import Auxiliary, Family, Moments, ResponseSummary, Statistic
from shardmc.formulas.families.levels import HasLevels, Levels
from shardmc.formulas.priors import Prior
from shardmc.model import Parameter


class _MultinomialLogit(Family):
    """log(P(level k) / P(first level)) = eta_k, so that the first level is the reference."""

    several_predictors = True
    levels: tuple[Level, ...]

    @property
    def equations(self) -> tuple[str, ...]:
        return tuple(str(level) for level in self.levels[1:])

    @property
    def location_support(self) -> Parameter:
        return Parameter(len(self.equations))

    def separates(self, parts: Sequence[Moments], num_rows: int) -> np.ndarray:
        # No overlap, except in one common value, between some of the levels and the others.
        low, high = (np.stack([getattr(part, end) for part in parts]) for end in ("low", "high"))
        order = np.lexsort((high, low), axis=0)
        low, high = np.take_along_axis(low, order, axis=0), np.take_along_axis(high, order, axis=0)
        return np.logical_or.reduce(np.maximum.accumulate(high)[:-1] <= low[1:])

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"Intercept": Prior("student_t", (3.0, 0.0, 2.5))}

    def mean(self, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None) -> np.ndarray:
        return special.softmax(_with_reference(eta), axis=-1)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: Auxiliary, trials: np.ndarray | None
    ) -> np.ndarray:
        """The number of a level; with `trials`, counts of every level."""
        every = _with_reference(eta)
        if trials is None:
            return (every + rng.gumbel(size=every.shape)).argmax(axis=-1).astype(np.float64)
        count = np.broadcast_to(trials, eta.shape[:-1]).astype(np.int64)
        return rng.multinomial(count, special.softmax(every, axis=-1)).astype(np.float64)


@final
@dataclass(frozen=True)
class Categorical(_MultinomialLogit, Levels):
    """y is one of several levels, with the multinomial logit of their probabilities.

    Log-likelihood eta_y - log(1 + sum_k e^eta_k), with eta of the first level 0.
    """

    name = "categorical"
    kinds_of_levels = "text or whole numbers"

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        # One array for each level: jaxlib 0.10.2 compiles jnp.sum(matrix * eta, axis=-1) beside another reduction of
        # eta to wrong numbers on CPUs.
        columns = [eta[..., k] for k in range(len(self.equations))]
        chosen = sum(jnp.where(response == k + 1, column, 0) for k, column in enumerate(columns))
        return chosen - _log_total(columns)

    def extremes(self, response: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return tuple(response == number for number in range(len(self.levels)))

    def start(self, response: ResponseSummary) -> dict[str, Any]:
        counts = np.array(self.counts(response), float)
        return {"Intercept": np.log(counts[1:] / counts[0])}


@final
@dataclass(frozen=True)
class Multinomial(_MultinomialLogit, HasLevels):
    """y counts how often each level occurred in the trials of a row, with the multinomial logit of its probability.

    Log-likelihood sum_k y_k eta_k - n log(1 + sum_k e^eta_k), with n = sum_k y_k, relative to the row's own shares, so
    that large counts keep their digits. Rows hold the counts, (row, level). Predictions are of one trial.
    """

    name = "multinomial"
    takes_counts = True

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        counts = [response[..., k] for k in range(len(self.levels))]
        total = sum(counts[1:], counts[0])
        shares = [(count + 0.5) / (total + 0.5 * len(counts)) for count in counts]
        # With eta_k = log(share_k / share_0) + d_k: sum_k y_k d_k - n log(1 + sum_k share_k (e^d_k - 1)).
        steps = [eta[..., k] - jnp.log(shares[k + 1] / shares[0]) for k in range(len(self.equations))]
        near = sum(p * jnp.expm1(jnp.minimum(d, 1.0)) for p, d in zip(shares[1:], steps, strict=True))
        top = lax.stop_gradient(reduce(jnp.maximum, steps, jnp.zeros_like(steps[0])))
        far = sum(
            (p * jnp.exp(d - top) for p, d in zip(shares[1:], steps, strict=True)), shares[0] * jnp.exp(-top)
        )
        excess = jnp.where(top < 1, jnp.log1p(jnp.where(top < 1, near, 0.0)), top + jnp.log(far))
        return sum(y * d for y, d in zip(counts[1:], steps, strict=True)) - total * excess

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        counts = np.asarray(response, np.float64)
        total = counts.sum(axis=-1)
        log_shares = np.log((counts + 0.5) / (total + 0.5 * counts.shape[-1])[..., None])
        ways = special.gammaln(total + 1) - special.gammaln(counts + 1).sum(axis=-1)
        return ways + (counts * log_shares).sum(axis=-1)

    def refuse(self, response: ResponseSummary) -> None:
        response.refuse_fractions(self.name, "give counts of each level, not their shares")
        means = np.atleast_1d(response.moments.mean)
        if (means == 0).any():
            raise DataError(
                f"The counts of {self.levels[int(means.argmin())]!r} are 0 in every row; leave that column out."
            )

    def extremes(self, response: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, ...]:
        return tuple(response[:, number] > 0 for number in range(len(self.levels)))

    def start(self, response: ResponseSummary) -> dict[str, Any]:
        means = response.moments.mean
        return {"Intercept": np.log(means[1:] / means[0])}

    def share(self, number: int) -> Statistic:
        return lambda y: y[..., number].sum(axis=1) / y.sum(axis=(1, 2))

    @property
    def statistics(self) -> dict[str, Statistic]:
        return {f"share of {level}": self.share(number) for number, level in enumerate(self.levels)}


def _log_total(columns: Sequence[jax.Array]) -> jax.Array:
    """log(1 + sum_k e^eta_k), from the linear predictors (row,) of each level but the first."""
    top = lax.stop_gradient(reduce(jnp.maximum, columns, jnp.zeros_like(columns[0])))
    return top + jnp.log(sum((jnp.exp(column - top) for column in columns), jnp.exp(-top)))


def _with_reference(eta: np.ndarray) -> np.ndarray:
    """Linear predictors (..., equation) of all levels (..., level): 0 for the first."""
    return np.concatenate([np.zeros_like(eta[..., :1]), eta], axis=-1)
