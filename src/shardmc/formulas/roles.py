"""The response and what belongs to it: offset, exposure, trials, censored rows and counts of levels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict, final

import numpy as np
import pandas as pd

from shardmc.data import Source
from shardmc.errors import DataError, ModelError, OptionError, counted
from shardmc.formulas.chunk import Chunk, Kind, Level, ordered_levels, refuse_level
from shardmc.formulas.expression import (
    Expression,
    check_columns,
    parse_expression,
    quoted,
)
from shardmc.formulas.families import Family, families_with

_LOGARITHM = re.compile(r"(?:np\.)?log(?:2|10|1p)?\((.+)\)")


class RoleOptions(TypedDict):
    """The options of `glm` that say what belongs to the response, as the user gave them."""

    offset: str | None
    exposure: str | None
    trials: str | int | None
    censored: str | None


class StoredRoles(TypedDict):
    """`Roles` as JSON can hold them."""

    response: str
    trials: str | int | None
    offset: NotRequired[str]
    exposure: NotRequired[str]
    censored: NotRequired[str]
    counts: NotRequired[list[str]]


@final
@dataclass(frozen=True)
class Roles:
    """The expressions of the response and of what belongs to it."""

    response: Expression
    offset: Expression | None = None
    exposure: Expression | None = None
    trials: Expression | int | None = None
    censored: Expression | None = None
    counts: tuple[str, ...] = ()
    """Columns with the counts of each level, of families that take them; the response is then the first."""

    @staticmethod
    def of(
        response: Expression,
        family: Family,
        columns: Sequence[str],
        offset: str | None,
        exposure: str | None,
        trials: str | int | None,
        censored: str | None,
        counts: tuple[str, ...] = (),
    ) -> Roles:
        """From the user's options: names of columns, expressions, or a number of trials."""
        if exposure is not None and not family.takes_exposure:
            raise OptionError(
                f"exposure belongs to families with a log link ({families_with('takes_exposure')}), not to "
                f"{family.name!r}."
            )
        if offset is not None and family.several_predictors:
            raise OptionError(
                f"Family {family.name!r} has a linear predictor for each level, so an offset could belong to any of "
                "them; leave it out."
            )
        if family.takes_trials and trials is None:
            raise OptionError(
                f"Family {family.name!r} needs the number of trials: give trials= a column's name or a whole number. "
                "For responses that are 0 or 1 use family 'bernoulli'."
            )
        if trials is not None and not family.takes_trials:
            raise OptionError(
                f"trials belongs to family {families_with('takes_trials')}, not to {family.name!r}."
            )
        if censored is not None and not family.takes_censoring:
            raise OptionError(
                f"censored belongs to family {families_with('takes_censoring')}, not to {family.name!r}."
            )
        is_number = isinstance(trials, int | np.integer)
        if is_number and trials < 1:
            raise OptionError(
                f"trials must be a positive whole number or a column's name; {trials!r} was given."
            )
        return Roles(
            response,
            _expression("offset", offset, columns),
            _expression("exposure", exposure, columns),
            int(trials) if is_number else _expression("trials", trials, columns),
            _expression("censored", censored, columns),
            counts,
        )

    @property
    def besides_response(self) -> dict[str, Expression]:
        """Offset, exposure and trials, which new rows must have too, by name."""
        named = {"offset": self.offset, "exposure": self.exposure, "trials": self.trials}
        return {name: given for name, given in named.items() if isinstance(given, Expression)}

    @property
    def columns(self) -> tuple[str, ...]:
        every = (self.response, *self.besides_response.values(), *([self.censored] if self.censored else []))
        named = (name for expression in every for name in expression.columns)
        return tuple(dict.fromkeys([*named, *self.counts]))

    @property
    def response_text(self) -> str:
        """The left-hand side as it was written."""
        return f"c({', '.join(self.counts)})" if self.counts else self.response.text

    def check_columns(self, kinds: Mapping[str, Kind]) -> None:
        censored = {} if self.censored is None else {"censored": self.censored}
        for role, expression in (self.besides_response | censored).items():
            check_columns(expression, kinds)
            name = expression.column or expression.text
            if kinds.get(name) == "text":
                raise DataError(f"{role} column {name!r} holds text; numbers are needed.")
        for name in self.counts:
            if kinds.get(name) == "text":
                raise DataError(f"The column of counts {name!r} holds text; numbers are needed.")

    def response_values(self, chunk: Chunk, levels: Sequence[Level] | None) -> np.ndarray:
        """The response as numbers; with levels, the number of each row's level, or counts (row, level)."""
        if self.counts:
            return np.stack([np.asarray(chunk[name], np.float64) for name in self.counts], axis=1)
        expression = self.response
        values = expression.values(chunk, expression.category)
        if levels is not None:
            codes = pd.Index(list(levels)).get_indexer(pd.Index(values))
            if (codes < 0).any():
                refuse_level(expression.text, values[codes < 0].tolist(), levels)
            return codes.astype(np.float64)
        if values.dtype.kind not in "fiub":
            first = next(iter(values.tolist()), "yes")
            raise DataError(
                f"The response {expression.text!r} holds text, such as {first!r}; numbers are needed. For two "
                f'outcomes write which is a success: "I({expression.text} == {first!r}) ~ ...". Three or more are '
                "family 'categorical', or 'ordinal' if they have an order."
            )
        return values.astype(np.float64)

    def explained(self, chunk: Chunk, levels: Sequence[Level] | None, family: Family) -> np.ndarray:
        """What the predictors must explain: the response, less the offset if both have the same units."""
        response = self.response_values(chunk, levels)
        offset = self.offset_values(chunk) if family.location_scale else None
        return response if offset is None else response - offset

    def offset_values(self, chunk: Chunk) -> np.ndarray | None:
        """The term added to the linear predictor: the offset plus the logarithm of the exposure."""
        total = None if self.offset is None else self.offset.values(chunk).astype(np.float64)
        if self.exposure is None:
            return total
        with np.errstate(all="ignore"):
            log_exposure = np.log(self.exposure.values(chunk).astype(np.float64))
        return log_exposure if total is None else total + log_exposure

    def trial_values(self, chunk: Chunk, count: int) -> np.ndarray | None:
        """Number of trials of each row."""
        if self.trials is None:
            return None
        if isinstance(self.trials, int):
            return np.full(count, float(self.trials))
        return self.trials.values(chunk).astype(np.float64)

    def censored_values(self, chunk: Chunk, count: int) -> np.ndarray:
        """Whether each row's response is censored, as 0 or 1."""
        if self.censored is None:
            return np.zeros(count)
        values = self.censored.values(chunk).astype(np.float64)
        bad = values[(values != 0) & (values != 1)]
        if len(bad):
            raise DataError(
                f"The column of censored={self.censored.text!r} must be 1 (or true) where the response is censored and "
                f"0 where it is not, but it is {bad[0]:g} in {counted(len(bad), 'row')}."
            )
        return values

    def refuse(self, chunk: Chunk, count: int) -> None:
        """Refuse impossible exposures, offsets and trials, with the number of rows that have them."""
        if self.exposure is not None:
            exposure = self.exposure.values(chunk).astype(np.float64)
            bad = ~(exposure > 0) | np.isinf(exposure)
            if bad.any():
                raise DataError(
                    f"The exposure {self.exposure.text!r} must be positive, but it is {exposure[bad][0]:g} in "
                    f"{counted(int(bad.sum()), 'row')}; {_advice_on_exposure(self.exposure.text)}"
                )
        if self.offset is not None and not np.isfinite(self.offset.values(chunk).astype(np.float64)).all():
            inside = _LOGARITHM.fullmatch(self.offset.text)
            why = "" if inside is None else f": where {inside[1]!r} is zero or below, it has no logarithm"
            raise DataError(
                f"The offset {self.offset.text!r} is not finite in some rows{why}. Drop those rows."
            )
        trials = self.trial_values(chunk, count)
        bad = np.empty(0) if trials is None else trials[~((trials >= 1) & (trials == np.floor(trials)))]
        if len(bad):
            raise DataError(
                f"The number of trials must be a positive whole number, but it is {bad[0]:g} in "
                f"{counted(len(bad), 'row')}; drop "
                "rows without trials."
            )

    def to_dict(self) -> StoredRoles:
        trials = self.trials.text if isinstance(self.trials, Expression) else self.trials
        stored: StoredRoles = {"response": self.response.text, "trials": trials}
        if self.offset is not None:
            stored["offset"] = self.offset.text
        if self.exposure is not None:
            stored["exposure"] = self.exposure.text
        if self.censored is not None:
            stored["censored"] = self.censored.text
        if self.counts:
            stored["counts"] = list(self.counts)
        return stored

    @staticmethod
    def from_dict(stored: StoredRoles) -> Roles:
        trials = stored["trials"]
        return Roles(
            parse_expression(stored["response"]),
            _expression("offset", stored.get("offset")),
            _expression("exposure", stored.get("exposure")),
            trials if isinstance(trials, int) else _expression("trials", trials),
            _expression("censored", stored.get("censored")),
            tuple(stored.get("counts", ())),
        )


