"""Predictions by a function of parameters and rows: draws, means and intervals, a few rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data import as_source
from shardmc.data.arrow import as_numpy, is_number_type
from shardmc.errors import ModelError, OptionError, unknown, warn
from shardmc.model.user_functions import calling, num_rows
from shardmc.posterior.result import INTERVAL, IntervalKind, check_interval, ends
from shardmc.programs.compiled import jit
from shardmc.types import Data, Rows

if TYPE_CHECKING:
    import pandas as pd

    from shardmc.posterior.posterior import Posterior

AT_ONCE = 1 << 22
"""Draws times rows that are computed at once."""
MOST = 1 << 28
"""How many numbers kind="draws" may return."""

Predict: TypeAlias = Callable[[dict[str, jax.Array], Rows], jax.Array]
"""(params, rows) -> one number or array per row, with named parameters on the natural scale."""


def predict_by(
    posterior: Posterior,
    rows: Data,
    function: Predict,
    kind: str = "interval",
    *,
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
    draws: int = 1000,
) -> pd.DataFrame | np.ndarray:
    """Evaluate a function of natural parameters and rows at every draw and row, and summarise it for each row.

    The rows are arrays, a table or files, as in `fit`. They are read a few at a time. The function gets a table as a
    dict of the columns that are numbers. If it returns several numbers per row, (row, ...), columns are "mean[0]",
    "sd[0]", ..., "mean[1]", and so on; draws are (draw, row, ...).
    """
    import pandas as pd

    if kind not in ("mean", "interval", "draws"):
        raise unknown("kind of prediction by a function", kind, ("mean", "interval", "draws"))
    check_interval(interval, interval_kind)
    chosen = evenly(posterior, draws)
    params = {
        name: jnp.asarray(values[chosen], jnp.result_type(float)) for name, values in posterior.draws.items()
    }
    over_draws = jit(jax.vmap(function, in_axes=(0, None)))
    parts = []
    for piece in pieces_of(rows, max(1, math.ceil(AT_ONCE / len(chosen)))):
        with calling("The function given to predict"):
            width = _numbers_per_row(over_draws, params, piece)
            if kind == "draws":
                refuse_too_many(as_source(rows).num_rows * len(chosen) * width)
            for part in pieces_of(piece, max(1, num_rows(piece) // width)):
                values = np.asarray(over_draws(params, part), np.float64)
                summary = () if kind == "draws" else summarise(values, kind, interval, interval_kind)
                parts.append(pd.DataFrame(_by_entry(summary)) if summary else values)
    return np.concatenate(parts, axis=1) if kind == "draws" else joined(parts, rows)


def _by_entry(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns (row,) from arrays (row, ...): those of the first entry, then those of the second."""
    entries = np.ndindex(next(iter(columns.values())).shape[1:])
    return {
        f"{name}[{','.join(map(str, index))}]" if index else name: values[(slice(None), *index)]
        for index in entries
        for name, values in columns.items()
    }


def _numbers_per_row(over_draws: Predict, params: dict[str, jax.Array], rows: Rows) -> int:
    """How many numbers a function returns for each row; refuses other results."""
    found = jax.eval_shape(over_draws, params, rows)
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) < 2 or shape[1] != num_rows(rows):
        returned = f"shape {shape[1:]}" if shape is not None else type(found).__name__
        raise ModelError(
            f"The function given to predict returns {returned} for {num_rows(rows)} rows; it must return one number, "
            "or one array, per row."
        )
    return math.prod(shape[2:])


def summarise(
    values: np.ndarray, kind: str, interval: float, interval_kind: str = "eti"
) -> dict[str, np.ndarray]:
    """Columns of a table from draws (draw, row): the mean, and unless kind is "mean" also sd, lower and upper.

    >>> summarise(np.array([[0.0], [1.0], [2.0]]), "mean", 0.95)
    {'mean': array([1.])}
    """
    if kind == "mean":
        return {"mean": values.mean(axis=0)}
    lower, upper = ends(values, interval, interval_kind)
    return {"mean": values.mean(axis=0), "sd": values.std(axis=0, ddof=1), "lower": lower, "upper": upper}


@final
@dataclass
class RowCount:
    """How many rows were predicted, and how many of them have missing values and so no prediction."""

    rows: int = 0
    incomplete: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    """Column -> number of its missing values."""

    def add(self, complete: np.ndarray, missing: Mapping[str, int]) -> None:
        """Count more rows: which of them (row,) are complete, and how many values each column lacks."""
        self.rows += len(complete)
        self.incomplete += int((~complete).sum())
        for name, count in missing.items():
            self.missing[name] = self.missing.get(name, 0) + count

    def sentence(self, outcome: str = "") -> str:
        """What to say about rows with missing values, and what becomes of them; empty if there are none.

        >>> RowCount(100, 2, {"age": 2}).sentence()
        "2 of 100 rows have missing values in 'age' (2): their predictions are missing."
        """
        if not self.incomplete:
            return ""
        columns = ", ".join(f"{name!r} ({count:,})" for name, count in self.missing.items())
        one = self.incomplete == 1
        outcome = outcome or ("its prediction is missing" if one else "their predictions are missing")
        have = "has" if one else "have"
        return f"{self.incomplete:,} of {self.rows:,} rows {have} missing values in {columns}: {outcome}."

    def warn(self, outcome: str = "") -> None:
        """Warn of rows with missing values."""
        if self.incomplete:
            warn(self.sentence(outcome))


def joined(tables: Sequence[pd.DataFrame], rows: Data) -> pd.DataFrame:
    """Predictions of consecutive pieces as one table, with the index that the rows have if they are a pandas table."""
    import pandas as pd

    table = pd.concat(tables, ignore_index=True)
    return table.set_axis(rows.index, axis=0) if isinstance(rows, pd.DataFrame) else table


def evenly(posterior: Posterior, draws: int) -> np.ndarray:
    """Positions of at most `draws` of a posterior's draws, evenly spread over those that are finite."""
    if draws < 1:
        raise OptionError(f"draws must be a positive whole number; {draws!r} was given.")
    whole = np.flatnonzero(np.isfinite(posterior.theta).all(axis=1))
    return whole[np.linspace(0, len(whole) - 1, min(draws, len(whole))).astype(int)]


def refuse_too_many(needed: int) -> None:
    """Refuse predictions that do not fit in memory."""
    if needed > MOST:
        raise OptionError(
            f"{needed:,} predictions do not fit in memory; ask for fewer draws (draws=), or for intervals."
        )


def pieces_of(rows: Data, count: int) -> Iterator[Rows]:
    """The rows, `count` at a time: arrays as they are, a table as a dict of its columns of numbers."""
    if isinstance(rows, np.ndarray | jax.Array | tuple | list | Mapping):
        for start in range(0, num_rows(rows), count):
            yield jax.tree.map(lambda leaf, start=start: leaf[start : start + count], rows)
        return
    source = as_source(rows)
    for table in source.tables(source.column_names, count):
        yield {
            field.name: as_numpy(table[field.name]) for field in table.schema if is_number_type(field.type)
        }
