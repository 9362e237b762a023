"""Shards in memory: flat arrays on the device, of which each shard is a slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import jax
import numpy as np

from shardmc.data.batch import Batch, Blocks, Rows
from shardmc.data.columns import float_type
from shardmc.data.kept import Kept, keep_rows


def groups_of(shards: Sequence[int], size: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Cut shards into groups of `size`: (group, group with its last shard repeated to that length).

    Examples
    --------
    >>> list(groups_of([4, 5, 6], 2))
    [([4, 5], array([4, 5])), ([6], array([6, 6]))]
    """
    for start in range(0, len(shards), size):
        group = [int(shard) for shard in shards[start : start + size]]
        yield group, np.array(group + group[-1:] * (size - len(group)))


def make_batch(
    blocks: Blocks,
    shards: np.ndarray,
    rows: Rows,
    row_weights: jax.Array | None,
    starts: np.ndarray,
    kept: Kept | None,
) -> Batch:
    """The batch of these shards, which begin at `starts` in the flat arrays of rows and weights."""
    return Batch(
        rows=rows,
        row_weights=row_weights,
        # Cast before they are on the device: there a cast would be one more program to compile.
        starts=jax.device_put(starts.astype(np.int32)),
        sizes=jax.device_put(blocks.sizes[shards].astype(np.int32)),
        factors=jax.device_put((1 / blocks.shares[shards]).astype(float_type())),
        kept_rows=kept.rows if kept else None,
        kept_weights=kept.weights if kept else None,
        kept_positions=jax.device_put(kept.positions[shards]) if kept else None,
        capacity=blocks.capacity,
    )


@final
@dataclass(frozen=True, eq=False, repr=False)
class ArrayBlocks(Blocks):
    """Shards in flat arrays on the device: a batch names slices of them and copies nothing."""

    rows: Rows  # (num_rows, ...)
    row_weights: jax.Array | None  # (num_rows,)
    sizes: np.ndarray
    starts: np.ndarray  # (shard,) first row of each
    kept: Kept | None = None

    @property
    def num_kept(self) -> int:
        return self.kept.count if self.kept else 0

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        for group, padded in groups_of(shards, size):
            yield group, make_batch(self, padded, self.rows, self.row_weights, self.starts[padded], self.kept)

    def keep(self, positions: Sequence[np.ndarray]) -> ArrayBlocks:
        def gather(shards: np.ndarray, within: np.ndarray) -> tuple[Rows, jax.Array | None]:
            index = (self.starts[shards] + within).astype(np.int32)
            return _rows_at((self.rows, self.row_weights), index)

        return replace(self, kept=keep_rows(positions, self.sizes, gather))


@jax.jit
def _rows_at(arrays: tuple[Rows, jax.Array | None], index: jax.Array) -> tuple[Rows, jax.Array | None]:
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), arrays)
