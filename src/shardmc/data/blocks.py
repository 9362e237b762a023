"""Shards in memory, shards of a larger whole, shards on disk, and shards whose rows are copied from elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from io import FileIO
from typing import Self, final

import jax
import numpy as np

from shardmc.data.batch import Batch, Blocks, Kept, groups_of, keep_rows, make_batch, padded, rounded
from shardmc.data.columns import Column
from shardmc.data.device_order import RowOrder
from shardmc.data.partition import aligned
from shardmc.data.scratch import Scratch
from shardmc.errors import DataError, OptionError
from shardmc.programs.compiled import CompiledFor
from shardmc.types import Rows, Structure


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ReadBlocks(Blocks):
    """Shards whose rows are in files, or in arrays in another order."""

    columns: Sequence[Column]  # row weights last
    structure: Structure  # of the rows, without weights
    has_weights: bool
    sizes: np.ndarray
    starts: np.ndarray  # (shard,) place of its first row
    kept: Kept | None = None
    most_in_memory: int | None = None

    @abstractmethod
    def _fill(self, number: int, shards: Sequence[int], target: np.ndarray) -> None:
        """Write a column's entries of these shards, one shard after another."""

    @abstractmethod
    def _fill_rows(self, number: int, shards: np.ndarray, within: np.ndarray, target: np.ndarray) -> None:
        """Write a column's entries of single rows, given by their shards and their positions within these."""

    @cached_property
    def slots(self) -> int:
        return rounded(self.capacity, self.num_rows)

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        # The arrays have one length, as if all shards were the largest: one compiled program then serves every batch.
        # One row more, so that no slice is the whole array (see Batch).
        length = size * self.slots + 1
        groups = [group for group, _ in groups_of(shards, size)]
        with ThreadPoolExecutor(1, thread_name_prefix="shardmc-read") as reader:
            ahead = [reader.submit(self._read, group, length) for group in groups[:1]]
            for number, group in enumerate(groups):
                arrays = ahead.pop().result()
                if number + 1 < len(groups):
                    ahead.append(reader.submit(self._read, groups[number + 1], length))
                # On this thread: x64 may be enabled for this thread only.
                yield group, self._batch(group, size, [jax.device_put(array) for array in arrays])
                del arrays  # frees its rows before the next but one is read

    def outline(self, shards: Sequence[int], size: int) -> Batch:
        return self._batch(list(shards)[:size], size, None)

    def _batch(self, group: Sequence[int], size: int, leaves: list[jax.Array] | None) -> Batch:
        sizes = self.sizes[list(group)]
        rows, weights = (None, None) if leaves is None else self._joined(leaves)
        starts = padded((np.cumsum(sizes) - sizes).tolist(), size)
        return make_batch(self, padded(group, size), rows, weights, starts, self.kept)

    def _joined(self, leaves: list[jax.Array]) -> tuple[Rows, jax.Array | None]:
        weights = leaves.pop() if self.has_weights else None
        return jax.tree.unflatten(self.structure, leaves), weights

    def _read(self, shards: Sequence[int], length: int) -> list[np.ndarray]:
        """The entries of these shards for every column, padded with the last entry up to `length`."""
        count = int(self.sizes[list(shards)].sum())
        arrays = []
        for number, column in enumerate(self.columns):
            array = aligned((length, *column.shape), column.dtype)
            self._fill(number, shards, array[:count])
            array[count:] = array[count - 1]
            arrays.append(array)
        return arrays

    def keep(self, positions: Sequence[np.ndarray]) -> Self:
        return replace(self, kept=keep_rows(positions, self.sizes, self.slots, self._rows_at))

    def _rows_at(self, shards: np.ndarray, within: np.ndarray) -> tuple[Rows, jax.Array | None]:
        leaves = []
        for number, column in enumerate(self.columns):
            array = np.empty((len(shards), *column.shape), dtype=column.dtype)
            self._fill_rows(number, shards, within, array)
            leaves.append(jax.device_put(array))
        return self._joined(leaves)


@final
@dataclass(frozen=True, eq=False, repr=False)
class ArrayBlocks(Blocks):
    """Shards in flat arrays on the device. A batch holds slices of them and copies nothing."""

    rows: Rows  # (num_rows, ...)
    row_weights: jax.Array | None  # (num_rows,)
    sizes: np.ndarray
    starts: np.ndarray  # (shard,) first row of each
    kept: Kept | None = None
    order: RowOrder | None = None
    """Which row lies at which place, if the arrays are not in the order of the shards."""
    exact: bool = False
    """Whether slices are no longer than the largest shard."""

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def held(self) -> list[object]:
        return jax.tree.leaves((self.rows, self.row_weights, self.order))

    @cached_property
    def slots(self) -> int:
        if self.exact:
            return self.capacity
        if self.order is not None:
            return rounded(self.capacity, self.num_rows)
        room = jax.tree.leaves(self.rows)[0].shape[0] - int(self.starts.max())  # no slice may pass the end
        return min(rounded(self.capacity, self.num_rows), room)

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        for group, filled in groups_of(shards, size):
            starts = self.starts[filled]
            yield group, make_batch(self, filled, self.rows, self.row_weights, starts, self.kept, self.order)

    def keep(self, positions: Sequence[np.ndarray]) -> ArrayBlocks:
        def gather(shards: np.ndarray, within: np.ndarray) -> tuple[Rows, jax.Array | None]:
            index = (self.starts[shards] + within).astype(np.int32)
            arrays = self.rows, self.row_weights
            if self.order is None and jax.default_backend() == "cpu":  # NumPy compiles nothing
                return jax.tree.map(lambda a: jax.device_put(np.asarray(a)[index]), arrays)
            return _rows_at(arrays, index, self.order)

        if self.exact and not any(map(len, positions)):
            return replace(self, kept=None)
        return replace(self, kept=keep_rows(positions, self.sizes, self.slots, gather))


