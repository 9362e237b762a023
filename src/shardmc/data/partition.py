"""One pass over the rows that checks them, assigns them to shards and writes them, shard after shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import jax
import numpy as np

from shardmc.data.assignment import Assignment, Strata, find_strata, shard_sizes, shard_starts
from shardmc.data.batch import flat_length
from shardmc.data.columns import Column, ColumnCheck, InternalKey, float_type, raise_unusable
from shardmc.data.source import Partition
from shardmc.errors import DataError, OptionError, unknown
from shardmc.programs.threads import in_parts
from shardmc.types import RowValues

PIECE_BYTES = 1 << 24
"""Rows are read in pieces of about this size, so that temporary arrays stay small."""

Read = Callable[[Sequence[Hashable], int], Iterator[list[np.ndarray]]]
"""read(keys, count): the entries of the columns with these keys, `count` rows at a time, in row order."""

_FEW = 32  # rows per shard; with fewer, one scattered write is cheaper than a copy per shard
_MOST_ROWS = 1 << 31  # JAX indexes with 32 bits

# The keys of arrays that come with the partition.
_WEIGHTS, _STRATA = InternalKey("weights"), InternalKey("strata")


@dataclass(frozen=True)
class Placement:
    """Where the rows of one piece go: their order by shard, and the place of each shard's part."""

    order: np.ndarray  # (row,) the rows sorted by shard
    counts: np.ndarray  # (shard,) how many each shard gets
    starts: np.ndarray  # (shard,) where in the sorted rows its part begins
    targets: np.ndarray  # (shard,) where in the output columns its part goes

    def of(self, shard: int) -> tuple[np.ndarray, int]:
        """The rows that go to a shard, and the place of the first of them."""
        start = self.starts[shard]
        return self.order[start : start + self.counts[shard]], int(self.targets[shard])


class Sink(ABC):
    """Where partitioned rows are written: flat columns in which each shard has one stretch."""

    @abstractmethod
    def write(self, number: int, entries: np.ndarray, placement: Placement) -> None:
        """Write the entries of one column to the stretches of their shards."""


@final
class MemorySink(Sink):
    """Columns in memory, aligned so that JAX on a CPU takes them over without a copy."""

    def __init__(self, columns: Sequence[Column], num_rows: int, sizes: np.ndarray) -> None:
        refuse_rows(num_rows)
        length = flat_length(sizes)
        self.columns = [aligned((length, *column.shape), column.dtype) for column in columns]
        self._num_rows = num_rows

    def write(self, number: int, entries: np.ndarray, placement: Placement) -> None:
        write_in_memory(entries, placement, self.columns[number])

    def on_device(self) -> list[jax.Array]:
        """The columns as JAX arrays. Each host copy is freed as soon as the device has its own."""
        for column in self.columns:  # padding has weight 0, and needs a finite likelihood
            column[self._num_rows :] = column[self._num_rows - 1]
        return [jax.device_put(self.columns.pop(0)) for _ in range(len(self.columns))]


def refuse_rows(num_rows: int) -> None:
    """Refuse more rows than an array may have."""
    if num_rows >= _MOST_ROWS:
        raise DataError(
            f"{num_rows:,} rows are too many for one array. Give Parquet files, with memory= of shardmc.data.as_source "
            "(or --memory) below their size, so that shards are read from disk when they are needed."
        )


def write_in_memory(entries: np.ndarray, placement: Placement, column: np.ndarray) -> None:
    """Write the entries of one piece to the stretches of their shards in a column."""
    if len(entries) < _FEW * len(placement.counts):
        places = np.arange(len(entries)) + np.repeat(placement.targets - placement.starts, placement.counts)
        column[places] = entries[placement.order]
        return
    entries = np.ascontiguousarray(entries)  # or else `take` would copy all of them for every shard
    shards = np.flatnonzero(placement.counts)

    def copy(part: slice) -> None:
        for shard in shards[part]:
            members, place = placement.of(int(shard))
            np.take(entries, members, axis=0, out=column[place : place + len(members)], mode="clip")

    in_parts(copy, len(shards), entries.size)


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array with the alignment that XLA needs, so that JAX on a CPU takes it without a copy."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = np.empty(size + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


