"""Shards whose rows are copied from elsewhere, batch by batch, one batch ahead of the computation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import numpy as np

from shardmc.data.batch import Batch, Blocks, Kept, groups_of, keep_rows, make_batch, padded, rounded
from shardmc.data.columns import Column
from shardmc.data.partition import aligned
from shardmc.types import Rows


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ReadBlocks(Blocks):
    """Shards whose rows are in files, or in arrays in another order."""

    columns: Sequence[Column]  # row weights last
    structure: Any  # the pytree structure of the rows, without weights
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

    @property
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
