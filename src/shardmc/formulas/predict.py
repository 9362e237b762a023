"""Predictions from a posterior that a formula made, and a check of its predictions against observed responses."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmc.data import as_source
from shardmc.data.table import spread_positions
from shardmc.errors import DataError, OptionError, RunError, unknown
from shardmc.formulas.chunk import Chunk, missing, refuse_unknown
from shardmc.formulas.chunk import Kind as ColumnKind
from shardmc.formulas.design import Design, design_of
from shardmc.formulas.effects import GroupPart
from shardmc.formulas.families import Statistic
from shardmc.formulas.groups import labels_of
from shardmc.guards.limits import memory_explained
from shardmc.posterior import Posterior
from shardmc.posterior.prediction import AT_ONCE, check_interval, evenly, refuse_too_many, summarise
from shardmc.seeds import Purpose, checked_seed, generator
from shardmc.store.files import replacing
from shardmc.types import Data

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["mean", "interval", "response", "draws"]
KINDS: tuple[str, ...] = ("mean", "interval", "response", "draws")
GROUPS: tuple[str, ...] = ("known", "population")
_KEY = "\x1f"  # before the name of a factor; no column of a table that a formula can name begins so


@final
@dataclass(frozen=True)
class Predictor:
    """Draws of the linear predictor and the response for rows of a table."""

    design: Design
    location: np.ndarray | None  # (draw,); None if the linear predictor has none
    coefficients: np.ndarray  # (draw, column)
    auxiliary: Mapping[str, np.ndarray]  # name -> (draw, 1), or (draw, cutpoint)
    groups: tuple[GroupPart, ...] = ()
    """The parts of the factors' groups; none at the level of the population."""

    @staticmethod
    def of(posterior: Posterior, draws: int, groups: str = "known", seed: int = 0) -> Predictor:
        """A predictor from about that many of a posterior's draws, evenly spaced."""
        if groups not in GROUPS:
            raise unknown("value of groups", groups, GROUPS)
        design = design_of(posterior)
        chosen = evenly(posterior, draws)
        taken = {name: np.asarray(values)[chosen] for name, values in posterior.draws.items()}
        coefficients = np.stack([taken[name] for name in design.names] or [np.empty(len(chosen))], axis=1)
        family = design.family
        auxiliary = {name: taken[name][:, None] for name in family.auxiliaries}
        location = taken[family.location] if design.has_location else None
        if location is not None and family.location_is_auxiliary:
            auxiliary[family.location], location = location, None
        factors = design.factors if groups == "known" else ()
        parts = tuple(GroupPart.of(posterior, factor, chosen, seed) for factor in factors)
        return Predictor(design, location, coefficients[:, : len(design.names)], auxiliary, parts)

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
        """A chunk with the labels of its rows' groups, under keys that are no names of columns."""
        return chunk | {_KEY + p.factor.name: labels_of(table, p.factor.columns) for p in self.groups}

    def linear(self, chunk: Chunk, count: int) -> np.ndarray:
        """Linear predictor (draw, row)."""
        eta = np.zeros((self.num_draws, count))
        if self.design.names:
            eta = self.coefficients @ self.design.encoder.matrix(chunk).T
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

    def simulated(self, chunk: Chunk, count: int, rng: np.random.Generator) -> np.ndarray:
        """Simulated responses (draw, row); for ordered levels their numbers."""
        trials = self.design.roles.trial_values(chunk, count)
        return self.design.family.simulate(rng, self.linear(chunk, count), self.auxiliary, trials)

    def chunks(self, rows: Data, at_once: int) -> Iterator[tuple[Chunk, int]]:
        """The rows of a table or file as formulas take them, and their number, `at_once` at a time."""
        source = as_source(rows)
        kinds = self.kinds
        columns = list(dict.fromkeys([*kinds, *self.group_columns]))
        refuse_unknown(columns, source)
        # A model with only an intercept reads no column, but needs the number of rows.
        for table in source.tables(columns or source.column_names[:1], at_once):
            found = missing(table, columns)
            if found:
                counts = ", ".join(f"{name!r} ({int(mask.sum())} or more)" for name, mask in found.items())
                raise DataError(
                    f"The new rows have missing values in {counts}; drop or impute those rows first."
                )
            chunk = self.with_groups(self.design.chunk(table, kinds), table)
            self.design.roles.refuse(chunk, len(table))
            yield chunk, len(table)


