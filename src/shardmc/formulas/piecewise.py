"""Predictions of any number of rows, piece by piece: written to a file, or averaged by group."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from shardmc.errors import OptionError, RunError
from shardmc.formulas.predicting import Kind, Piece, PredictionSummary, Predictor
from shardmc.guards.files import replacing
from shardmc.posterior import Posterior
from shardmc.posterior.prediction import AT_ONCE, MOST, RowCount
from shardmc.posterior.result import INTERVAL, IntervalKind
from shardmc.types import Data


class _Writer(Protocol):
    """Writes tables to a file, one after the other."""

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


_WRITERS: dict[str, Callable[[Path, pa.Schema], _Writer]] = {
    ".parquet": pq.ParquetWriter,
    ".pq": pq.ParquetWriter,
    ".csv": pyarrow.csv.CSVWriter,
}


def predict_file(
    posterior: Posterior,
    rows: Data,
    out: str | os.PathLike[str],
    kind: Kind = "interval",
    *,
    key: str | Sequence[str] = (),
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
    draws: int = 1000,
    seed: int = 0,
    groups: str = "known",
    on_rows: Callable[[int], None] | None = None,
) -> RowCount:
    """Predict any number of rows and write the table of `predict` to a file, piece by piece.

    Parameters
    ----------
    posterior, rows, kind, interval, interval_kind, draws, seed, groups
        As in `predict`. Rows with missing values are written with empty predictions.
    out
        The file to write, in the format of its suffix: `.parquet` or `.csv`.
    key
        A column of the rows, or several, to write before the predictions.
    on_rows
        Called with the number of rows done so far.

    Returns
    -------
    RowCount
        The number of rows, and of those with missing values.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=4_000)
    >>> posterior = glm("y ~ x", {"x": x, "y": 1 + 2 * x + rng.normal(size=4_000)}, draws=1_000)
    >>> new = {"id": np.arange(5), "x": np.array([0.0, 1.0, np.nan, 3.0, 4.0])}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     count = predict_file(posterior, new, Path(folder) / "predicted.csv", key="id")
    >>> count.rows, count.incomplete
    (5, 1)
    """
    if kind == "draws":
        raise OptionError(
            "predict_file does not write draws of every row; take kind 'mean', 'interval', 'link' or 'response'."
        )
    keys = [key] if isinstance(key, str) else list(key)
    target = Path(out)
    if target.is_dir():
        raise RunError(f"{target} is a folder; name the file to write.")
    if target.suffix.lower() not in _WRITERS:
        raise OptionError(f"Predictions are written to a .parquet or a .csv file; {target.name!r} was given.")
    summary = PredictionSummary(
        Predictor.of(posterior, draws, groups, seed), kind, interval, interval_kind, seed
    )
    with replacing(target) as temporary:
        return _write(temporary, _WRITERS[target.suffix.lower()], summary, rows, keys, on_rows)


def _write(
    path: Path,
    writer_of: Callable[[Path, pa.Schema], _Writer],
    summary: PredictionSummary,
    rows: Data,
    keys: Sequence[str],
    on_rows: Callable[[int], None] | None,
) -> RowCount:
    count, writer, schema = RowCount(), None, None
    try:
        for piece in summary.pieces(rows, keys):
            table = _with_keys(summary, piece, keys)
            if writer is None:
                schema = table.schema
                writer = writer_of(path, schema)
            writer.write_table(table.cast(schema))
            count.add(piece.complete, piece.missing)
            if on_rows is not None:
                on_rows(count.rows)
    finally:
        if writer is not None:
            writer.close()
    return count


def _with_keys(summary: PredictionSummary, piece: Piece, keys: Sequence[str]) -> pa.Table:
    """Predictions of a piece as an Arrow table, after the columns that identify its rows."""
    table = pa.Table.from_pandas(summary.table(piece), preserve_index=False).replace_schema_metadata()
    for place, name in enumerate(keys):
        if name in table.column_names:
            raise OptionError(f"The key {name!r} has the name of a column of predictions: rename it.")
        column = piece.all_rows.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)  # codes may differ between pieces
        table = table.add_column(place, name, column)
    return table


Quantities = Callable[[pa.Table], Sequence[np.ndarray]]
"""Rows of a table -> some quantities of each row, (draw, row) or (draw, row, level)."""
Group = tuple[object, ...]
"""The values of the columns that name a group."""


@final
@dataclass
class Averages:
    """Sums of quantities over the rows of each group."""

    by: Sequence[str]
    sums: dict[Group, np.ndarray] = field(default_factory=dict)  # (quantity, draw) or (..., level)
    counts: dict[Group, int] = field(default_factory=dict)

    def add(self, rows: pa.Table, quantities: Sequence[np.ndarray]) -> None:
        """Add rows."""
        labels = pd.MultiIndex.from_arrays(
            [rows.column(name).to_pandas() for name in self.by] or [np.zeros(len(rows), np.int8)]
        )
        codes, groups = labels.factorize()
        order = np.argsort(codes, kind="stable") if len(groups) > 1 else slice(None)
        starts = np.searchsorted(codes[order], np.arange(len(groups)))
        # (quantity, draw, group) or (quantity, draw, group, level)
        sums = np.stack([np.add.reduceat(values[:, order], starts, axis=1) for values in quantities])
        for number, (group, count) in enumerate(zip(groups, np.bincount(codes), strict=True)):
            key = tuple(group) if self.by else ()
            self.sums[key] = self.sums.get(key, 0) + sums[:, :, number]
            self.counts[key] = self.counts.get(key, 0) + int(count)
        if sum(each.size for each in self.sums.values()) > MOST:
            raise OptionError(
                f"{len(self.sums):,} groups of {', '.join(map(repr, self.by))} times the draws do not fit in memory; "
                "group by fewer values, or ask for fewer draws (draws=)."
            )

    def means(self) -> dict[Group, np.ndarray]:
        """Group -> averages (quantity, draw) or (quantity, draw, level), in the groups' order."""
        keys = list(pd.MultiIndex.from_tuples(self.sums).sort_values()) if self.by else [()]
        return {key: self.sums[key] / self.counts[key] for key in keys}


def averages(
    predictor: Predictor, rows: Data, by: Sequence[str], num_quantities: int, quantities: Quantities
) -> Averages:
    """Average quantities over the rows of a table or file, a few rows at a time.

    Rows with missing values are left out, with a warning. `num_quantities` are held in memory at once.
    """
    num_levels = len(predictor.design.family.levels_of_response or ())
    cells = predictor.num_draws * max(1, num_levels) * num_quantities
    found, count = Averages(by), RowCount()
    for piece in predictor.pieces(rows, max(1, math.ceil(AT_ONCE / cells)), needed=by):
        count.add(piece.complete, piece.missing)
        if len(piece.table):
            found.add(piece.table, quantities(piece.table))
    if not found.sums:
        why = count.sentence("all are left out") or "The table has no rows."
        raise OptionError(f"There is nothing to average over. {why}")
    count.warn("they are left out of the averages")
    return found