@final
class Partitioner:
    """Applies a partition to a source: reads its columns (weights last) and writes them shard by shard.

    `names` maps every column that the user may choose for weights or strata to its key.
    """

    def __init__(
        self,
        read: Read,
        columns: Sequence[Column],
        names: Mapping[str, Hashable],
        num_rows: int,
        partition: Partition,
        seed: int,
    ) -> None:
        self.sizes = shard_sizes(num_rows, partition.shards, partition.sizes)
        self.starts = shard_starts(self.sizes)
        self.columns = list(columns)
        self._num_rows = num_rows
        self._by, self._weight_factor = partition.by, partition.weight_factor
        arrays: dict[Hashable, np.ndarray | jax.Array] = {}
        self._strata_key = resolve("stratify", partition.stratify, _STRATA, names, arrays, num_rows)
        weights = resolve("weights", partition.weights, _WEIGHTS, names, arrays, num_rows)
        self.has_weights = weights is not None
        self._read = read_with_arrays(read, {key: np.asarray(array) for key, array in arrays.items()})
        if weights is not None:
            label = partition.weights if isinstance(partition.weights, str) else "row weights"
            self.columns.append(Column(label, float_type(), own_key=weights))
        row_bytes = sum(column.row_bytes for column in self.columns)
        self._at_once = max(1, min(PIECE_BYTES // max(row_bytes, 1), 1 << 20))
        strata = self._find_strata(partition.stratify)
        counts = np.array([num_rows]) if strata is None else strata.counts
        self._strata = strata
        self._assignment = Assignment(self.sizes, counts, seed if partition.shuffle else None)

    def _find_strata(self, given: RowValues) -> Strata | None:
        key = self._strata_key
        if key is None:
            return None
        what = f"stratify column {given!r}" if isinstance(given, str) else "stratify"
        return find_strata(what, lambda: (p[0] for p in self._read([key], self._at_once)), self._num_rows)

    def run(self, sink: Sink) -> None:
        """Read all rows once and write them to the sink. Rows keep their order within a shard."""
        targets = self.starts.copy()
        keys = [column.key for column in self.columns]
        keys += [] if self._strata_key is None else [self._strata_key]
        checks = [ColumnCheck(column) for column in self.columns]
        total_weight = 0.0
        rows = 0
        for piece in self._read(keys, self._at_once):
            rows += self._count(piece, rows)
            placement = _placement(self._shards_of(piece), targets)
            if self.has_weights and self._weight_factor != 1:
                weights = len(self.columns) - 1
                piece[weights] = piece[weights] * self._weight_factor
            for number, check in enumerate(checks):
                sink.write(number, check.cast(piece[number]), placement)
            if self.has_weights:
                weights = piece[len(self.columns) - 1]
                refuse_negative(weights.min())
                total_weight += float(np.nansum(weights))
            targets += placement.counts
        if rows < self._num_rows:
            raise self._changed(rows)
        raise_unusable(checks)
        if self.has_weights:
            refuse_zero(total_weight)

    def _shards_of(self, piece: Sequence[np.ndarray]) -> np.ndarray:
        """The shards of the rows of a piece."""
        if self._by is not None:
            names = [column.name.removesuffix(" (computed)") for column in self.columns]
            return self._by.shard[piece[names.index(self._by.codes)]]
        codes = None if self._strata is None else self._strata.codes(piece[-1])
        return self._assignment.next(codes, len(piece[0]))

    def _count(self, piece: Sequence[np.ndarray], before: int) -> int:
        """The number of rows of a piece, after checking that all columns have it and the total is not exceeded."""
        count = len(piece[0])
        for column, entries in zip(self.columns, piece, strict=False):  # strata may follow
            if len(entries) != count:
                raise DataError(
                    f"Column {column.name!r} has {len(entries)} entries for {count} rows; it needs one per row."
                )
        if before + count > self._num_rows:
            raise self._changed(before + count)
        return count

    def _changed(self, rows: int) -> DataError:
        return DataError(
            f"The table had {self._num_rows} rows when it was opened and {rows} when it was read; "
            "run again when no other program writes to it."
        )


def _placement(shards: np.ndarray, targets: np.ndarray) -> Placement:
    # NumPy has a radix sort for 16 bits, several times as fast as its other sorts.
    order = np.argsort(shards.astype(np.uint16) if len(targets) < 1 << 16 else shards, kind="stable")
    counts = np.bincount(shards, minlength=len(targets))
    return Placement(order, counts, np.cumsum(counts) - counts, targets)


def resolve(
    option: str,
    given: RowValues,
    own: InternalKey,
    names: Mapping[str, Hashable],
    arrays: dict[Hashable, np.ndarray | jax.Array],
    num_rows: int,
) -> Hashable:
    """The key of the weights or strata: that of a column, or an internal key for an array."""
    if given is None:
        return None
    if isinstance(given, str):
        if given not in names:
            raise unknown(f"{option} column", given, names)
        return names[given]
    array = given if isinstance(given, jax.Array) else np.asarray(given)
    if array.shape != (num_rows,):
        raise OptionError(
            f"{option} has shape {array.shape}; it must be a column's name, or hold one entry for each of the "
            f"{num_rows} rows."
        )
    if option == "weights" and array.dtype.kind not in "fiub":
        raise OptionError(f"weights holds {array.dtype} entries; it must hold numbers.")
    arrays[own] = array
    return own


def refuse_negative(smallest: float) -> None:
    if smallest < 0:
        raise DataError(f"Row weights must not be negative, but the smallest is {smallest}.")


def refuse_zero(total: float) -> None:
    if total == 0:
        raise DataError("All row weights are zero; at least one must be positive.")


def read_with_arrays(read: Read, arrays: Mapping[Hashable, np.ndarray]) -> Read:
    """The same reader, with arrays (one entry per row) as more columns."""

    def read_both(keys: Sequence[Hashable], count: int) -> Iterator[list[np.ndarray]]:
        inside = [key for key in keys if key not in arrays]
        if not inside:
            length = len(arrays[keys[0]])
            for start in range(0, length, count):
                yield [arrays[key][start : start + count] for key in keys]
            return
        start = 0
        for piece in read(inside, count):
            stop = start + len(piece[0])
            found = iter(piece)
            yield [arrays[key][start:stop] if key in arrays else next(found) for key in keys]
            start = stop

    return read_both
