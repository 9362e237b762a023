"""A few levels: with an order, without one (multinomial logit), or counts of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Self, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import special

from shardmc.errors import DataError, OptionError
from shardmc.formulas.chunk import Level
from shardmc.formulas.families.family import (
    ArrayT,
    Auxiliary,
    AuxiliaryDraws,
    Family,
    Moments,
    ResponseSummary,
    Start,
    Statistic,
    share_of,
)
from shardmc.formulas.families.special import softplus
from shardmc.formulas.priors import Prior
from shardmc.model import Parameter

_MOST_LEVELS = 50
_BEYOND = 1e4  # a cutpoint with nothing beyond it, but finite, so that gradients are finite too


@dataclass(frozen=True)
class HasLevels(Family):
    """The response belongs to levels: one of them in each row, or counts of all of them."""

    mean_is_probability = True
    levels: tuple[Level, ...] = ()

    def __post_init__(self) -> None:
        given: object = self.levels
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise OptionError(
                f"levels of family {self.name!r} must be a list such as ['low', 'mid', 'high']; {given!r} was given. "
                "They may also be part of the formula: \"C(y, levels=['low', 'mid', 'high']) ~ ...\"."
            )
        object.__setattr__(self, "levels", tuple(given))

    @property
    def levels_of_response(self) -> tuple[Level, ...]:
        return self.levels

    @property
    def exp_of_link(self) -> str:
        return "odds_ratio"


@dataclass(frozen=True)
class Levels(HasLevels):
    """y is one of three or more levels. Rows hold the level's number."""

    learns_from_one_row = False
    takes_levels = True
    kinds_of_levels: ClassVar[str]
    """What a response may hold, for messages."""

    def with_levels(
        self, levels: Sequence[Level] | None, response: ResponseSummary
    ) -> tuple[Self, ResponseSummary]:
        if levels is not None:
            return replace(self, levels=tuple(levels)), response
        found = sorted(response.values or ())
        if response.values is None or response.fractions:
            raise DataError(
                f"The response {response.name!r} of family {self.name!r} must have few levels, "
                f"{self.kinds_of_levels}; for numbers take family 'gaussian'."
            )
        counts = {float(number): response.values[value] for number, value in enumerate(found)}
        numbers = tuple(int(value) for value in found)
        return replace(self, levels=numbers), replace(response, values=counts)

    def encode(self, response: np.ndarray) -> np.ndarray:
        return response.astype(np.int32)

    def refuse(self, response: ResponseSummary) -> None:
        if len(self.levels) < 3:
            raise DataError(
                f"The response {response.name!r} of family {self.name!r} has {len(self.levels)} levels; it needs three "
                "or more. For two take family 'bernoulli'."
            )
        if len(self.levels) > _MOST_LEVELS:
            raise DataError(
                f"The response {response.name!r} of family {self.name!r} has {len(self.levels)} levels; at most "
                f"{_MOST_LEVELS} are possible. For numbers take family 'gaussian'."
            )
        counts = self.counts(response)
        if 0 in counts:
            raise DataError(
                f"Level {self.levels[counts.index(0)]!r} of the response {response.name!r} occurs in no row; leave it "
                "out of the levels."
            )

    def counts(self, response: ResponseSummary) -> list[int]:
        """How often each level occurs."""
        return [(response.values or {}).get(float(number), 0) for number in range(len(self.levels))]

    def share(self, number: int) -> Statistic:
        return share_of(number)

    @property
    def statistics(self) -> dict[str, Statistic]:
        return {f"share of {level}": self.share(number) for number, level in enumerate(self.levels)}


@final
@dataclass(frozen=True)
class Ordinal(Levels):
    """y is one of ordered levels; logit P(y <= level k) = cutpoint_k - eta.

    With a and b the cutpoints above and below, less eta: log P = log s(a) + log s(-b) + log(1 - e^(b - a)), where s is
    the logistic function.
    """

    name = "ordinal"
    kinds_of_levels = "whole numbers or ordered categories"
    levels_are_ordered = True
    location = "cutpoint"
    location_is_auxiliary = True

    @property
    def location_support(self) -> Parameter:
        return Parameter(len(self.levels) - 1, "ordered")

    def move_location(self, location: ArrayT, by: ArrayT) -> ArrayT:
        return location - by[..., None]

    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        cutpoints = auxiliary["cutpoint"]
        padding = jnp.full((1,), _BEYOND, cutpoints.dtype)
        points = jnp.concatenate([-padding, cutpoints, padding])
        widths = jnp.log1p(-jnp.exp(points[:-1] - points[1:]))
        # With many draws, a product with the level's indicator is faster than indexing.
        indicator = jax.nn.one_hot(response, len(self.levels), dtype=eta.dtype)
        above, below, width = (
            jnp.matmul(indicator, v, precision="highest") for v in (points[1:], points[:-1], widths)
        )
        return width - softplus(eta - above) - softplus(below - eta)

    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        return {"cutpoint": Prior("student_t", (3.0, 0.0, 2.5))}

    def start(self, response: ResponseSummary) -> Start:
        below = np.cumsum(self.counts(response))
        return {"cutpoint": special.logit(below[:-1] / below[-1])}

    def probabilities(self, eta: np.ndarray, cutpoints: np.ndarray) -> np.ndarray:
        """Probability of every level, (draw, row, level), for eta (draw, row) and cutpoints (draw, cutpoint)."""
        below = special.expit(cutpoints[:, None, :] - eta[..., None])
        ends = np.zeros((*eta.shape, 1))
        return np.diff(np.concatenate([ends, below, ends + 1], axis=-1), axis=-1)

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return self.probabilities(eta, auxiliary["cutpoint"])

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        latent = eta + rng.logistic(size=eta.shape)
        return (latent[..., None] > auxiliary["cutpoint"][:, None, :]).sum(axis=-1).astype(np.float64)


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

    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        return special.softmax(_with_reference(eta), axis=-1)

    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
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

    def start(self, response: ResponseSummary) -> Start:
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

    def start(self, response: ResponseSummary) -> Start:
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
