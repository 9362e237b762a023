"""Averages of predictions over the rows of a table, by group; memory does not grow with the number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pandas as pd
import pyarrow as pa

from shardmc.errors import OptionError
from shardmc.formulas.predict import Predictor, RowCount
from shardmc.posterior.prediction import AT_ONCE, MOST
from shardmc.types import Data

Quantities = Callable[[pa.Table], Sequence[np.ndarray]]
"""Rows of a table -> some quantities of each row, (draw, row) or (draw, row, level)."""


@final
@dataclass
class Averages:
    """Sums of quantities over the rows of each group."""

    by: Sequence[str]
    sums: dict[tuple[Any, ...], np.ndarray] = field(default_factory=dict)  # (quantity, draw) or (..., level)
    counts: dict[tuple[Any, ...], int] = field(default_factory=dict)

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

    def means(self) -> dict[tuple[Any, ...], np.ndarray]:
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
        count.add(piece)
        if len(piece.table):
            found.add(piece.table, quantities(piece.table))
    if not found.sums:
        raise OptionError(f"There is nothing to average over. {count.sentence('all are left out')}")
    count.warn("they are left out of the averages")
    return found
