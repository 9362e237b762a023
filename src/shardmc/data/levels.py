"""The groups of a table: their levels, the rows of each, and where they lie in a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardmc.data.arrow import as_numpy
from shardmc.data.assignment import shard_starts
from shardmc.data.source import Source
from shardmc.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

SEPARATOR = "\x1f"
"""Between the parts of a group's label, if several columns name a group."""


def find_levels(source: Source, columns: Sequence[str], advice: str) -> tuple[pd.Index, np.ndarray]:
    """The groups that these columns name, sorted, and the number of rows of each. One pass over the rows.

    `advice` says what to do with rows whose group is missing, which are refused.
    """
    import pandas as pd

    counts: list[pd.Series] = []  # the first is of all tables so far but those of the others
    missing = 0
    for table in source.tables(list(columns)):
        missing += sum(_missing(name, table.column(name)) for name in columns)
        if missing:
            continue
        counts.append(level_keys(table, columns).value_counts(sort=False))
        # Adding each table by itself would take time that grows with the square of the number of groups.
        if sum(map(len, counts[1:])) >= len(counts[0]):
            counts = [_added(counts)]
    if missing:
        several = len(columns) > 1
        raise DataError(
            f"The group column{'s' if several else ''} {', '.join(map(repr, columns))} "
            f"{'have' if several else 'has'} {missing} missing values. Give these rows a group of their own, or "
            f"{advice}."
        )
    found = _added(counts).sort_index()
    levels = found.index if len(columns) == 1 else pd.MultiIndex.from_tuples(list(found.index))
    return levels, found.to_numpy().astype(np.int64)


def _added(counts: Sequence[pd.Series]) -> pd.Series:
    """The sums of counts by level."""
    import pandas as pd

    every = pd.concat(counts)
    return pd.Series(every.groupby(level=list(range(every.index.nlevels)), sort=False).sum())


def labels(levels: pd.Index) -> tuple[str, ...]:
    """The levels as text.

    >>> import pandas as pd
    >>> labels(pd.Index([3, 5]))
    ('3', '5')
    """
    import pandas as pd

    if isinstance(levels, pd.MultiIndex):
        return tuple(SEPARATOR.join(map(str, level)) for level in levels)
    return tuple(map(str, levels))


def level_keys(table: pa.Table, columns: Sequence[str]) -> pd.Index:
    """The levels of the rows, one each."""
    import pandas as pd

    arrays = [_entries(table.column(name)) for name in columns]
    return pd.Index(arrays[0]) if len(arrays) == 1 else pd.MultiIndex.from_arrays(arrays)


