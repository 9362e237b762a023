"""Rows of a user's own model with effects of groups: whole groups are split, and the posterior names their effects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np
import pyarrow as pa

from shardmc.check import ordered
from shardmc.data import Source
from shardmc.data.arrow import as_numpy, find_levels, labels, level_keys
from shardmc.data.grouped import GroupedSource
from shardmc.errors import DataError, unknown
from shardmc.model.effects import GroupEffects
from shardmc.posterior import Posterior
from shardmc.types import Finding

if TYPE_CHECKING:
    import pandas as pd

_FEW_GROUPS = 8
"""With fewer groups, the prior decides much of the sd of their effects."""


@final
@dataclass(frozen=True)
class RowsInGroups:
    """The columns that a model reads, with the number of each row's group."""

    columns: tuple[str, ...]
    effects: GroupEffects
    levels: pd.Index
    counts: np.ndarray  # (group,) rows

    @staticmethod
    def of(source: Source, columns: tuple[str, ...], effects: GroupEffects) -> RowsInGroups:
        """The groups that the rows have. One pass over them."""
        name = effects.column
        if not source.is_table:
            raise DataError(
                f"The model has effects of the groups of column {name!r}, so the rows need names: give a table, a file "
                "or a dict of arrays."
            )
        if name not in source.column_names:
            raise unknown("group column", name, source.column_names)
        levels, counts = find_levels(source, [name], "drop them before the fit")
        if len(levels) == 1:
            raise DataError(
                f"The group column {name!r} has one level in all rows, so its effect cannot vary. Leave local and "
                "groups out of the model."
            )
        if effects.most is not None and len(levels) > effects.most:
            raise DataError(
                f"The group column {name!r} has {len(levels):,} levels, but the plate of the model holds "
                f"{effects.most:,} groups. Give the model the right number."
            )
        return RowsInGroups(columns, effects, levels, counts)

    @property
    def codes(self) -> str:
        """The name of the column with the number of each row's group; no column that the model reads has it."""
        name = "group"
        while name in self.columns:
            name += "_"
        return name

    def source(self, source: Source) -> GroupedSource:
        """The rows as whole groups."""
        used = list(dict.fromkeys([*self.columns, self.effects.column]))
        label = f"{', '.join(self.columns)} in groups of {self.effects.column}"
        return GroupedSource(source.transform(self._rows, used, label), self.codes, self.counts)

    def _rows(self, table: pa.Table) -> dict[str, np.ndarray]:
        found = self.levels.get_indexer(level_keys(table, [self.effects.column]))
        if (found < 0).any():
            raise DataError(
                f"The groups of {self.effects.column!r} changed while the rows were read; run again."
            )
        read = {name: as_numpy(table.column(name)) for name in self.columns}
        return {**read, self.codes: found.astype(np.int32)}

    def describe(self, posterior: Posterior) -> Posterior:
        """The posterior with the names of groups and effects, and a warning if there are few groups."""
        moments = posterior.groups
        if moments is not None:
            moments = replace(
                moments,
                labels=labels(self.levels),
                columns=(self.effects.column,),
                effects=self.effects.names,
            )
        few = (self._few(),) if len(self.levels) < _FEW_GROUPS else ()
        return replace(posterior, groups=moments, findings=tuple(ordered((*posterior.findings, *few))))

    def _few(self) -> Finding:
        name, count = self.effects.column, len(self.levels)
        return Finding(
            "warning",
            "few groups",
            f"{name!r} has {count} groups: too few to learn the sd of their effects, so the prior decides much of it.",
            "Give the sd a prior that you believe, or make the effects of these groups parameters.",
            {"factor": name, "groups": count},
        )