@memory_explained("The prediction", "Use fewer draws (draws=), fewer rows at a time, or shardmc predict.")
def predict(
    posterior: Posterior,
    rows: Data,
    kind: Kind = "interval",
    *,
    interval: float = 0.95,
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
        A table, a dictionary of arrays, or the path of a Parquet or CSV file, with the formula's columns except the
        response. It is read piece by piece.
    kind
        "mean": the expected response. "interval": also its standard deviation and central interval, which say how well
        the expected response is known. "response": mean, standard deviation and interval of a new response, which
        varies about its expectation. "draws": draws of the expected response, (draw, row).
    interval
        The interval's probability.
    draws
        How many of the posterior's draws to use, spread evenly over them.
    seed
        For kind "response", and for effects of groups.
    groups
        For a formula with group terms. "known": groups that the fit had get their own effects, and new groups get
        effects drawn from their distribution, so that predictions integrate over them. "population": effects are 0.

    Returns
    -------
    pandas.DataFrame or array
        Columns mean, sd, lower, upper, with one row for each row given. For ordered levels: the probability of each
        level (and its "lower" and "upper"). For kind "draws": an array (draw, row), or (draw, row, level).

    Examples
    --------
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=4_000)
    >>> posterior = glm("y ~ x", {"x": x, "y": 1 + 2 * x + rng.normal(size=4_000)}, draws=1_000)
    >>> predict(posterior, {"x": np.array([0.0, 1.0])}, kind="mean")["mean"].round(1).tolist()
    [1.0, 3.0]
    """
    import pandas as pd

    predictor = Predictor.of(posterior, draws, groups, seed)
    if kind == "draws":
        refuse_too_many(as_source(rows).num_rows * predictor.num_draws)
        parts = [predictor.expected(chunk, count) for chunk, count in predictor.chunks(rows, AT_ONCE)]
        return np.concatenate(parts, axis=1)
    return pd.concat(_tables(predictor, rows, kind, interval, seed), ignore_index=True)


def predict_file(
    posterior: Posterior,
    rows: Data,
    out: str | os.PathLike[str],
    kind: Kind = "interval",
    *,
    interval: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    groups: str = "known",
    on_rows: Callable[[int], None] | None = None,
) -> int:
    """Predict any number of rows and write the table of `predict` to a Parquet file; returns the number of rows.

    `on_rows` is called with the number of rows done so far.

    Examples
    --------
    >>> import tempfile
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=4_000)
    >>> posterior = glm("y ~ x", {"x": x, "y": 1 + 2 * x + rng.normal(size=4_000)}, draws=1_000)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     predict_file(posterior, {"x": np.arange(5.0)}, Path(folder) / "predicted.parquet")
    5
    """
    if kind == "draws":
        raise OptionError(
            "predict_file does not write draws of every row; take kind 'mean', 'interval' or 'response'."
        )
    target = Path(out)
    if target.is_dir():
        raise RunError(f"{target} is a folder; name the Parquet file to write.")
    done = 0
    with replacing(target) as temporary, contextlib.ExitStack() as opened:
        writer: pq.ParquetWriter | None = None
        for table in _tables(Predictor.of(posterior, draws, groups, seed), rows, kind, interval, seed):
            piece = pa.Table.from_pandas(table, preserve_index=False)
            if writer is None:
                writer = opened.enter_context(pq.ParquetWriter(temporary, piece.schema))
            writer.write_table(piece)
            done += len(piece)
            if on_rows is not None:
                on_rows(done)
    return done


def _tables(
    predictor: Predictor, rows: Data, kind: str, interval: float, seed: int
) -> Iterator[pd.DataFrame]:
    """Summaries of predictions, piece by piece."""
    import pandas as pd

    if kind not in KINDS:
        raise unknown("kind of prediction", kind, KINDS)
    check_interval(interval)
    family = predictor.design.family
    levels = [str(level) for level in family.levels_of_response or ()]
    rng = generator(checked_seed(seed), Purpose.PREDICT)
    at_once = max(1, math.ceil(AT_ONCE / (predictor.num_draws * max(1, len(levels)))))
    for chunk, count in predictor.chunks(rows, at_once):
        if kind == "response":
            values = predictor.simulated(chunk, count, rng)
            if levels:  # the share of each level
                values = values[..., None] == np.arange(len(levels))
                yield pd.DataFrame(values.mean(axis=0), columns=pd.Index(levels))
                continue
            yield pd.DataFrame(summarise(values, kind, interval))
            continue
        values = predictor.expected(chunk, count)
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


def posterior_predictive_check(
    posterior: Posterior, rows: Data, *, sample: int = 5_000, draws: int = 500, seed: int = 0
) -> pd.DataFrame:
    """Would the model produce data like these? Compare observed responses with simulated ones.

    Parameters
    ----------
    posterior
        What `glm` returned, or `shardmc.load` read.
    rows
        A table or file with the formula's columns, including the response; usually the data that were fitted.
    sample
        How many rows to take, at random from the whole table.
    draws
        How many data sets of these rows to simulate.
    seed
        For the sample and the simulation.

    Returns
    -------
    pandas.DataFrame
        One row per statistic: the observed value, mean and 95 % interval of the simulated values, and the share p of
        simulated values at least as extreme (two-sided). A small p shows what the model does not reproduce: too many
        zeros, a heavier tail, or a trend that it misses in the rows with the lowest or highest predictions.

    Examples
    --------
    >>> from shardmc.formulas import glm
    >>> rng = np.random.default_rng(0)
    >>> table = {"x": rng.normal(size=4_000), "y": rng.standard_t(2, size=4_000)}
    >>> posterior = glm("y ~ x", table, draws=1_000)
    >>> bool(posterior_predictive_check(posterior, table).loc["max", "p"] < 0.01)  # tails heavier than the normal
    True
    """
    import pandas as pd

    predictor = Predictor.of(posterior, draws)
    chunk = _sampled(predictor, rows, sample, seed)
    count = len(next(iter(chunk.values())))
    design, family = predictor.design, predictor.design.family
    observed = design.roles.response_values(chunk, family.levels_of_response)
    expected = predictor.expected(chunk, count).mean(axis=0)
    if family.levels_of_response is not None:
        expected = expected @ np.arange(len(family.levels_of_response))
    replicated = predictor.simulated(chunk, count, generator(checked_seed(seed), Purpose.PREDICTIVE_CHECK))
    table = {
        name: _compare(statistic(observed[None])[0], statistic(replicated))
        for name, statistic in (family.statistics | _means_at_ends(expected)).items()
    }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("statistic")


def _sampled(predictor: Predictor, rows: Data, sample: int, seed: int) -> Chunk:
    """Random rows of a table, with the response."""
    source = as_source(rows)
    columns = list(dict.fromkeys([*predictor.design.columns, *predictor.group_columns]))
    refuse_unknown(columns, source)
    source = source.drop_missing(columns)
    wanted, parts, start = spread_positions(source.num_rows, sample, seed), [], 0
    for table in source.tables(columns):
        parts.append(table.take(wanted[(wanted >= start) & (wanted < start + len(table))] - start))
        start += len(table)
    table = pa.concat_tables(parts)
    return predictor.with_groups(predictor.design.chunk(table), table)


def _means_at_ends(expected: np.ndarray) -> dict[str, Statistic]:
    """The means of the rows with the lowest and the highest predictions."""
    order = np.argsort(expected, kind="stable")
    tenth = max(1, len(order) // 10)
    lowest, highest = order[:tenth], order[-tenth:]
    return {
        "mean, lowest tenth": lambda y: y[:, lowest].mean(axis=1),
        "mean, highest tenth": lambda y: y[:, highest].mean(axis=1),
    }


def _compare(observed: float, replicated: np.ndarray) -> dict[str, float]:
    lower, upper = np.quantile(replicated, [0.025, 0.975])
    above, below = (replicated >= observed).mean(), (replicated <= observed).mean()
    return {
        "observed": float(observed),
        "mean": float(replicated.mean()),
        "lower": float(lower),
        "upper": float(upper),
        "p": float(min(1.0, 2 * min(above, below))),
    }
