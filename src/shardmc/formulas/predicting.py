"""Predictions from a posterior that a formula made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import pyarrow as pa

from shardmc.data import as_source
from shardmc.data.arrow import labels_of
from shardmc.errors import OptionError, unknown
from shardmc.formulas.chunk import Chunk, missing, refuse_unknown
from shardmc.formulas.chunk import Kind as ColumnKind
from shardmc.formulas.design import Design, design_of
from shardmc.formulas.group_effects import GroupPart
from shardmc.guards.limits import memory_explained
from shardmc.posterior import Posterior
from shardmc.posterior.prediction import AT_ONCE, RowCount, evenly, joined, refuse_too_many, summarise
from shardmc.posterior.result import INTERVAL, IntervalKind, check_interval
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.types import Data

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["link", "mean", "interval", "response", "draws"]
KINDS: tuple[str, ...] = ("link", "mean", "interval", "response", "draws")
GROUPS: tuple[str, ...] = ("known", "new", "population")
_KEY = "\x1f"  # starts the key of a factor's labels; no column that a formula can name starts with it


@final
@dataclass(frozen=True)
class Predictor:
    """Draws of the linear predictor and the response for rows of a table."""

    design: Design
    location: np.ndarray | None  # (draw,) or (draw, equation); None if the linear predictor has none
    coefficients: np.ndarray  # (draw, column) or (draw, column, equation)
    auxiliary: Mapping[str, np.ndarray]  # name -> (draw, 1), or (draw, cutpoint)
    groups: tuple[GroupPart, ...] = ()
    """The parts of the factors' groups; none at the level of the population."""

    @staticmethod
    def of(
        posterior: Posterior,
        draws: int,
        groups: str = "known",
        seed: int = 0,
        chosen: np.ndarray | None = None,
    ) -> Predictor:
        """A predictor from about that many of a posterior's draws, evenly spaced, or from those at given places."""
        if groups not in GROUPS:
            raise unknown("value of groups", groups, GROUPS)
        design = design_of(posterior)
        chosen = evenly(posterior, draws) if chosen is None else chosen
        taken = {name: np.asarray(values)[chosen] for name, values in posterior.draws.items()}
        coefficients = np.stack([taken[name] for name in design.names] or [np.empty(len(chosen))], axis=1)
        family = design.family
        auxiliary = {name: taken[name][:, None] for name in family.auxiliaries}
        location = None
        if design.has_location:
            entries = [taken[name] for name in design.entries_of(family.location)]
            location = np.stack(entries, axis=1) if family.equations else entries[0]
        if location is not None and family.location_is_auxiliary:
            auxiliary[family.location], location = location, None
        factors = () if groups == "population" else design.factors
        parts = tuple(
            GroupPart.of(posterior, factor, chosen, seed, all_new=groups == "new") for factor in factors
        )
        shaped = design.per_equation(coefficients[:, : len(design.names)])
        return Predictor(design, location, shaped, auxiliary, parts)

    @property
    def num_draws(self) -> int:
        return len(self.coefficients)

    @property
    def kinds(self) -> dict[str, ColumnKind]:
        """The columns that rows must have: all except the response's."""
        design = self.design
        others = [name for e in design.roles.besides_response.values() for name in e.columns]
        others += [
            n for part in self.groups for v in part.factor.varying if v.encoder for n in v.encoder.kinds
        ]
        return {
            name: design.kinds[name] for name in dict.fromkeys([*design.encoder.formula.columns, *others])
        }

    @property
    def group_columns(self) -> list[str]:
        """The columns that name the rows' groups."""
        return list(dict.fromkeys(name for part in self.groups for name in part.factor.columns))

    def with_groups(self, chunk: Chunk, table: pa.Table) -> Chunk:
        """A chunk with the labels of its rows' groups, under keys that are not names of columns."""
        return chunk | {_KEY + p.factor.name: labels_of(table, p.factor.columns) for p in self.groups}

    def linear(self, chunk: Chunk, count: int) -> np.ndarray:
        """Linear predictor (draw, row), or (draw, row, equation)."""
        equations = self.design.family.equations
        eta = np.zeros((self.num_draws, count, *([len(equations)] if equations else [])))
        if self.design.names:
            matrix = self.design.encoder.matrix(chunk)
            eta = matrix @ self.coefficients if equations else self.coefficients @ matrix.T
        if self.location is not None:
            eta = eta + self.location[:, None]
        for part in self.groups:
            labels = np.asarray(chunk[_KEY + part.factor.name])
            eta = eta + part.linear(labels, part.factor.matrix(chunk, count) * part.factor.units)
        offset = self.design.roles.offset_values(chunk)
        return eta if offset is None else eta + offset

    def expected(self, chunk: Chunk, count: int) -> np.ndarray:
        """Expected response (draw, row), or probabilities of levels (draw, row, level)."""
        trials = self.design.roles.trial_values(chunk, count)
        return self.design.family.mean(self.linear(chunk, count), self.auxiliary, trials)

    def simulated(
        self, chunk: Chunk, count: int, rng: np.random.Generator, totals: np.ndarray | None = None
    ) -> np.ndarray:
        """Simulated responses (draw, row); for levels their numbers, or with `totals` their counts (..., level)."""
        trials = self.design.roles.trial_values(chunk, count) if totals is None else totals
        return self.design.family.simulate(rng, self.linear(chunk, count), self.auxiliary, trials)

    def pieces(
        self, rows: Data, at_once: int, also: Sequence[str] = (), needed: Sequence[str] = ()
    ) -> Iterator[Piece]:
        """The rows of a table or file, `at_once` at a time, with the columns that predictions need and these.

        A row that lacks a value of the columns `also` is complete; one that lacks a value of those `needed` is not.
        """
        source = as_source(rows)
        columns = list(dict.fromkeys([*self.kinds, *self.group_columns, *needed]))
        refuse_unknown([*columns, *also], source)
        # A model with only an intercept reads no column, but needs the number of rows.
        read = list(dict.fromkeys([*columns, *also])) or source.column_names[:1]
        for table in source.tables(read, at_once):
            found = missing(table, columns)
            complete = np.ones(len(table), bool)
            for mask in found.values():
                complete &= ~mask
            counts = {name: int(mask.sum()) for name, mask in found.items()}
            yield Piece(
                table if complete.all() else table.filter(pa.array(complete)), table, complete, counts
            )

    def chunk(self, table: pa.Table) -> Chunk:
        """Rows without missing values as formulas take them."""
        chunk = self.with_groups(self.design.chunk(table, self.kinds), table)
        self.design.roles.refuse(chunk, len(table))
        return chunk


