"""Rows of whole groups in stretches of equal length: where they lie, in memory or read from disk shard by shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.assignment import shard_starts
from shardmc.data.batch import NOWHERE, Batch, Blocks, Kept, groups_of, kept_length, make_batch, power_of_four
from shardmc.data.blocks import ArrayBlocks, StreamBlocks
from shardmc.data.partition import aligned
from shardmc.types import Rows

_LONGEST = 64  # rows of a stretch
_JOIN = 0.75
"""Cost of adding up a stretch, in rows: it decides how long stretches are."""


@dataclass(frozen=True)
class GroupLayout:
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

    def arranged(self, layout: GroupLayout) -> Rows:
        """The rows in stretches: `rows`, their `weights`, and the `group` of each stretch."""
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


def stretches_in_memory(rows: HostRows, layout: GroupLayout) -> ArrayBlocks:
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
    layout: GroupLayout
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
        parts: list[Rows] = []
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
