"""What row weights say about themselves: whether they can be counts of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardmc.data.columns import as_numpy
from shardmc.data.source import Source
from shardmc.types import Finding

_FAR = 0.1
"""How far the mean of weights that are not whole may be from 1."""


def weight_findings(source: Source, weights: Any) -> tuple[Finding, ...]:
    """A warning if weights look like those of a survey: not whole, and with a sum far from the number of rows.

    Row weights are counts: a row of weight 40 is 40 rows. The weights of a survey say how many people a row stands
    for. As counts they would make the posterior as narrow as if all these people had been asked.

    Parameters
    ----------
    source
        The rows.
    weights
        A column's name, or one number for each row, or None.
    """
    if weights is None or (isinstance(weights, str) and weights not in source.column_names):
        return ()  # an unknown column is refused where rows are split
    total, count, whole = 0.0, 0, True
    for piece in _pieces(source, weights):
        if piece.dtype.kind not in "fiub":
            return ()
        total += float(np.nansum(piece, dtype=np.float64))
        count += len(piece)
        whole = whole and bool((piece == np.round(piece)).all())
    if whole or not count or total <= 0 or abs(total / count - 1) <= _FAR:
        return ()
    times = total / count
    narrow = f"about {np.sqrt(times):,.3g} times too {'small' if times > 1 else 'large'}"
    return (
        Finding(
            "warning",
            "weights",
            f"The weights are not whole numbers, and sum to {total:,.6g} for {count:,} rows. Weights count rows, so "
            f"the posterior is that of {total:,.6g} rows. If these are weights of a survey, all sds are {narrow}.",
            "Divide weights of a survey by their mean. Their sds then ignore the design of the survey.",
            {"sum": total, "rows": count},
        ),
    )


def _pieces(source: Source, weights: Any) -> Iterator[np.ndarray]:
    if isinstance(weights, str):
        for table in source.tables([weights]):
            yield as_numpy(table.column(weights))
    elif np.ndim(weights) == 1:
        yield np.asarray(weights)
