"""Predictions for new rows, piece by piece, from a posterior that a formula made."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmc.data import as_source
from shardmc.errors import DataError, OptionError, RunError, unknown
from shardmc.expected import AT_ONCE, check_interval, evenly, refuse_too_many, summarise
from shardmc.glm.design import Design, design_of
from shardmc.glm.families import Ordinal
from shardmc.glm.raw import Kind as ColumnKind
from shardmc.glm.raw import missing
from shardmc.posterior import Posterior
from shardmc.store.files import not_written

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["mean", "interval", "response", "draws"]
KINDS: tuple[str, ...] = ("mean", "interval", "response", "draws")


@final
@dataclass(frozen=True)
class Predictor:
    """Draws of the linear predictor and the response for rows of a table."""

    design: Design
    location: np.ndarray | None  # (draw,), or (draw, cutpoint)
    coefficients: np.ndarray  # (draw, column)
    auxiliary: Mapping[str, np.ndarray]  # name -> (draw, 1)

    @staticmethod
    def of(posterior: Posterior, draws: int) -> Predictor:
        """A predictor from about that many of a posterior's draws, spread evenly over them."""
        design = design_of(posterior)
        chosen = evenly(posterior, draws)
        taken = {name: np.asarray(values)[chosen] for name, values in posterior.draws.items()}
        # Files of older versions have a ÷ in the place of a slash.
        taken = {
            name: taken.pop(name.replace("/", "÷")) for name in design.names if name not in taken
        } | taken
        coefficients = np.stack([taken[name] for name in design.names] or [np.empty(len(chosen))], axis=1)
        auxiliary = {name: taken[name][:, None] for name in design.family.auxiliaries}
        location = taken[design.family.location] if design.has_location else None
        return Predictor(design, location, coefficients[:, : len(design.names)], auxiliary)

    @property
    def num_draws(self) -> int:
        return len(self.coefficients)

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The columns that rows must have, without the response's."""
        design = self.design
        beside = [name for e in design.roles.beside.values() for name in e.columns]
        return {
            name: design.kinds[name] for name in dict.fromkeys([*design.encoder.formula.columns, *beside])
        }

    def linear(self, frame: Mapping[str, Any], count: int) -> np.ndarray:
        """Linear predictor (draw, row); for ordered levels without the cutpoints."""
        eta = np.zeros((self.num_draws, count))
        if self.design.names:
            eta = self.coefficients @ self.design.encoder.matrix(dict(frame)).T
        if self.location is not None and self.location.ndim == 1:
            eta = eta + self.location[:, None]
        offset = self.design.roles.offset_values(dict(frame))
        return eta if offset is None else eta + offset

    def expected(self, frame: Mapping[str, Any], count: int) -> np.ndarray:
        """Expected response (draw, row), or probabilities of levels (draw, row, level)."""
        trials = self.design.roles.trial_values(dict(frame), count)
        return self.design.family.mean(self.linear(frame, count), self._auxiliary, trials)

    def simulated(self, frame: Mapping[str, Any], count: int, rng: np.random.Generator) -> np.ndarray:
        """Responses that might be seen, (draw, row); of ordered levels their numbers."""
        trials = self.design.roles.trial_values(dict(frame), count)
        return self.design.family.simulate(rng, self.linear(frame, count), self._auxiliary, trials)

    @property
    def _auxiliary(self) -> dict[str, np.ndarray]:
        extra = (
            {"cutpoint": cast(np.ndarray, self.location)} if isinstance(self.design.family, Ordinal) else {}
        )
        return {**self.auxiliary, **extra}

    def frames(self, rows: Any, at_once: int) -> Iterator[tuple[dict[str, Any], int]]:
        """The rows of a table or file as formulas take them, `at_once` at a time."""
        source = as_source(rows)
        kinds = self.kinds
        for name in kinds:
            if name not in source.column_names:
                raise unknown("column", name, source.column_names)
        # A model of an intercept alone reads no column, but needs to know how many rows there are.
        for table in source.tables(list(kinds) or source.column_names[:1], at_once):
            found = missing(table, list(kinds))
            if found:
                counts = ", ".join(f"{name!r} ({int(mask.sum())} or more)" for name, mask in found.items())
                raise DataError(
                    f"The new rows have missing values in {counts}; drop or impute those rows first."
                )
            frame = self.design.frame(table, kinds)
            self.design.roles.refuse(frame, len(table))
            yield frame, len(table)


