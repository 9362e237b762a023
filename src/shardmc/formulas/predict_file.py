"""Predictions of any number of rows, written to a file piece by piece."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from shardmc.errors import OptionError, RunError
from shardmc.formulas.predict import Kind, Piece, PredictionSummary, Predictor, RowCount
from shardmc.guards.files import replacing
from shardmc.posterior import Posterior
from shardmc.posterior.summary import INTERVAL, IntervalKind
from shardmc.types import Data

_WRITERS: dict[str, Callable[[Any, pa.Schema], Any]] = {
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
    writer_of: Callable[[Any, pa.Schema], Any],
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
            count.add(piece)
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