@partial(CompiledFor, static=0, most=4)
def _rows_at(
    arrays: tuple[Rows, jax.Array | None], index: jax.Array, order: RowOrder | None
) -> tuple[Rows, jax.Array | None]:
    index = index if order is None else order.rows_at(index)
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), arrays)


@final
@dataclass(frozen=True, eq=False, repr=False)
class RescaledBlocks(Blocks):
    """Blocks in which every row counts `factor` times.

    If these shards hold M of N rows, factor N / M rescales their subposteriors to N rows. Shares are still relative
    to these shards and sum to 1.
    """

    blocks: Blocks
    factor: float
    sizes: np.ndarray = field(init=False)
    portable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", self.blocks.sizes)
        object.__setattr__(self, "portable", self.blocks.portable)

    @property
    def num_kept(self) -> int:
        return self.blocks.num_kept

    @cached_property
    def slots(self) -> int:
        return self.blocks.slots

    @property
    def held(self) -> list[object]:
        return self.blocks.held

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        for names, batch in self.blocks.batches(shards, size):
            yield names, self._rescaled(batch)

    def outline(self, shards: Sequence[int], size: int) -> Batch:
        return self._rescaled(self.blocks.outline(shards, size))

    def _rescaled(self, batch: Batch) -> Batch:
        kept = None if batch.kept_weights is None else batch.kept_weights * self.factor
        return replace(batch, factors=batch.factors * self.factor, kept_weights=kept)

    def keep(self, positions: Sequence[np.ndarray]) -> RescaledBlocks:
        return RescaledBlocks(self.blocks.keep(positions), self.factor)


@final
@dataclass(frozen=True, eq=False, repr=False)
class AbsentBlocks(Blocks):
    """Sizes and shares of shards whose rows are not available here."""

    sizes: np.ndarray
    parts: np.ndarray  # (shard,) proportional to the shares

    @cached_property
    def shares(self) -> np.ndarray:
        return self.parts / self.parts.sum()

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        raise OptionError("This needs the rows, but only the draws and modes of their shards are available.")

    def keep(self, positions: Sequence[np.ndarray]) -> Blocks:
        raise OptionError("The rows are not available, so none can be kept in every shard.")


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StreamBlocks(ReadBlocks):
    """Shards in the column files of a scratch folder. Another process gets the paths, not the rows."""

    portable = True
    scratch: Scratch

    def _fill(self, number: int, shards: Sequence[int], target: np.ndarray) -> None:
        row = 0
        with self._open(number) as file:
            for shard in shards:
                count = int(self.sizes[shard])
                self._read_shard(file, number, shard, target[row : row + count])
                row += count

    def _read_shard(self, file: FileIO, number: int, shard: int, target: np.ndarray) -> None:
        self._read_into(file, int(self.starts[shard]) * self.columns[number].row_bytes, target)
        self.scratch.check(number, shard, target)

    def _open(self, number: int) -> FileIO:
        try:
            return open(self.scratch.column_file(number), "rb", buffering=0)
        except OSError as error:
            raise self._lost(error.strerror or "unreadable") from error

    def _read_into(self, file: FileIO, offset: int, target: np.ndarray) -> None:
        view = memoryview(target.reshape(-1).view(np.uint8).data)
        file.seek(offset)
        while len(view):
            count = file.readinto(view)
            if not count:
                raise self._lost("a file has become shorter")
            view = view[count:]

    def _lost(self, reason: str) -> DataError:
        return DataError(
            f"The shards in {str(self.scratch.path)!r} can no longer be read ({reason}). Run again, and do not "
            "change that folder during the run. On a cluster, choose a folder that all workers can read: scratch= of "
            "shardmc.data.as_source, or --scratch."
        )

    def _fill_rows(self, number: int, shards: np.ndarray, within: np.ndarray, target: np.ndarray) -> None:
        column = self.columns[number]
        with self._open(number) as file:
            for shard in np.unique(shards).tolist():
                if not self.scratch.is_checked(number, shard):
                    whole = np.empty((int(self.sizes[shard]), *column.shape), dtype=column.dtype)
                    self._read_shard(file, number, shard, whole)
            for place, row in enumerate(self.starts[shards] + within):
                self._read_into(file, int(row) * column.row_bytes, target[place : place + 1])
