"""What families share whose response has a few levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from shardmc.errors import DataError
from shardmc.formulas.chunk import Level
from shardmc.formulas.families.family import Family, ResponseSummary, Statistic, share_of

_MOST_LEVELS = 50


@dataclass(frozen=True)
class HasLevels(Family):
    """The response belongs to levels: one of them in each row, or counts of all of them."""

    mean_is_probability = True
    levels: tuple[Level, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))

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
                f"{_MOST_LEVELS} make sense. For numbers take family 'gaussian'."
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
