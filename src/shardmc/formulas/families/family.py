"""The interface of a family of a generalised linear model, and the summary of a response that it uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Self, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError
from shardmc.formulas.chunk import Level
from shardmc.formulas.priors import Prior
from shardmc.mixed.rows import summed
from shardmc.model import Parameter

ArrayT = TypeVar("ArrayT", jax.Array, np.ndarray)
Auxiliary = Mapping[str, jax.Array]
"""Parameters of a family besides the linear predictor, by name, on the device."""
AuxiliaryDraws = Mapping[str, np.ndarray]
"""Draws of these parameters on the host, by name: (draw, 1), or (draw, cutpoint)."""
Declared = Parameter | str | int | tuple[int, ...] | tuple[str, float] | tuple[str, float, float]
"""A parameter as `Model` takes it: its shape, its support, a support with bounds, or both in a `Parameter`."""
Start = Mapping[str, float | np.ndarray]
"""Where the search for the mode starts: values of parameters by name."""
Statistic = Callable[[np.ndarray], np.ndarray]
"""A statistic of data sets: (draw, row) -> (draw,)."""

_MOST_VALUES = 1000


@final
@dataclass
class Moments:
    """Count, mean, sum of squares about the mean and range of numbers that come piece by piece; () or (column,)."""

    count: int = 0
    mean: np.ndarray = field(default_factory=lambda: np.zeros(()))
    squares: np.ndarray = field(default_factory=lambda: np.zeros(()))
    low: np.ndarray = field(default_factory=lambda: np.array(np.inf))
    high: np.ndarray = field(default_factory=lambda: np.array(-np.inf))

    def add(self, values: np.ndarray) -> None:
        """Add rows, (row,) or (row, column)."""
        if not len(values):
            return
        count, mean = len(values), values.mean(axis=0)
        squares = ((values - mean) ** 2).sum(axis=0)
        total, step = self.count + count, mean - self.mean
        self.squares = self.squares + squares + step**2 * (self.count * count / total)
        self.mean = self.mean + step * (count / total)
        self.low = np.minimum(self.low, values.min(axis=0))
        self.high = np.maximum(self.high, values.max(axis=0))
        self.count = total

    def keep(self, columns: np.ndarray) -> Moments:
        """The same of the columns that are True in a mask (column,)."""
        if self.mean.ndim == 0:
            return self
        return Moments(self.count, *(a[columns] for a in (self.mean, self.squares, self.low, self.high)))

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation (ddof 1)."""
        return np.sqrt(self.squares / max(self.count - 1, 1))


@final
@dataclass
class ResponseSummary:
    """A response over all rows: moments, its values if they are few, and counts of values that some families refuse."""

    name: str
    moments: Moments = field(default_factory=Moments)
    values: dict[float, int] | None = field(default_factory=dict)
    """How often each value occurs; None if there are very many."""
    fractions: int = 0
    first_fraction: float = 0.0
    negative: int = 0
    zero: int = 0
    above_trials: int = 0
    censored: int = 0
    trials: float = 0.0
    exposure: float = 0.0
    """Sum of exp(offset); the number of rows if there is no offset."""
    with_logs: bool = False
    logs: Moments = field(default_factory=Moments)
    """Moments of log y less the offset, over positive values, if asked for."""

    def add(self, response: np.ndarray, trials: np.ndarray | None, offset: np.ndarray | None) -> None:
        """Add rows; trials and offset have one entry for each."""
        self.moments.add(response)
        whole = response == np.floor(response)
        if not whole.all():
            self.first_fraction = self.first_fraction or float(response[~whole][0])
            self.fractions += int((~whole).sum())
        self.negative += int((response < 0).sum())
        self.zero += int((response == 0).sum())
        if trials is not None:
            self.above_trials += int((response > trials).sum())
            self.trials += float(trials.sum())
        if self.with_logs:
            positive = response > 0
            self.logs.add(np.log(response[positive]) - (0.0 if offset is None else offset[positive]))
        self.exposure += float(np.exp(offset).sum()) if offset is not None else len(response)
        self._count(response)

    def _count(self, response: np.ndarray) -> None:
        if self.values is None:
            return
        for value, count in zip(*np.unique(response, return_counts=True), strict=True):
            self.values[float(value)] = self.values.get(float(value), 0) + int(count)
            if len(self.values) > _MOST_VALUES:
                self.values = None
                return

    @property
    def mean(self) -> float:
        return float(self.moments.mean)

    @property
    def sd(self) -> float:
        return float(self.moments.sd)

    @property
    def log_rate(self) -> float:
        """Logarithm of the mean response per unit of exposure."""
        return float(np.log(self.mean * self.moments.count / self.exposure))

    def refuse_constant(self) -> None:
        if self.moments.low == self.moments.high:
            raise DataError(
                f"The response {self.name!r} is {self.mean:g} in every row: there is nothing to explain."
            )

    def refuse_fractions(self, family: str, instead: str) -> None:
        if self.fractions:
            raise DataError(
                f"The response {self.name!r} of family {family!r} must be counts, but {self.fractions} of "
                f"{self.moments.count} values are not whole numbers, such as {self.first_fraction:g}; {instead}."
            )
        if self.negative:
            raise DataError(
                f"The response {self.name!r} of family {family!r} must be counts, but {self.negative} of "
                f"{self.moments.count} values are negative."
            )


