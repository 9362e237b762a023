"""The design matrix of some rows, by a formula whose levels, knots and scales are known from all rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pandas as pd
from formulaic import ModelSpec
from formulaic.errors import DataMismatchWarning, FormulaicError
from formulaic.parser.types import Factor

from shardmc.errors import DataError, ModelError
from shardmc.glm.formula import Formula, is_intercept
from shardmc.glm.raw import Frame, Kind, Level, refuse_level
from shardmc.names import quoted_where_taken


@final
@dataclass(frozen=True)
class Encoder:
    """Turns rows into the numbers that coefficients multiply.

    Everything that depends on all rows is here as plain numbers and texts, so that pieces of a table, and new rows
    years later, are encoded alike.

    Parameters
    ----------
    formula
        What to encode.
    kinds
        What each column of the predictors holds.
    levels
        Levels of each column of text.
    categories
        Levels of each factor C(...).
    states
        What each transform, such as scale(x) or bs(x, df=4), knows of all rows: mean and scale, knots and bounds.
    names
        Columns of the design matrix, without the intercept.
    """

    formula: Formula
    kinds: Mapping[str, Kind]
    levels: Mapping[str, Sequence[Level]]
    categories: Mapping[str, Sequence[Level]]
    states: Mapping[str, Mapping[str, Any]]
    names: tuple[str, ...]
    _specs: list[ModelSpec] = field(default_factory=list, repr=False, compare=False)

    @staticmethod
    def learn(
        formula: Formula,
        kinds: Mapping[str, Kind],
        levels: Mapping[str, Sequence[Level]],
        categories: Mapping[str, Sequence[Level]],
        states: Mapping[str, Mapping[str, Any]],
        sample: Frame,
        num_rows: int,
    ) -> Encoder:
        """An encoder that learns what is left to learn (knots, polynomials) from a sample of the rows."""
        blank = Encoder(formula, kinds, levels, categories, states, ())
        _, spec = blank._materialize(blank._new_spec(), sample)
        known = {
            key: _scaled(state, num_rows, _length(sample)) for key, state in spec.transform_state.items()
        }
        _refuse_levels_like_terms(spec, {**levels, **categories})
        names = _names(spec)
        repeated = {name for name, count in Counter(names).items() if count > 1}
        if repeated:
            raise ModelError(
                f"Two columns of the formula would both be called {min(repeated)!r}; rename a column or a level."
            )
        return Encoder(formula, kinds, levels, categories, known, names)

    def matrix(self, frame: Frame) -> np.ndarray:
        """The design matrix (row, column) in float64, without the intercept."""
        self._refuse_new_levels(frame)
        if not self.names:
            return np.empty((_length(frame), 0))
        spec = self._specs[0] if self._specs else self._new_spec()
        matrix, spec = self._materialize(spec, frame)
        if not self._specs:
            found = _names(spec)
            if found != self.names:
                raise ModelError(
                    f"The formula now makes the columns {', '.join(found)}, but the model has {', '.join(self.names)}."
                )
            self._specs.append(spec)
        constant = [is_intercept(part.term) for part in spec.structure or () for _ in part.columns]
        return matrix[:, ~np.array(constant)] if any(constant) else matrix

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and texts, as JSON can hold them."""
        return {
            "formula": self.formula.text,
            "kinds": dict(self.kinds),
            "levels": {name: list(found) for name, found in self.levels.items()},
            "categories": {name: list(found) for name, found in self.categories.items()},
            "states": {name: _plain(state) for name, state in self.states.items()},
            "names": list(self.names),
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Encoder:
        """The encoder that `to_dict` wrote; its formula is checked as if it were new."""
        formula = Formula(stored["formula"])
        formula.check_columns({**dict.fromkeys(formula.response.columns, "number"), **stored["kinds"]})
        return Encoder(
            formula,
            stored["kinds"],
            stored["levels"],
            stored["categories"],
            {name: _restored(state) for name, state in stored["states"].items()},
            tuple(stored["names"]),
        )

    def _new_spec(self) -> ModelSpec:
        return ModelSpec(
            formula=self.formula.predictors,
            output="numpy",
            na_action="ignore",  # pyright: ignore[reportArgumentType] - it takes the name too
            transform_state={key: dict(state) for key, state in self.states.items()},
            encoder_state={
                name: (Factor.Kind.CATEGORICAL, {"categories": list(found)})
                for name, found in self.categories.items()
            },
        )

    def _materialize(self, spec: ModelSpec, frame: Frame) -> tuple[np.ndarray, ModelSpec]:
        table = pd.DataFrame(frame, index=pd.RangeIndex(_length(frame)), copy=False)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("error", DataMismatchWarning)
                made = spec.get_model_matrix(table)
        except (FormulaicError, DataMismatchWarning, TypeError, ValueError) as error:
            raise _explained(error) from error
        assert made.model_spec is not None
        return np.asarray(made, dtype=np.float64), made.model_spec

    def _refuse_new_levels(self, frame: Frame) -> None:
        """Texts were checked when they became levels; here come numbers and expressions inside C(...)."""
        for name, known in self.categories.items():
            expression = self.formula.expressions[name]
            if expression.levels is None and expression.category_column in self.levels:
                continue
            values = pd.Series(expression.values(frame, expression.category))
            new = ~values.isin(list(known))
            if new.any():
                refuse_level(name, values[new].tolist(), known)


def _names(spec: ModelSpec) -> tuple[str, ...]:
    """Names of the columns without the intercept; a column of the table is quoted where another term has its name."""
    parts = [part for part in spec.structure or () if not is_intercept(part.term)]
    others = [str(name) for part in parts if not _is_column(part) for name in part.columns]
    names: list[str] = []
    for part in parts:
        found = [str(name) for name in part.columns]
        names += quoted_where_taken(found, others) if _is_column(part) else found
    return tuple(names)


def _is_column(part: Any) -> bool:
    """Whether a term is a column of numbers as it is."""
    factors = part.term.factors
    return (
        len(factors) == 1 and factors[0].eval_method.value == "lookup" and part.columns == [factors[0].expr]
    )


def _refuse_levels_like_terms(spec: ModelSpec, levels: Mapping[str, Sequence[Level]]) -> None:
    """Levels from which interactions would get names that are not theirs alone: formulaic would drop a column."""
    products = any(len(term.factors) > 1 for term in spec.formula)
    for name, found in levels.items() if products else ():
        bad = [level for level in found if "]:" in str(level)]
        if bad:
            raise ModelError(
                f"The level {bad[0]!r} of {name!r} reads like a product of terms, and the formula has products: rename "
                "the level."
            )


def _length(frame: Frame) -> int:
    return len(next(iter(frame.values()))) if frame else 0


def _explained(error: Exception) -> DataError | ModelError:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if "beyond upper and/or lower bounds" in text:
        return DataError(
            "Some rows lie beyond the range of a spline's column as the model saw it; say what to do with such rows in "
            "the formula, as in bs(x, df=5, extrapolation='clip') or 'extend', and fit again."
        )
    return ModelError(f"The formula cannot be worked out on these rows: {text}.")


def _scaled(state: Mapping[str, Any], num_rows: int, sampled: int) -> dict[str, Any]:
    """A state learned from a sample as it would be of all rows: sums of squares grow with the number of rows."""
    known = dict(state)
    if "norms2" in known:
        known["norms2"] = {k: v * num_rows / sampled for k, v in known["norms2"].items()}
    return known


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _restored(state: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON cannot hold: numbers as keys, and matrices."""
    restored = {
        key: {int(k): v for k, v in value.items()} if key in ("alpha", "norms2") else value
        for key, value in state.items()
    }
    if isinstance(restored.get("constraints"), list):
        restored["constraints"] = np.asarray(restored["constraints"])
    return restored