@final
@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a table, and those of them that can be predicted."""

    table: pa.Table
    """The rows without missing values."""
    all_rows: pa.Table
    complete: np.ndarray  # (row,) which of all rows have no missing values
    missing: Mapping[str, int]
    """Column -> number of its missing values."""


@memory_explained("The prediction", "Use fewer draws (draws=), fewer rows at a time, or shardmc predict.")
def predict(
    posterior: Posterior,
    rows: Data,
    kind: Kind = "interval",
    *,
    interval: float = INTERVAL,
    interval_kind: IntervalKind = "eti",
    draws: int = 1000,
    seed: int = 0,
    groups: str = "known",
) -> pd.DataFrame | np.ndarray:
    """Predict the response of new rows.

    Parameters
    ----------
    posterior
        What `glm` returned, or `shardmc.load` read.
    rows
        A table, a dictionary of arrays or lists, or the path of a Parquet or CSV file, with the formula's columns but
        the response. It is read piece by piece. Rows with missing values get missing predictions, and a warning says
        how many there are.
    kind
        "mean": the expected response. "interval": also its standard deviation and interval, which say how well the
        expected response is known. "link": the same of the linear predictor. "response": mean, standard deviation and
        interval of a new response, which varies about its expectation. "draws": draws of the expected response,
        (draw, row).
    interval, interval_kind
        The interval's probability; "eti" (central) or "hdi" (of highest density).
    draws
        How many of the posterior's draws to use, spread evenly over them.
    seed
        For kind "response", and for effects of groups.
    groups
        For a formula with group terms. "known": groups that the fit had get their own effects, and new groups get
        effects drawn from their distribution, so that predictions integrate over them. "new": all groups get such
        effects, as if the fit had not had them. "population": effects are 0.

    Returns
    -------
    pandas.DataFrame or array
        Columns mean, sd, lower, upper, with one row for each row given and the index of a pandas table. For levels:
        the probability of each level (and its "lower" and "upper"). For kind "draws": an array (draw, row), or
        (draw, row, level).

    Examples
    --------
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=4_000)
    >>> posterior = glm("y ~ x", {"x": x, "y": 1 + 2 * x + rng.normal(size=4_000)}, draws=1_000)
    >>> predict(posterior, {"x": np.array([0.0, 1.0])}, kind="mean")["mean"].round(1).tolist()
    [1.0, 3.0]
    """
    predictor = Predictor.of(posterior, draws, groups, seed)
    count = RowCount()
    if kind == "draws":
        refuse_too_many(as_source(rows).num_rows * predictor.num_draws)
        parts = [_drawn(predictor, piece, count) for piece in predictor.pieces(rows, AT_ONCE)]
        count.warn()
        return np.concatenate(parts, axis=1)
    summary = PredictionSummary(predictor, kind, interval, interval_kind, seed)
    tables = []
    for piece in summary.pieces(rows):
        tables.append(summary.table(piece))
        count.add(piece.complete, piece.missing)
    count.warn()
    return joined(tables, rows)


def _drawn(predictor: Predictor, piece: Piece, count: RowCount) -> np.ndarray:
    """Draws of the expected response of a piece, NaN for rows with missing values."""
    count.add(piece.complete, piece.missing)
    num_levels = len(predictor.design.family.levels_of_response or ())
    shape = (predictor.num_draws, len(piece.complete), *([num_levels] if num_levels else []))
    values = np.full(shape, np.nan)
    if len(piece.table):
        values[:, piece.complete] = predictor.expected(predictor.chunk(piece.table), len(piece.table))
    return values


@final
class PredictionSummary:
    """Turns pieces of rows into tables of predictions."""

    def __init__(
        self, predictor: Predictor, kind: str, interval: float, interval_kind: str, seed: int
    ) -> None:
        if kind not in KINDS:
            raise unknown("kind of prediction", kind, KINDS)
        check_interval(interval, interval_kind)
        self.predictor = predictor
        self.kind = kind
        self.interval = interval, interval_kind
        family = predictor.design.family
        self.levels = [str(level) for level in family.levels_of_response or ()]
        self.labels = list(family.equations) if kind == "link" else self.levels
        """What a prediction has one column for; empty if it is one number."""
        self.rng = generator(checked_seed(seed), Purpose.PREDICT)

    def pieces(self, rows: Data, also: Sequence[str] = ()) -> Iterator[Piece]:
        """The rows, as many at once as memory should hold."""
        cells = self.predictor.num_draws * max(1, len(self.levels))
        return self.predictor.pieces(rows, max(1, math.ceil(AT_ONCE / cells)), also)

    def table(self, piece: Piece) -> pd.DataFrame:
        """Predictions of all rows of a piece; those of rows with missing values are missing."""
        import pandas as pd

        made = pd.DataFrame(self._columns(piece.table))
        if piece.complete.all():
            return made
        table = pd.DataFrame(np.nan, index=range(len(piece.complete)), columns=made.columns)
        table.loc[piece.complete] = made.to_numpy()[: len(piece.table)]
        return table

    def _columns(self, rows: pa.Table) -> dict[str, np.ndarray]:
        if not len(rows):  # one row, for the names of the columns
            values = np.zeros((self.predictor.num_draws, 1, *([len(self.labels)] if self.labels else [])))
        elif self.kind == "response":
            values = self.predictor.simulated(self.predictor.chunk(rows), len(rows), self.rng)
            if self.levels:
                values = values[..., None] == np.arange(len(self.levels))
        else:
            part = self.predictor.linear if self.kind == "link" else self.predictor.expected
            values = part(self.predictor.chunk(rows), len(rows))
        if not self.labels:
            return summarise(values, self.kind, *self.interval)
        if self.kind == "response":  # the share of each level
            return dict(zip(self.levels, values.mean(axis=0).T, strict=True))
        return _level_summary(values, self.labels, self.kind, *self.interval)


def _level_summary(
    values: np.ndarray, levels: list[str], kind: str, interval: float, interval_kind: str = "eti"
) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    for number, level in enumerate(levels):
        for key, value in summarise(values[..., number], kind, interval, interval_kind).items():
            name = level if key == "mean" else f"{level} {key}"
            if name in columns:
                raise OptionError(
                    f"Two columns of the prediction would be called {name!r}: take kind 'mean' or 'draws', or rename "
                    "that level."
                )
            columns[name] = value
    return columns
