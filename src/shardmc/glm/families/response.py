"""What is seen of a response while the table is read once, and the sentences about one that does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np

from shardmc.errors import DataError

_MOST_VALUES = 1000


@final
@dataclass
class Moments:
    """Number, mean, sum of squares about it and range of numbers that come piece by piece; () or (column,)."""

    count: int = 0
    mean: np.ndarray = field(default_factory=lambda: np.zeros(()))
    squares: np.ndarray = field(default_factory=lambda: np.zeros(()))
    low: np.ndarray = field(default_factory=lambda: np.array(np.inf))
    high: np.ndarray = field(default_factory=lambda: np.array(-np.inf))

    def add(self, values: np.ndarray) -> None:
        """Take in more rows, (row,) or (row, column)."""
        if not len(values):
            return
        count, mean = len(values), values.mean(axis=0)
        squares = ((values - mean) ** 2).sum(axis=0)
        total, step = self.count + count, mean - self.mean
        self.squares = self.squares + squares + step**2 * (self.count * count / total)
        self.mean = self.mean + step * (count / total)
        self.low, self.high = (
            np.minimum(self.low, values.min(axis=0)),
            np.maximum(self.high, values.max(axis=0)),
        )
        self.count = total

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation (ddof 1)."""
        return np.sqrt(self.squares / max(self.count - 1, 1))


@final
@dataclass
class Seen:
    """A response as the families look at it: moments, the few values it takes, and what cannot be."""

    name: str
    moments: Moments = field(default_factory=Moments)
    values: dict[float, int] | None = field(default_factory=dict)
    """How often each value occurs; None where there are very many."""
    fractions: int = 0
    first_fraction: float = 0.0
    negative: int = 0
    zero: int = 0
    above_trials: int = 0
    trials: float = 0.0
    exposure: float = 0.0
    """Sum of exp(offset), the number of rows where there is none."""

    def add(self, response: np.ndarray, trials: np.ndarray | None, offset: np.ndarray | None) -> None:
        """Take in more rows; trials and offset have one entry for each."""
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

    def refuse_constant(self) -> None:
        if self.moments.low == self.moments.high:
            raise DataError(
                f"The response {self.name!r} is {_number(self.mean)} in every row: there is nothing to explain."
            )

    def refuse_fractions(self, family: str, instead: str) -> None:
        if self.fractions:
            raise DataError(
                f"The response {self.name!r} of family {family!r} must be counts, but {self.fractions} of "
                f"{self.moments.count} values are not whole numbers, such as {_number(self.first_fraction)}; {instead}."
            )
        if self.negative:
            raise DataError(
                f"The response {self.name!r} of family {family!r} must be counts, but {self.negative} of "
                f"{self.moments.count} values are negative."
            )

    def refuse_not_binary(self) -> None:
        found = sorted(self.values or ())
        if self.values is not None and set(found) <= {0.0, 1.0}:
            return
        many = f"{len(found)} different values" if self.values is not None else f"over {_MOST_VALUES} values"
        shown = ", ".join(_number(v) for v in found[:3]) + (", ..." if len(found) > 3 else "")
        raise DataError(
            f"The response {self.name!r} of family 'bernoulli' must be 0 or 1, but it has {many}"
            f"{f' ({shown})' if shown else ''}; write which of them is a success, as in "
            f'"I({self.name} == {_number(found[-1]) if found else 1}) ~ ...", or take another family.'
        )

    def refuse_not_positive(self, family: str) -> None:
        bad = self.negative + self.zero
        if bad:
            raise DataError(
                f"The response {self.name!r} of family {family!r} must be positive, but {bad} of "
                f"{self.moments.count} values are zero or negative; drop those rows, or model them separately."
            )


def _number(value: float) -> str:
    return f"{value:g}"
