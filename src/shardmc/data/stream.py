"""Shards on disk: read when they are needed, one batch ahead, and dropped after use."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import numpy as np

from shardmc.data.batch import Batch, Blocks, Rows
from shardmc.data.blocks import groups_of, make_batch
from shardmc.data.columns import Column
from shardmc.data.dealing import aligned
from shardmc.data.kept import Kept, keep_rows
from shardmc.data.scratch import Scratch
from shardmc.errors import DataError


@final
@dataclass(frozen=True, eq=False, repr=False)
class StreamBlocks(Blocks):
    """Shards in the column files of a scratch folder. Only their paths travel to another process, not the rows."""

    portable = True
    scratch: Scratch
    columns: Sequence[Column]  # in the order of the files; row weights last
    structure: Any  # of the rows, a tree of the columns without weights
    has_weights: bool
    sizes: np.ndarray
    starts: np.ndarray  # (shard,) first row of each in the files
    kept: Kept | None = None

    @property
    def num_kept(self) -> int:
        return self.kept.count if self.kept else 0

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        # Always as long as if all shards were the largest, so that one compiled program serves every batch; a row more,
        # so that no slice is the whole array.
        length = size * self.capacity + 1
        groups = list(groups_of(shards, size))
        with ThreadPoolExecutor(1, thread_name_prefix="shardmc-read") as reader:
            ahead = deque(reader.submit(self._read, group, length) for group, _ in groups[:1])
            for number, (group, padded) in enumerate(groups):
                arrays = ahead.popleft().result()
                if number + 1 < len(groups):
                    ahead.append(reader.submit(self._read, groups[number + 1][0], length))
                # Here, not in the other thread: whether JAX is in x64 may be a setting of this one.
                yield group, self._batch(group, padded, arrays)
                del arrays  # or its rows would stay while the next but one is read

    def _batch(self, group: list[int], padded: np.ndarray, arrays: list[np.ndarray]) -> Batch:
        leaves = [jax.device_put(array) for array in arrays]
        weights = leaves.pop() if self.has_weights else None
        starts = np.cumsum(self.sizes[group]) - self.sizes[group]
        starts = np.append(starts, np.repeat(starts[-1:], len(padded) - len(group)))
        return make_batch(
            self, padded, jax.tree.unflatten(self.structure, leaves), weights, starts, self.kept
        )

    def _read(self, shards: Sequence[int], length: int) -> list[np.ndarray]:
        """Every column's entries in these shards, one after another, then the last of them up to the length."""
        arrays = []
        for number, column in enumerate(self.columns):
            array = aligned((length, *column.shape), column.dtype)
            row = 0
            with self._open(number) as file:
                for shard in shards:
                    count = int(self.sizes[shard])
                    self._fill(file, int(self.starts[shard]) * column.row_bytes, array[row : row + count])
                    row += count
            array[row:] = array[row - 1]
            arrays.append(array)
        return arrays

    def _open(self, number: int) -> Any:
        try:
            return open(self.scratch.column_file(number), "rb", buffering=0)
        except OSError as error:
            raise self._lost(error.strerror or "unreadable") from error

    def _fill(self, file: Any, offset: int, target: np.ndarray) -> None:
        view = memoryview(target.reshape(-1).view(np.uint8).data)
        file.seek(offset)
        while len(view):
            count = file.readinto(view)
            if not count:
                raise self._lost("a file is shorter than it was")
            view = view[count:]

    def _lost(self, reason: str) -> DataError:
        return DataError(
            f"Rows dealt to shards in {str(self.scratch.path)!r} can no longer be read ({reason}); start again, and "
            "leave that folder alone while a run uses it. On a cluster, name a scratch folder that all workers see."
        )

    def keep(self, positions: Sequence[np.ndarray]) -> StreamBlocks:
        return replace(self, kept=keep_rows(positions, self.sizes, self._gather))

    def _gather(self, shards: np.ndarray, within: np.ndarray) -> tuple[Rows, jax.Array | None]:
        index = self.starts[shards] + within
        leaves = []
        for number, column in enumerate(self.columns):
            array = np.empty((len(index), *column.shape), dtype=column.dtype)
            with self._open(number) as file:
                for place, row in enumerate(index):
                    self._fill(file, int(row) * column.row_bytes, array[place : place + 1])
            leaves.append(jax.device_put(array))
        weights = leaves.pop() if self.has_weights else None
        return jax.tree.unflatten(self.structure, leaves), weights

    def discard(self) -> None:
        """Delete the files; these shards are of no use afterwards."""
        self.scratch.discard()
