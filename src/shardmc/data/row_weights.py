"""Row weights: counts of rows, or weights of a survey, which are normalised to the effective sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from shardmc.data.partition import refuse_negative
from shardmc.data.source import Source
from shardmc.types import Finding, RowValues

_FAR = 0.1
"""How far the mean of weights that are not whole may be from 1."""


@final
@dataclass(frozen=True)
class SurveyWeights:
    """Weights of a survey, a column's name or one number for each row: how many people a row stands for."""

    values: RowValues


@final
@dataclass(frozen=True)
class RowWeights:
    """Row weights as a partition takes them: what was given, times a factor."""

    given: RowValues
    factor: float = 1.0
    findings: tuple[Finding, ...] = ()


def read_weights(source: Source, weights: RowValues | SurveyWeights) -> RowWeights:
    """Row weights: as they are if they count rows, and if they are `SurveyWeights` normalised to the effective sample.

    Weights w of a survey become w sum(w) / sum(w^2). Their sum is Kish's effective sample size, (sum w)^2 / sum(w^2):
    the size of a sample with equal weights whose means have the same variance.

    Parameters
    ----------
    source
        The rows.
    weights
        A column's name, or one number for each row, `SurveyWeights` of these, or None.

    Examples
    --------
    >>> from shardmc.data import as_source
    >>> source = as_source({"y": np.arange(4), "w": np.array([100.0, 100, 200, 400])})
    >>> read_weights(source, SurveyWeights("w")).factor * np.array([100.0, 100, 200, 400])
    array([0.36363636, 0.36363636, 0.72727273, 1.45454545])
    """
    survey = isinstance(weights, SurveyWeights)
    given = weights.values if survey else weights
    if given is None or (isinstance(given, str) and given not in source.column_names):
        return RowWeights(given)  # an unknown column is refused where rows are split
    total, squares, count, whole = 0.0, 0.0, 0, True
    for piece in _pieces(source, given):
        if piece.dtype.kind not in "fiub":
            return RowWeights(given)
        refuse_negative(float(piece.min(initial=0)))
        total += float(np.nansum(piece, dtype=np.float64))
        squares += float(np.nansum(np.square(piece, dtype=np.float64)))
        count += len(piece)
        whole = whole and bool((piece == np.round(piece)).all())
    if survey:
        return RowWeights(given, total / squares if squares > 0 else 1.0)
    if whole or not count or total <= 0 or abs(total / count - 1) <= _FAR:
        return RowWeights(given)
    return RowWeights(given, findings=(_like_a_survey(total, count),))


def _like_a_survey(total: float, count: int) -> Finding:
    """The warning about weights that are not whole, and whose sum is far from the number of rows.

    Row weights are counts: a row of weight 40 is 40 rows. The weights of a survey say how many people a row stands
    for. As counts they would make the posterior as narrow as if all these people had been asked.
    """
    times = total / count
    narrow = f"about {np.sqrt(times):,.3g} times too {'small' if times > 1 else 'large'}"
    return Finding(
        "warning",
        "weights",
        f"The weights are not whole numbers, and sum to {total:,.6g} for {count:,} rows. Weights count rows, so "
        f"the posterior is that of {total:,.6g} rows. If these are weights of a survey, all posterior sds are "
        f"{narrow}.",
        "Give weights of a survey to shardmc.glm as survey_weights= (--survey-weights on the command line).",
        {"sum": total, "rows": count},
    )


def _pieces(source: Source, weights: ArrayLike | str) -> Iterator[np.ndarray]:
    if isinstance(weights, str):
        from shardmc.data.arrow import as_numpy  # imported here because it is slow to import

        for table in source.tables([weights]):
            yield as_numpy(table.column(weights))
    elif np.ndim(weights) == 1:
        yield np.asarray(weights)
