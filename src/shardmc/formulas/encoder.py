"""The design matrix of some rows, from a formula whose levels, knots and scales are known from all rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NotRequired, TypedDict, final

import numpy as np
import pandas as pd
from formulaic import ModelSpec
from formulaic.errors import DataMismatchWarning, FormulaicError
from formulaic.parser.types import Factor

from shardmc.errors import DataError, ModelError
from shardmc.formulas.chunk import Chunk, Kind, Level, refuse_level
from shardmc.formulas.formula import Formula, is_intercept
from shardmc.names import quoted_where_taken
from shardmc.types import plain

if TYPE_CHECKING:
    from formulaic.materializers.base import EncodedTermStructure

State = Mapping[str, object]
"""What a transform must know of all rows, by formulaic's names: numbers, lists and arrays."""


class StoredEncoder(TypedDict):
    """An `Encoder` as JSON can hold it."""

    left_out: NotRequired[list[str]]
    formula: str
    kinds: dict[str, Kind]
    levels: dict[str, list[Level]]
    categories: dict[str, list[Level]]
    states: dict[str, dict[str, object]]
    names: list[str]


@final
@dataclass(frozen=True)
class Encoder:
    """Turns rows into the numbers that coefficients multiply.

    It holds everything that depends on all rows as plain numbers and texts. So every piece of a table is encoded in
    the same way, and so are new rows years later.

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
        What each transform, such as scale(x) or bs(x, df=4), must know of all rows: mean and scale, knots and bounds.
    names
        Columns of the design matrix, without the intercept.
    left_out
        Columns that the formula makes too, but that follow from others and are left out.
    empty
        Terms that make no column: categories with one level.
    """

    formula: Formula
    kinds: Mapping[str, Kind]
    levels: Mapping[str, Sequence[Level]]
    categories: Mapping[str, Sequence[Level]]
    states: Mapping[str, State]
    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    empty: tuple[str, ...] = field(default=(), compare=False)
    _specs: list[ModelSpec] = field(default_factory=list, repr=False, compare=False)

    @staticmethod
    def learn(
        formula: Formula,
        kinds: Mapping[str, Kind],
        levels: Mapping[str, Sequence[Level]],
        categories: Mapping[str, Sequence[Level]],
        states: Mapping[str, State],
        sample: Chunk,
        num_rows: int,
    ) -> Encoder:
        """An encoder that learns the rest (knots, polynomials) from a sample of the rows."""
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
        empty = tuple(str(part.term) for part in spec.structure or () if not part.columns)
        return Encoder(formula, kinds, levels, categories, known, names, empty=empty)

    def without(self, columns: Collection[str]) -> Encoder:
        """The same encoder, with these columns left out of the design matrix, and their terms of the formula."""
        formula = self.formula.without(columns)
        gone = [name for name in self.formula.expressions if name not in formula.expressions]
        out = tuple(n for n in self.names if n in columns and n not in gone and n.strip("`") not in gone)
        return replace(
            self,
            formula=formula,
            kinds={name: kind for name, kind in self.kinds.items() if name in formula.columns},
            categories={name: found for name, found in self.categories.items() if name not in gone},
            states={key: state for key, state in self.states.items() if key not in gone},
            names=tuple(name for name in self.names if name not in columns),
            left_out=out,
            _specs=[],
        )

    def matrix(self, chunk: Chunk) -> np.ndarray:
        """The design matrix (row, column) in float64, without the intercept."""
        self._refuse_new_levels(chunk)
        if not self.names:
            return np.empty((_length(chunk), 0))
        spec = self._specs[0] if self._specs else self._new_spec()
        matrix, spec = self._materialize(spec, chunk)
        if not self._specs:
            found = _names(spec)
            if tuple(name for name in found if name not in self.left_out) != self.names:
                raise ModelError(
                    f"The formula now makes the columns {', '.join(found)}, but the model has {', '.join(self.names)}. "
                    "Fit the model again."
                )
            self._specs.append(spec)
        constant = [is_intercept(part.term) for part in spec.structure or () for _ in part.columns]
        matrix = matrix[:, ~np.array(constant)] if any(constant) else matrix
        if not self.left_out:
            return matrix
        return matrix[:, [name not in self.left_out for name in _names(spec)]]

    def to_dict(self) -> StoredEncoder:
        """Plain lists, numbers and texts, as JSON can hold them."""
        stored: StoredEncoder = {
            "formula": self.formula.text,
            "kinds": dict(self.kinds),
            "levels": {name: list(found) for name, found in self.levels.items()},
            "categories": {name: list(found) for name, found in self.categories.items()},
            "states": {key: plain(state) for key, state in self.states.items()},
            "names": list(self.names),
        }
        if self.left_out:
            stored["left_out"] = list(self.left_out)
        return stored

    @staticmethod
    def from_dict(stored: StoredEncoder) -> Encoder:
        """The encoder that `to_dict` wrote; its formula is checked like a new one."""
        formula = Formula(stored["formula"])
        formula.check_columns({**dict.fromkeys(formula.response.columns, "number"), **stored["kinds"]})
        return Encoder(
            formula,
            stored["kinds"],
            stored["levels"],
            stored["categories"],
            {name: _restored(state) for name, state in stored["states"].items()},
            tuple(stored["names"]),
            tuple(stored.get("left_out", ())),
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

    def _materialize(self, spec: ModelSpec, chunk: Chunk) -> tuple[np.ndarray, ModelSpec]:
        table = pd.DataFrame(chunk, index=pd.RangeIndex(_length(chunk)), copy=False)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("error", DataMismatchWarning)
                made = spec.get_model_matrix(table)
        except (FormulaicError, DataMismatchWarning, TypeError, ValueError) as error:
            raise _explained(error) from error
        assert made.model_spec is not None
        return np.asarray(made, dtype=np.float64), made.model_spec

    def _refuse_new_levels(self, chunk: Chunk) -> None:
        """Refuse new levels of numbers and expressions in C(...); texts were checked when they became levels."""
        for name, known in self.categories.items():
            expression = self.formula.expressions[name]
            if expression.levels is None and expression.category_column in self.levels:
                continue
            values = pd.Series(expression.values(chunk, expression.category))
            new = ~values.isin(list(known))
            if new.any():
                refuse_level(name, values[new].tolist(), known)


def _names(spec: ModelSpec) -> tuple[str, ...]:
    """Names of the columns without the intercept. A column of the table is quoted if another term has its name."""
    parts = [part for part in spec.structure or () if not is_intercept(part.term)]
    others = [str(name) for part in parts if not _is_column(part) for name in part.columns]
    names: list[str] = []
    for part in parts:
        found = [str(name) for name in part.columns]
        names += quoted_where_taken(found, others) if _is_column(part) else found
    return tuple(names)


def _is_column(part: EncodedTermStructure) -> bool:
    """Whether a term is an untransformed column of numbers."""
    first, *others = part.term.factors
    return not others and first.eval_method is Factor.EvalMethod.LOOKUP and part.columns == [first.expr]


def _refuse_levels_like_terms(spec: ModelSpec, levels: Mapping[str, Sequence[Level]]) -> None:
    """Refuse levels that would give two columns of an interaction the same name: formulaic would drop one."""
    products = any(len(term.factors) > 1 for term in spec.formula)
    for name, found in levels.items() if products else ():
        bad = [level for level in found if "]:" in str(level)]
        if bad:
            raise ModelError(
                f"The level {bad[0]!r} of {name!r} looks like a product of terms, and the formula has products: "
                "rename the level."
            )


def _length(chunk: Chunk) -> int:
    return len(next(iter(chunk.values()))) if chunk else 0


def _explained(error: Exception) -> DataError | ModelError:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if "beyond upper and/or lower bounds" in text:
        return DataError(
            "Some rows lie outside the range that a spline's column had in the fit; write in the formula what to do "
            "with such rows, as in bs(x, df=5, extrapolation='clip') or 'extend', and fit again."
        )
    return ModelError(f"The formula cannot be computed on these rows: {text}.")


def _scaled(state: State, num_rows: int, sampled: int) -> State:
    """The state for all rows from that of a sample: sums of squares grow with the number of rows."""
    norms = state.get("norms2")
    if not isinstance(norms, Mapping):
        return state
    return {**state, "norms2": {k: v * num_rows / sampled for k, v in norms.items()}}


def _restored(state: State) -> State:
    """Restore what JSON cannot hold: numbers as keys, and matrices."""
    restored = {
        key: {int(k): v for k, v in value.items()}
        if key in ("alpha", "norms2") and isinstance(value, Mapping)
        else value
        for key, value in state.items()
    }
    if isinstance(restored.get("constraints"), list):
        restored["constraints"] = np.asarray(restored["constraints"])
    return restored
