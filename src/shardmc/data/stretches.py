"""Rows of whole groups in stretches of equal length, in memory or read from disk shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import NOWHERE, Batch, Blocks, Kept, groups_of, kept_length, make_batch, power_of_four
from shardmc.data.blocks import ArrayBlocks, StreamBlocks
from shardmc.data.levels import Layout
from shardmc.data.partition import aligned
from shardmc.types import Rows


@final
@dataclass(frozen=True)
class HostRows:
    """Rows of whole groups, with the codes of their groups."""

    columns: dict[str, np.ndarray]
    weights: np.ndarray | None
    codes: np.ndarray

    @staticmethod
    def of(batch: ArrayBlocks | Batch, codes: str, count: int, first: int = 0) -> HostRows:
        """Some rows of arrays, among whose columns are the codes."""
        some = slice(first, first + count)
        columns = {name: np.asarray(leaf[some]) for name, leaf in batch.rows.items()}
        weights = None if batch.row_weights is None else np.asarray(batch.row_weights[some])
        return HostRows(columns, weights, columns.pop(codes))

    @staticmethod
    def joined(parts: Sequence[HostRows]) -> HostRows:
        columns, codes = [part.columns for part in parts], [part.codes for part in parts]
        weights = [part.weights for part in parts if part.weights is not None]
        return HostRows(
            jax.tree.map(lambda *a: np.concatenate(a), *columns),
            np.concatenate(weights) if weights else None,
            np.concatenate(codes),
        )

    def arranged(self, layout: Layout) -> dict[str, Any]:
        """The rows in stretches."""
        index, real, group = layout.places(self.codes)
        real = real.astype(np.float32)
        if self.weights is not None:
            real = real * self.weights[index]
        return {"rows": jax.tree.map(lambda a: a[index], self.columns), "weights": real, "group": group}


def by_shard(blocks: ArrayBlocks | StreamBlocks, codes: str) -> Iterator[HostRows]:
    """All rows in parts that fit in memory: at once, or shard by shard if they are on disk."""
    if isinstance(blocks, ArrayBlocks):
        yield HostRows.of(blocks, codes, blocks.num_rows)
        return
    for (shard,), batch in blocks.batches(range(blocks.num_shards), 1):
        yield HostRows.of(batch, codes, int(blocks.sizes[shard]))


def stretches_in_memory(rows: HostRows, layout: Layout) -> ArrayBlocks:
    """Stretches of rows in memory, shard by shard."""
    made = rows.arranged(layout)
    # Stretches are in the order of groups; the largest shard of stretches must be the last.
    shards = np.argsort(layout.starts, kind="stable")
    sizes = layout.stretch_sizes
    begin = np.empty_like(sizes)
    begin[shards] = np.cumsum(sizes[shards]) - sizes[shards]
    target = np.argsort(layout.stretch_starts, kind="stable")
    if not (target == shards).all():
        take = np.concatenate([int(begin[s]) + np.arange(int(sizes[s])) for s in target])
        made = jax.tree.map(lambda a: a[take], made)
    return ArrayBlocks(jax.tree.map(jnp.asarray, made), None, sizes, layout.stretch_starts, exact=True)


@final
@dataclass(frozen=True, eq=False, repr=False)
class StretchStream(Blocks):
    """Stretches of groups whose rows are on disk, shard by shard. They are arranged when a shard is read."""

    stream: StreamBlocks
    codes: str
    layout: Layout
    kept: Kept | None = None
    portable = True

    @property
    def sizes(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.layout.stretch_sizes

    @property
    def num_kept(self) -> int:
        return self.kept.count if self.kept else 0

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        length = size * self.capacity + 1
        padded_groups = [padded for _, padded in groups_of(shards, size)]
        for (group, batch), padded in zip(self.stream.batches(shards, size), padded_groups, strict=True):
            made = self._arrange(batch, group, length)
            starts = np.cumsum(self.sizes[group]) - self.sizes[group]
            starts = np.append(starts, np.repeat(starts[-1:], len(padded) - len(group)))
            yield group, make_batch(self, padded, made, None, starts, self.kept)

    def _arrange(self, batch: Batch, shards: Sequence[int], length: int) -> Rows:
        ends = np.cumsum(self.stream.sizes[list(shards)])
        parts = []
        for shard, end in zip(shards, ends, strict=True):
            count = int(self.stream.sizes[shard])
            parts.append(HostRows.of(batch, self.codes, count, int(end) - count).arranged(self.layout))

        def join(*pieces: np.ndarray) -> jax.Array:
            array = aligned((length, *pieces[0].shape[1:]), pieces[0].dtype)
            count = sum(map(len, pieces))
            np.concatenate(pieces, out=array[:count])
            array[count:] = array[count - 1]
            return jax.device_put(array)

        return jax.tree.map(join, *parts)

    def keep(self, positions: Sequence[np.ndarray]) -> StretchStream:
        found = [s for s, p in enumerate(positions) if len(p)]
        if not found:
            return replace(self, kept=None)
        parts: list[Any] = []
        for (shard,), batch in self.batches(found, 1):
            chosen = np.unique(np.asarray(positions[shard], np.int64))
            parts.append(jax.tree.map(lambda a, c=chosen: np.asarray(a)[c], batch.rows))
        rows = jax.tree.map(lambda *a: np.concatenate(a), *parts)
        count = len(rows["group"])
        index = np.minimum(np.arange(kept_length(count, self.capacity)), count - 1)
        weights = (np.arange(len(index)) < count).astype(np.float32)
        most = power_of_four(max(len(p) for p in positions))
        table = np.full((len(positions), most), NOWHERE, np.int32)
        for shard in found:
            chosen = np.unique(np.asarray(positions[shard], np.int64))
            table[shard, : len(chosen)] = chosen
        rows = jax.tree.map(lambda a: jax.device_put(a[index]), rows)
        return replace(self, kept=Kept(rows, jax.device_put(weights), table, count))
