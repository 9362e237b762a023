"""Memory of a fit, and arrays that stay where they are in it: each batch of shards gathers its rows from them."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import jax
import numpy as np

from shardmc.data.assignment import shard_sizes, shard_starts
from shardmc.data.batch import flat_length
from shardmc.data.blocks import ArrayBlocks, ReadBlocks
from shardmc.data.columns import Column, float_type
from shardmc.data.partition import Placement, Sink, refuse_rows, write_in_memory
from shardmc.data.source import Partition
from shardmc.programs.process import return_freed_memory
from shardmc.programs.threads import in_parts

MEMORY = 1 << 30
"""By default, shardmc holds its own copy of the rows up to this many bytes."""

PROCESS = 1_000_000_000
"""Bytes that a process needs besides the rows: Python, JAX, compiled programs and what they compute with."""


@dataclass(frozen=True)
class Limits:
    """How much memory shardmc's own copy of the rows may take, and where on disk larger ones go."""

    memory: int | None = None
    """Bytes. By default 1 GiB for files, a quarter of the free memory for arrays, and no limit for other tables."""
    scratch: str | os.PathLike[str] | None = None


_log = logging.getLogger("shardmc")


def warn_of_memory(memory: int, row_bytes: int, shards: int) -> None:
    """Warn before rows are read if a limit for them in bytes cannot be kept, or if the process needs much more.

    Parameters
    ----------
    memory
        The limit; 0 stands for as little as possible, and nothing is said.
    row_bytes, shards
        What all rows take, and the number of shards.
    """
    at_a_time = shards_at_a_time() * row_bytes / shards
    if not memory:
        return
    if at_a_time > memory:
        _log.warning(
            "shardmc holds %d shards in memory at a time, %.2g GB of rows, more than memory= allows (%.2g GB). "
            "Use at least %d shards.",
            min(shards, shards_at_a_time()),
            min(at_a_time, row_bytes) / 1e9,
            memory / 1e9,
            -(-shards_at_a_time() * row_bytes // memory),
        )
    if memory < PROCESS:
        _log.warning(
            "shardmc holds up to %.2g GB of rows in memory, as memory= allows. "
            "The process needs about %.2g GB besides.",
            max(memory, at_a_time) / 1e9,
            PROCESS / 1e9,
        )


def shards_at_a_time() -> int:
    """The fewest shards that are in memory at once: one for each core, the next one, and one that is being read."""
    return (os.cpu_count() or 1) + 2


def return_unused_memory() -> None:
    """Return memory that the process holds but does not use to the system. This takes milliseconds."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    return_freed_memory()


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take; 0 where the system does not say (other than Linux).

    Memory in which the system keeps files that it can read again counts as free.

    Parameters
    ----------
    root
        The folder in which Linux has its files about the system.

    Examples
    --------
    >>> free_memory() >= 0
    True
    """
    free = 1024 * _numbers(root / "proc/meminfo").get("MemAvailable", 0)
    for folder, most, used, files in _control_groups(root):
        limit = _numbers(folder / most).get("")
        if limit is not None:
            taken = _numbers(folder / used).get("", 0) - _numbers(folder / "memory.stat").get(files, 0)
            free = min(free, max(0, limit - taken))
    return free


def _control_groups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """The folders of this process's control groups, with the names there of the limit, the use and the cached files."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2)
        inside = Path(group.lstrip("/"))
        for part in (inside, *inside.parents):
            if not kinds:
                yield root / "sys/fs/cgroup" / part, "memory.max", "memory.current", "inactive_file"
            elif "memory" in kinds.split(","):
                folder = root / "sys/fs/cgroup/memory" / part
                yield folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def _numbers(path: Path) -> dict[str, int]:
    """The number in each line of a file, by the name before it, which may be empty."""
    return {name: int(number) for name, number in re.findall(r"(?m)^([A-Za-z_()]*)[:\s]*(\d+)", _text(path))}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


_AT_ONCE = 1 << 13
"""Rows that are gathered before they are cast: few enough for the cache."""
_FREE = 4
"""By default, rows are copied if the copy takes at most 1/4 of the free memory."""
_BATCHES = 8
"""The batches in memory hold at most 1/8 of the rows, if shards are small enough."""


@final
@dataclass(frozen=True, eq=False)
class InPlace:
    """A user's array, whose entries are multiplied by a factor (of weights) when they are copied."""

    array: np.ndarray
    factor: float = 1.0

    def copy(self, rows: np.ndarray | slice, target: np.ndarray) -> None:
        """Copy the entries of these rows, cast to the type of the target. They were checked when rows were split."""
        if isinstance(rows, slice):
            target[:] = self._times(self.array[rows])
            return

        def gather(part: slice) -> None:
            for start in range(part.start, part.stop, _AT_ONCE):
                some = slice(start, min(start + _AT_ONCE, part.stop))
                self._gather(rows[some], target[some])

        in_parts(gather, len(rows), target.size)

    def _gather(self, rows: np.ndarray, target: np.ndarray) -> None:
        if self.array.ndim == 1 or _is_plain(self.array):
            target[:] = self._times(_take(self.array, rows))
            return
        for entry in np.ndindex(self.array.shape[1:]):
            target[:, *entry] = self._times(_take(self.array[:, *entry], rows))

    def _times(self, entries: np.ndarray) -> np.ndarray:
        return entries if self.factor == 1 else entries * self.factor


def _is_plain(array: np.ndarray) -> bool:
    return array.flags.c_contiguous and array.flags.aligned


def _take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    # `take` is faster than an index. But of an array that is not plain it would first copy the whole.
    return array.take(rows, axis=0, mode="clip") if _is_plain(array) else array[rows]


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GatheredBlocks(ReadBlocks):
    """Shards of arrays that are not copied as a whole. Every batch gathers its rows from them."""

    arrays: Sequence[InPlace]  # one for every column
    order: np.ndarray | None
    """(row,) the numbers of the rows, shard after shard; None if the arrays are in this order."""

    @property
    def in_memory(self) -> bool:
        return True

    @property
    def held(self) -> list[object]:
        return list(self.arrays)

    def _fill(self, number: int, shards: Sequence[int], target: np.ndarray) -> None:
        row = 0
        for shard in shards:
            start, count = int(self.starts[shard]), int(self.sizes[shard])
            places = slice(start, start + count)
            rows = places if self.order is None else self.order[places]
            self.arrays[number].copy(rows, target[row : row + count])
            row += count

    def _fill_rows(self, number: int, shards: np.ndarray, within: np.ndarray, target: np.ndarray) -> None:
        places = self.starts[shards] + within
        self.arrays[number].copy(places if self.order is None else self.order[places], target)

    def copied(self) -> ArrayBlocks:
        """The same shards in arrays that hold all rows, for methods that need them at once."""
        starts = shard_starts(self.sizes)
        arrays = self._read(np.argsort(starts).tolist(), flat_length(self.sizes))
        leaves = [jax.device_put(array) for array in arrays]
        return ArrayBlocks(*self._joined(leaves), self.sizes, starts, self.kept)


@final
class OrderSink(Sink):
    """Lists the numbers of the rows, shard after shard. The other columns are read only to be checked.

    Parameters
    ----------
    number
        Which column has the numbers of the rows; None if none has, because rows are in their own order.
    num_rows
        The number of rows.
    """

    def __init__(self, number: int | None, num_rows: int) -> None:
        refuse_rows(num_rows)
        self._number = number
        self.order = None if number is None else np.empty(num_rows, np.int32)

    def write(self, number: int, entries: np.ndarray, placement: Placement) -> None:
        if self.order is not None and number == self._number:
            write_in_memory(entries, placement, self.order)


@final
@dataclass(frozen=True)
class GatherPlan:
    """How batches gather the rows of arrays."""

    listed: bool
    """Whether the order of the rows is a list of their numbers: four bytes for each row."""
    most_in_memory: int
    """Shards in memory at a time."""

    @staticmethod
    def of(
        columns: Sequence[Column], num_rows: int, partition: Partition, memory: int | None
    ) -> GatherPlan | None:
        """None if the rows are copied: a copy takes at most `memory` bytes, or gathering would not halve that.

        By default a copy may take a quarter of the memory that is free. Then it does no harm, and a fit is faster.
        """
        sizes = shard_sizes(num_rows, partition.shards, partition.sizes)
        row_bytes = sum(column.row_bytes for column in columns)
        row_bytes += 0 if partition.weights is None else float_type().itemsize
        listed = partition.shuffle or partition.stratify is not None
        whole, largest = num_rows * row_bytes, int(sizes.max()) * row_bytes
        least = shards_at_a_time() * largest + (4 * num_rows if listed else 0)
        allowed = max(MEMORY, free_memory() // _FREE) if memory is None else memory
        if whole <= allowed or 2 * least > whole:
            return None
        return GatherPlan(listed, max(1, min(allowed, whole // _BATCHES) // largest))
