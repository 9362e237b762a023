"""Robust spread: draws adjusted by a sandwich, for rows that depend on each other or have weights of a survey."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import final

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from shardmc.check.check import ordered
from shardmc.data import Source
from shardmc.data.arrow import as_numpy
from shardmc.data.row_weights import SurveyWeights, read_weights
from shardmc.errors import DataError, OptionError
from shardmc.formulas.chunk import missing
from shardmc.formulas.design import Design
from shardmc.formulas.linear_model import named_draws
from shardmc.locate.expansion import expand_prior
from shardmc.model import Model
from shardmc.model.precision import double_precision
from shardmc.posterior import Adjusted, Posterior
from shardmc.programs.compiled import jit
from shardmc.types import Finding, Frame, Rows, RowValues

_CELLS = 1 << 22
"""Scores that are computed at once: rows times parameters."""
_FEW = 40
"""With fewer clusters than this, the sandwich is known to give spreads that are too small."""


@final
@dataclass(frozen=True)
class Robust:
    """How to adjust the draws.

    Parameters
    ----------
    clusters
        The column whose equal values mark rows that depend on each other; None if rows are independent.
    weights
        Row weights: a column's name, one number per row, `SurveyWeights`, or None.
    """

    clusters: str | None = None
    weights: RowValues | SurveyWeights = None

    @staticmethod
    def of(robust: bool | str, weights: RowValues | SurveyWeights) -> Robust | None:
        """From the options of `glm`. Weights of a survey always need an adjustment."""
        if not isinstance(robust, bool | str):
            raise OptionError(
                "robust must be True (rows are independent) or the name of a column of clusters, not "
                f"{type(robust).__name__}."
            )
        if robust is False and not isinstance(weights, SurveyWeights):
            return None
        return Robust(robust if isinstance(robust, str) else None, weights)

    @property
    def is_survey(self) -> bool:
        return isinstance(self.weights, SurveyWeights)

    def check(self, source: Source, design: Design) -> None:
        """Refuse what cannot be adjusted, before anything is sampled."""
        if design.factors:
            raise OptionError(
                "robust and survey_weights are for formulas without group terms: a term such as (1 | g) already "
                "describes how rows of a group depend on each other. Leave one of the two out."
            )
        if self.clusters is None:
            return
        codes = _Codes()
        for table in source.tables([self.clusters]):
            codes.of(self.clusters, table)
        if len(codes.known) < 2:
            raise DataError(
                f"robust column {self.clusters!r} has one value only; the spread between clusters needs several."
            )

    def adjust(self, posterior: Posterior, model: Model, source: Source, design: Design) -> Posterior:
        """The posterior with its draws moved affinely about the mode, so that their covariance is the sandwich.

        With the curvature H at the mode, the curvature P of the prior and the covariance B of the sum of all rows'
        scores, the covariance is H^-1 (B + P) H^-1. If the model is right and rows are independent, B is the curvature
        of the likelihood, and nothing changes.
        """
        assert posterior.mode is not None  # `fit` fails without one: see `FrontEnd.mode_for`
        assert posterior.curvature is not None
        before = replace(posterior, draws=named_draws(design, posterior.draws))
        frame = Frame.at(posterior.mode, posterior.curvature)
        scores = self._scores(frame, model, source, design)
        prior = frame.basis.T @ expand_prior(model, frame.center).curvature @ frame.basis
        stretch = _root(scores.covariance() + _root(prior) @ _root(prior).T)
        moved = frame.to_theta((posterior.theta - frame.center) @ np.linalg.inv(frame.basis).T @ stretch)
        adjusted = Adjusted(
            clusters=self.clusters,
            survey=self.is_survey,
            units=scores.count,
            effective_rows=scores.weight if self.is_survey else None,
            sds={name: float(np.nanstd(draws, ddof=1)) for name, draws in before.flat().items()},
        )
        return replace(
            posterior,
            theta=moved,
            draws=model.constrain_draws(moved),
            adjusted=adjusted,
            passes={**posterior.passes, "adjust": 1.0},
            findings=tuple(ordered((*posterior.findings, *_findings(adjusted, model.dim)))),
        )

    def _scores(self, frame: Frame, model: Model, source: Source, design: Design) -> _Scores:
        """The scores of all rows at the mode, in the frame's coordinates, in one pass over the rows."""
        counted = read_weights(source, self.weights)
        given = counted.given
        if given is not None and not isinstance(given, str):
            given = np.asarray(given)
        named = [name for name in (self.clusters, given) if isinstance(name, str)]
        count = max(1, min(_CELLS // model.dim, source.num_rows))
        codes, total, start = _Codes(), _Scores(model.dim, self.is_survey), 0
        with double_precision():
            score = _score_function(model, frame)
            for table in source.tables(list(dict.fromkeys([*design.columns, *named])), count):
                rows = _padded(design.rows(table), count)
                weights = _weights_of(given, table, start) * counted.factor
                here = np.asarray(score(rows))[: len(table)]
                total.add(here, weights, None if self.clusters is None else codes.of(self.clusters, table))
                start += len(table)
        return total


def _score_function(model: Model, frame: Frame) -> Callable[[Rows], jax.Array]:
    """rows -> gradients (row, dim) of every row's log-likelihood at the frame's centre, in its coordinates."""
    center, basis = jnp.asarray(frame.center), jnp.asarray(frame.basis)

    @jit
    def scores(rows: Rows) -> jax.Array:
        at = jnp.zeros_like(center)
        return jax.jacfwd(lambda u: model.log_likelihood(center + basis @ u, rows))(at)

    return scores


def _padded(rows: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Rows repeated at their end, so that one compiled program serves every piece."""
    index = np.minimum(np.arange(count), len(next(iter(rows.values()))) - 1)
    return {name: values[index] for name, values in rows.items()}


def _weights_of(given: str | np.ndarray | None, table: pa.Table, start: int) -> np.ndarray:
    """Weights of the rows of a piece, (row,), from a column or from one number for each row of the whole table."""
    if given is None:
        return np.ones(len(table))
    values = as_numpy(table.column(given)) if isinstance(given, str) else given[start : start + len(table)]
    return np.asarray(values, np.float64)


@final
@dataclass
class _Codes:
    """Numbers of clusters, in the order in which their values come."""

    known: dict[object, int] = field(default_factory=dict)

    def of(self, column: str, table: pa.Table) -> np.ndarray:
        """The number of each row's cluster, (row,)."""
        absent = missing(table, [column])
        if absent:
            raise DataError(
                f"robust column {column!r} has missing values; drop those rows (drop_missing=True, --drop-missing), or "
                "give each a value of its own if it depends on no other row."
            )
        encoded = table.column(column).combine_chunks()
        encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.dictionary_encode()
        # A category may have levels that no row has.
        used, codes = np.unique(as_numpy(encoded.indices), return_inverse=True)
        levels = encoded.dictionary.take(pa.array(used)).to_pylist()
        return np.array([self.known.setdefault(level, len(self.known)) for level in levels], np.int64)[codes]


@final
class _Scores:
    """Sums of scores over rows or clusters, and their covariance."""

    def __init__(self, dim: int, is_survey: bool) -> None:
        self._is_survey = is_survey
        self._sum, self._products = np.zeros(dim), np.zeros((dim, dim))
        self._clusters: np.ndarray | None = None  # (cluster, dim)
        self._most = 0
        self.weight, self._rows = 0.0, 0

    def add(self, scores: np.ndarray, weights: np.ndarray, clusters: np.ndarray | None) -> None:
        """Add rows: scores (row, dim), weights (row,), and the numbers of their clusters (row,)."""
        self.weight += float(weights.sum())
        self._rows += len(scores)
        weighted = weights[:, None] * scores
        self._sum += weighted.sum(axis=0)
        if clusters is None:
            # A row that counts w times is w equal rows; a row of a survey is one, whatever its weight.
            self._products += weighted.T @ (weighted if self._is_survey else scores)
            return
        self._most = max(self._most, int(clusters.max()) + 1)
        known = np.zeros((0, scores.shape[1])) if self._clusters is None else self._clusters
        if len(known) < self._most:
            known = np.concatenate([known, np.zeros((2 * self._most - len(known), scores.shape[1]))])
        np.add.at(known, clusters, weighted)
        self._clusters = known

    @property
    def count(self) -> int:
        """Independent units: clusters, or rows."""
        if self._clusters is not None:
            return self._most
        return self._rows if self._is_survey else max(2, round(self.weight))

    def covariance(self) -> np.ndarray:
        """Covariance (dim, dim) of the sum of all scores: with replacement, n / (n - 1) sum (s_i - mean)^2."""
        if self._clusters is not None:
            self._products = self._clusters.T @ self._clusters
        count = self.count
        return count / (count - 1) * (self._products - np.outer(self._sum, self._sum) / count)


def _root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric square root of a matrix; directions of negative curvature, as of a wide prior's tail, are zero."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def _findings(adjusted: Adjusted, dim: int) -> Iterator[Finding]:
    values = {"units": adjusted.units, "clusters": adjusted.clusters, "survey": adjusted.survey}
    yield Finding("note", "robust", adjusted.sentence, "", values)
    if adjusted.clusters is not None and adjusted.units < max(_FEW, dim):
        yield Finding(
            "warning",
            "robust",
            f"The column {adjusted.clusters!r} has {adjusted.units} clusters for {dim} parameters. With fewer than "
            f"about {max(_FEW, dim)} clusters the adjusted sds are too small.",
            "Model the clusters instead, with a group term such as (1 | g), or keep in mind that the intervals are too "
            "narrow.",
            values,
        )