def predict(
    posterior: Posterior,
    rows: Any,
    kind: Kind = "interval",
    *,
    interval: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame | np.ndarray:
    """Predict the response of new rows.

    Parameters
    ----------
    posterior
        What `glm` returned, or `shardmc.load` read.
    rows
        A table, a dictionary of arrays, or the path of a Parquet or CSV file, with the formula's columns except the
        response; it is read piece by piece.
    kind
        "mean": the expected response; "interval": also its standard deviation and central interval, which are about
        how well the expected response is known; "response": mean, standard deviation and interval of a new response,
        which also scatters about its expectation; "draws": draws of the expected response, (draw, row).
    interval
        The interval's probability.
    draws
        How many of the posterior's draws to use, spread evenly over them.
    seed
        For kind "response".

    Returns
    -------
    pandas.DataFrame or array
        Columns mean, sd, lower, upper, one row for each of the rows given. For ordered levels: the probability of each
        level (and "lower" and "upper" of it). For kind "draws" an array (draw, row), or (draw, row, level).

    Examples
    --------
    >>> from shardmc.glm import glm
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=4_000)
    >>> posterior = glm("y ~ x", {"x": x, "y": 1 + 2 * x + rng.normal(size=4_000)}, draws=1_000)
    >>> predict(posterior, {"x": np.array([0.0, 1.0])}, kind="mean")["mean"].round(1).tolist()
    [1.0, 3.0]
    """
    import pandas as pd

    predictor = Predictor.of(posterior, draws)
    if kind == "draws":
        refuse_too_many(as_source(rows).num_rows * predictor.num_draws)
        parts = [predictor.expected(frame, count) for frame, count in predictor.frames(rows, AT_ONCE)]
        return np.concatenate(parts, axis=1)
    return pd.concat(_tables(predictor, rows, kind, interval, seed), ignore_index=True)


def predict_file(
    posterior: Posterior,
    rows: Any,
    out: str | os.PathLike[str],
    kind: Kind = "interval",
    *,
    interval: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    on_rows: Callable[[int], None] | None = None,
) -> int:
    """Predict rows of any number and write the table of `predict` to a Parquet file; returns how many there were.

    `on_rows` is told how many rows are done.
    """
    if kind == "draws":
        raise OptionError(
            "Draws of every row are not written to a file; take kind 'mean', 'interval' or 'response'."
        )
    target = Path(out)
    if target.is_dir():
        raise RunError(f"{target} is a folder; name the Parquet file to write.")
    temporary = target.with_name(f".{target.name}.part")
    try:
        temporary.touch()
    except OSError as error:
        raise not_written(target, error) from error
    done = 0
    writer: pq.ParquetWriter | None = None
    try:
        for table in _tables(Predictor.of(posterior, draws), rows, kind, interval, seed):
            piece = pa.Table.from_pandas(table, preserve_index=False)
            if writer is None:
                writer = pq.ParquetWriter(temporary, piece.schema)
            writer.write_table(piece)
            done += len(piece)
            if on_rows is not None:
                on_rows(done)
        if writer is not None:
            writer.close()
            os.replace(temporary, target)
    finally:
        if writer is not None and writer.is_open:
            writer.close()
        temporary.unlink(missing_ok=True)
    return done


def _tables(predictor: Predictor, rows: Any, kind: str, interval: float, seed: int) -> Iterator[pd.DataFrame]:
    """Summaries of predictions, piece by piece."""
    import pandas as pd

    if kind not in KINDS:
        raise unknown("kind of prediction", kind, KINDS)
    check_interval(interval)
    family = predictor.design.family
    levels = [str(level) for level in family.levels] if isinstance(family, Ordinal) else []
    rng = np.random.default_rng([seed, 5])
    at_once = max(1, math.ceil(AT_ONCE / (predictor.num_draws * max(1, len(levels)))))
    for frame, count in predictor.frames(rows, at_once):
        if kind == "response":
            values = predictor.simulated(frame, count, rng)
            if levels:  # how often each level is seen
                values = values[..., None] == np.arange(len(levels))
                yield pd.DataFrame(values.mean(axis=0), columns=pd.Index(levels))
                continue
            yield pd.DataFrame(summarise(values, kind, interval))
            continue
        values = predictor.expected(frame, count)
        if levels:
            yield pd.DataFrame(_level_summary(values, levels, kind, interval))
        else:
            yield pd.DataFrame(summarise(values, kind, interval))


def _level_summary(
    values: np.ndarray, levels: list[str], kind: str, interval: float
) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for number, level in enumerate(levels):
        for key, value in summarise(values[..., number], kind, interval).items():
            name = level if key == "mean" else f"{level} {key}"
            if name in columns:
                raise OptionError(
                    f"Two columns of the prediction would be called {name!r}: take kind 'mean' or 'draws', or rename "
                    "that level."
                )
            columns[name] = value
    return columns