class Family(ABC):
    """A distribution of the response given the linear predictor eta.

    On the device it computes `log_likelihood`, one number per row, up to a term without parameters. On the host, in
    float64, it knows the expected response and which responses are possible. Nothing outside this folder asks which
    family it has.
    """

    name: ClassVar[str]
    location_scale: ClassVar[bool] = False
    """Whether response and linear predictor have the same units, so that both can be rescaled."""
    integrates_exactly: ClassVar[bool] = False
    """Whether normal effects of groups can be integrated out of the likelihood in closed form."""
    learns_from_one_row: ClassVar[bool] = True
    """Whether the sd of effects of groups can be learned if every group has one row."""
    takes_trials: ClassVar[bool] = False
    takes_exposure: ClassVar[bool] = False
    takes_censoring: ClassVar[bool] = False
    """Whether the response may be censored; then rows hold it with a second column, 1 for an observed event."""
    takes_levels: ClassVar[bool] = False
    """Whether the response is one of a few levels."""
    levels_are_ordered: ClassVar[bool] = False
    takes_counts: ClassVar[bool] = False
    """Whether the response is several columns, the counts of each level."""
    fixes_variance: ClassVar[bool] = False
    """Whether the mean fixes the variance, so that responses can vary more than the family allows."""
    location: ClassVar[str] = "Intercept"
    """The parameter that moves the linear predictor of all rows."""
    location_is_auxiliary: ClassVar[bool] = False
    """Whether the location is a parameter of the family, always there, and not a term of the linear predictor."""
    summarises_logs: ClassVar[bool] = False
    """Whether default priors are those of the response's logarithm, whose moments must be known."""
    several_predictors: ClassVar[bool] = False
    """Whether there are several linear predictors, named by `equations`; then it takes no offset and no group terms."""
    mean_is_probability: ClassVar[bool] = False
    """Whether the expected response is a probability, or one for each level."""

    @property
    def auxiliaries(self) -> Mapping[str, Declared]:
        """Name -> support of the parameters besides the coefficients and the location."""
        return {}

    @property
    def equations(self) -> tuple[str, ...]:
        """Names of the linear predictors if there are several: eta is then (row, equation)."""
        return ()

    @property
    def exp_of_link(self) -> str | None:
        """What exp of a difference of linear predictors is: "ratio", "odds_ratio", or None if it has no name."""
        return None

    # The likelihood, on the device.

    @abstractmethod
    def log_likelihood(
        self, eta: jax.Array, response: jax.Array, auxiliary: Auxiliary, trials: jax.Array | None
    ) -> jax.Array:
        """Log-likelihood of each row, (row,), up to a term without parameters; `response` comes from `encode`.

        eta is (row,), or (row, equation).
        """

    def log_base(self, response: np.ndarray, trials: np.ndarray | None) -> np.ndarray:
        """The term without parameters that `log_likelihood` leaves out of the log density of each row, (row,)."""
        del trials
        return np.zeros(len(response))

    def log_likelihood_of_rows(
        self,
        linear_predictor: Callable[[jax.Array | None], jax.Array],
        response: jax.Array,
        auxiliary: Auxiliary,
        trials: jax.Array | None,
    ) -> jax.Array:
        """The same, from a function that returns eta times a factor per row (None: 1)."""
        return self.log_likelihood(linear_predictor(None), response, auxiliary, trials)

    def log_likelihood_of_groups(
        self,
        eta: jax.Array,
        response: jax.Array,
        auxiliary: Auxiliary,
        trials: jax.Array | None,
        weights: jax.Array,
        *,
        counted: bool,
    ) -> jax.Array:
        """Weighted sums (stretch,) over rows, of arrays (row, stretch); `counted`: all weights are 0 or 1."""
        del counted
        return summed(weights * self.log_likelihood(eta, response, auxiliary, trials))

    def log_likelihood_at_shifts(
        self,
        eta: jax.Array,
        shifts: jax.Array,
        response: jax.Array,
        trials: jax.Array | None,
        weights: jax.Array,
        *,
        counted: bool,
    ) -> jax.Array:
        """The same at eta (row, stretch) + shifts (node, stretch), (node, stretch), for a family without auxiliaries.

        A family overrides it if it needs less than one exponential for each pair of a row and a node.
        """
        response, weights = response[:, None], weights[:, None]
        trials = None if trials is None else trials[:, None]
        return self.log_likelihood_of_groups(
            eta[:, None] + shifts, response, {}, trials, weights, counted=counted
        )

    def slopes(
        self, eta: jax.Array, response: jax.Array, trials: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """First and second derivative of every row's log-likelihood by eta, for a family without auxiliaries."""

        def slope(eta: jax.Array) -> jax.Array:
            return jax.grad(lambda eta: jnp.sum(self.log_likelihood(eta, response, {}, trials)))(eta)

        return jax.jvp(slope, (eta,), (jnp.ones_like(eta),))

    def encode(self, response: np.ndarray) -> np.ndarray:
        """The response as the log-likelihood takes it."""
        return response

    # The location.

    @property
    def location_support(self) -> Declared:
        """Shape and support of the location, as `Model` takes them."""
        return ()

    def move_location(self, location: ArrayT, by: ArrayT) -> ArrayT:
        """The location that makes eta of all rows larger by `by`; (draw, ...) and (draw,), or one of each."""
        return location + by

    # The response.

    @property
    def levels_of_response(self) -> tuple[Level, ...] | None:
        """The response's levels from low to high; None if the response is a number."""
        return None

    def with_levels(
        self, levels: Sequence[Level] | None, response: ResponseSummary
    ) -> tuple[Self, ResponseSummary]:
        """The family with the levels declared, or else found in the response, and the summary of their numbers."""
        del levels
        return self, response

    @abstractmethod
    def refuse(self, response: ResponseSummary) -> None:
        """Raise an error that says why a response cannot be of this family."""

    def extremes(self, response: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, ...] | None:
        """Parts of the rows, such as those with the lowest and the highest response, that no predictor may separate.

        If one does, its coefficient has no estimate.
        """
        return None

    def separates(self, parts: Sequence[Moments], num_rows: int) -> np.ndarray:
        """Which predictors separate the parts of `extremes`, (column,), given their moments in each part."""
        raise NotImplementedError(
            f"Family {self.name!r} has extremes, so it must say which predictors separate them."
        )

    # Priors and starting point.

    @abstractmethod
    def default_priors(self, response: ResponseSummary) -> dict[str, Prior]:
        """Priors of the location (predictors at their means) and of the family's own parameters."""

    def coefficient_scale(self, response: ResponseSummary) -> float:
        """Prior standard deviation of a coefficient, for a predictor with standard deviation 1."""
        return 2.5

    def start(self, response: ResponseSummary) -> Start:
        """Where the search for the mode starts, if not at the middle of the priors."""
        return {}

    # Prediction, on the host.

    @abstractmethod
    def mean(self, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None) -> np.ndarray:
        """Expected response, (draw, row), or (draw, row, level); eta is (draw, row) or (draw, row, equation)."""

    @abstractmethod
    def simulate(
        self, rng: np.random.Generator, eta: np.ndarray, auxiliary: AuxiliaryDraws, trials: np.ndarray | None
    ) -> np.ndarray:
        """Responses drawn from their distribution, (draw, row)."""

    def share(self, number: int) -> Statistic:
        """The share of a level, by its number."""
        raise NotImplementedError(f"The response of family {self.name!r} has no levels.")

    @property
    def statistics(self) -> dict[str, Statistic]:
        """What a posterior predictive check compares, by name."""
        return {
            "mean": lambda y: y.mean(axis=1),
            "sd": lambda y: y.std(axis=1),
            "min": lambda y: y.min(axis=1),
            "max": lambda y: y.max(axis=1),
        }

    def to_dict(self) -> dict[str, object]:
        """Name and options, as JSON can hold them."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
        return {"name": self.name, **plain}


def share_of(value: float) -> Statistic:
    """The share of responses with that value.

    >>> share_of(0)(np.array([[0, 0, 1, 2]])).tolist()
    [0.5]
    """
    return lambda y: (y == value).mean(axis=1)