def levels_of(
    family: Family,
    response: Expression,
    source: Source,
    kinds: Mapping[str, Kind],
    ordered: Mapping[str, Sequence[Level]],
) -> Sequence[Level] | None:
    """Levels of a response of text, or as declared; None if the response is numbers."""
    if not family.takes_levels:
        if response.category is not None:
            raise ModelError(
                f"The response {response.text!r} is a category; only {families_with('takes_levels')} take one. "
                f"For two outcomes take 'bernoulli' and write which is a success, as in I({response.category} == ...)."
            )
        return None
    if family.levels_of_response:
        return family.levels_of_response
    if response.levels is not None:
        return response.levels
    name = response.category_column or response.column or response.text
    if kinds.get(name) != "text":
        return None
    if not family.levels_are_ordered:
        return ordered_levels(source, name)
    if name not in ordered:
        raise DataError(
            f"The response {name!r} is text without an order; write its levels from low to high, as in "
            f"\"C({name}, levels=['low', 'mid', 'high']) ~ ...\", or make it an ordered categorical."
        )
    return ordered[name]


def _advice_on_exposure(text: str) -> str:
    inside = _LOGARITHM.fullmatch(text)
    if inside is not None:
        return f"give exposure={inside[1]!r} instead: its logarithm is taken for you."
    return "drop those rows: nothing was at risk in them."


def _expression(role: str, given: str | None, columns: Sequence[str] = ()) -> Expression | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise OptionError(
            f"{role} must be {'a whole number, ' if role == 'trials' else ''}the name of a column, or an expression of "
            f"columns such as 'np.log(months)'; {type(given).__name__} was given."
        )
    # The name of a column may look like arithmetic.
    expression = parse_expression(quoted(given) if given in columns else given)
    if expression.transforms or expression.category is not None:
        raise ModelError(f"{role} {given!r} must be a column or an elementwise expression of columns.")
    return expression