def labels_of(table: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """The labels of the rows' groups, as text, (row,)."""
    parts = [np.asarray(_entries(table.column(name))).astype(str).astype(object) for name in columns]
    label = parts[0]
    for part in parts[1:]:
        label = label + SEPARATOR + part
    return label


def _entries(column: pa.ChunkedArray) -> Any:
    """Text as objects, numbers as whole numbers."""
    kind = _value_type(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string()).to_pandas().to_numpy(object)
    return as_numpy(column).astype(np.int64, copy=False)


def _value_type(column: pa.ChunkedArray) -> pa.DataType:
    return column.type.value_type if pa.types.is_dictionary(column.type) else column.type


def _missing(name: str, column: pa.ChunkedArray) -> int:
    """The number of missing entries of a column that names groups. Columns that cannot do so are refused."""
    kind = _value_type(column)
    floating = pa.types.is_floating(kind)
    missing = int(as_numpy(column.is_null(nan_is_null=floating)).sum())
    # pandas stores whole numbers with missing values as floating-point numbers.
    broken = floating and not missing and bool((as_numpy(column) % 1 != 0).any())
    if broken or pa.types.is_temporal(kind) or pa.types.is_nested(kind):
        raise DataError(
            f"Column {name!r} holds {kind} entries; groups are named by whole numbers or text: convert it."
        )
    return missing


_LONGEST = 64  # rows of a stretch
_JOIN = 0.75
"""Cost of adding up a stretch, in rows: it decides how long stretches are."""


@dataclass(frozen=True)
class Layout:
    """Where the groups of a table lie: in which shard, and in which stretches of it."""

    counts: np.ndarray  # (group,) rows of each group, by its code
    shard: np.ndarray  # (group,)
    length: int  # of a stretch
    num_shards: int

    def __post_init__(self) -> None:
        for name, value in self._derived().items():
            object.__setattr__(self, name, value)

    sizes: np.ndarray = field(init=False)  # (shard,) groups
    starts: np.ndarray = field(init=False)  # (shard,) place of its first group
    stretch_sizes: np.ndarray = field(init=False)  # (shard,) stretches
    stretch_starts: np.ndarray = field(init=False)
    order: np.ndarray = field(init=False)  # (group,) codes by place
    place: np.ndarray = field(init=False)  # (group,) places by code
    first: np.ndarray = field(init=False)  # (group,) by place: its first stretch within its shard
    pieces: np.ndarray = field(init=False)  # (group,) by place: its number of stretches

    def _derived(self) -> dict[str, np.ndarray]:
        pieces = -(-self.counts // self.length)
        sizes = np.bincount(self.shard, minlength=self.num_shards)
        stretch_sizes = np.bincount(self.shard, pieces, minlength=self.num_shards).astype(np.int64)
        starts = shard_starts(sizes)
        order = stable_order(starts[self.shard])
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        ordered = pieces[order]
        before = np.cumsum(ordered) - ordered
        shard_of = self.shard[order]
        # The stretches before a group in its shard: those before it in all, less those before its shard.
        return {
            "sizes": sizes,
            "starts": starts,
            "stretch_sizes": stretch_sizes,
            "stretch_starts": shard_starts(stretch_sizes),
            "order": order,
            "place": place,
            "first": before - before[starts][shard_of],
            "pieces": ordered,
        }

    @property
    def joined(self) -> bool:
        """Whether every group is one stretch."""
        return bool((self.pieces == 1).all())

    def stretches_of(self, positions: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For groups (positions within each shard): their stretches, and which of all these groups each belongs to."""
        found, seen = [], 0
        for shard, given in enumerate(positions):
            chosen = np.unique(np.asarray(given, np.int64)) + self.starts[shard]
            counts = self.pieces[chosen]
            number = np.repeat(np.arange(len(chosen)), counts)
            within = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
            found.append((self.first[chosen][number] + within, number + seen))
            seen += len(chosen)
        return found

    def places(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For rows of some whole groups, given the codes of these groups: how to arrange them.

        Returns
        -------
        index (stretch, row): the row for every place; weights (stretch, row): 1, or 0 for padding; group (stretch,):
        the place of each stretch's group within its shard. Stretches are in the order of shards and groups.
        """
        rank = self.place[codes]
        by_group = stable_order(rank)
        ranks = rank[by_group]
        begin = np.flatnonzero(np.diff(ranks, prepend=-1))
        present, counts = ranks[begin], np.diff(np.append(begin, len(ranks)))
        pieces = -(-counts // self.length)
        owner = np.repeat(np.arange(len(present)), pieces)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        row = within[:, None] * self.length + np.arange(self.length)
        real = row < counts[owner][:, None]
        index = by_group[begin[owner][:, None] + np.where(real, row, 0)]
        group = present[owner] - self.starts[self.shard[self.order[present[owner]]]]
        return index, real, group.astype(np.int32)


def stable_order(keys: np.ndarray) -> np.ndarray:
    """The places of whole numbers from 0 in ascending order; equal ones keep their order. By counting, not comparing.

    >>> stable_order(np.array([2, 0, 2, 1]))
    array([1, 3, 0, 2])
    """
    places = np.arange(len(keys))
    if len(keys) < 2 or (keys[1:] >= keys[:-1]).all():
        return places
    from scipy import sparse  # imported here because it is slow to import

    shape = int(keys.max()) + 1, len(keys)
    return sparse.csr_matrix((places, (keys, places)), shape=shape).data


def stretch_length(counts: np.ndarray) -> int:
    """The number of rows of a stretch that costs least: long ones need padding, short ones must be added up.

    >>> stretch_length(np.full(1000, 10)), stretch_length(np.array([1, 3, 500, 2000]))
    (10, 25)
    """
    longest = int(counts.max())
    if longest <= _LONGEST and counts.sum() >= 0.7 * longest * len(counts):
        return longest
    sizes, number = np.unique(counts, return_counts=True)

    def cost(length: int) -> float:
        stretches = (number * -(-sizes // length)).sum()
        return float(stretches * (length + (_JOIN if longest > length else 0.0)))

    return min(range(1, _LONGEST + 1), key=cost)
