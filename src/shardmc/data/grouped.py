"""Rows that belong to groups: whole groups are split into shards, and a group is what a row is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.assignment import Assignment, shard_sizes, shard_starts
from shardmc.data.batch import Batch, Blocks, Kept, groups_of, kept_length, make_batch, power_of_four
from shardmc.data.blocks import ArrayBlocks, StreamBlocks
from shardmc.data.partition import aligned
from shardmc.data.source import ByGroup, Partition, Source
from shardmc.errors import OptionError
from shardmc.types import Rows

_LONGEST = 64  # rows of a stretch
_JOIN = 0.75
"""Cost of adding up a stretch, in rows: it decides how long stretches are."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedRows:
    """The rows of some groups, in stretches of equal length, so that groups of any size need little padding.

    A group has one or more stretches. The last one is padded with copies of the group's first row, of weight 0.
    """

    rows: Rows  # (stretch, row, ...)
    weights: jax.Array  # (stretch, row) the user's own weights, or ones; 0 for padding
    group: jax.Array  # (stretch,) the group of each; the number of groups for stretches of another shard
    effects: Any  # (group, ...) what is known about the effects of each group
    rule: jax.Array | None  # (node, size + 1) nodes and log weights by which effects are integrated out
    joined: bool = field(metadata={"static": True})
    """Whether stretch i is all of group i."""
    counted: bool = field(metadata={"static": True})
    """Whether all weights are 0 or 1."""

    @property
    def num_groups(self) -> int:
        return jax.tree.leaves(self.effects)[0].shape[0]

    def per_stretch(self, values: jax.Array) -> jax.Array:
        """The values (group, ...) of every stretch's group, (stretch, ...)."""
        return values if self.joined else values.at[self.group].get(mode="clip")

    def per_group(self, values: jax.Array) -> jax.Array:
        """Sums (group, ...) of the values of stretches, (stretch, ...)."""
        if self.joined:
            return values
        return jax.ops.segment_sum(values, self.group, self.num_groups)


def cells_of(rows: Rows, weights: jax.Array) -> int:
    """Numbers that the likelihood of some rows computes at one point: one per row, or per row and node."""
    if not isinstance(rows, GroupedRows):
        return weights.shape[0]
    return rows.weights.size * (1 if rows.rule is None else rows.rule.shape[0])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedBatch:
    """Some shards of groups: slices of the stretches, and of what is known about the groups."""

    stretches: Batch
    groups: Batch
    rule: jax.Array | None
    joined: bool = field(metadata={"static": True})
    counted: bool = field(metadata={"static": True})

    @property
    def num_shards(self) -> int:
        return self.groups.num_shards

    @property
    def capacity(self) -> int:
        return self.groups.capacity

    def take(self, i: jax.Array | int) -> tuple[GroupedRows, jax.Array]:
        """The groups of the batch's i-th shard, its own and then the kept ones, and their weights."""
        stretches, present = self.stretches.take(i)
        effects, weights = self.groups.take(i)
        group = jnp.where(present > 0, stretches["group"], weights.shape[0])
        rows = GroupedRows(
            stretches["rows"], stretches["weights"], group, effects, self.rule, self.joined, self.counted
        )
        return rows, weights

    def packed(self) -> GroupedBatch:
        """The same shards in arrays with only their slices, to be sent to another process."""
        return replace(self, stretches=self.stretches.packed(), groups=self.groups.packed())


@final
@dataclass(frozen=True, eq=False, repr=False)
class GroupedBlocks(Blocks):
    """Shards of whole groups. Sizes, shares and kept rows are those of groups."""

    stretches: Blocks
    groups: ArrayBlocks
    layout: Layout
    counted: bool
    kept_positions: Sequence[np.ndarray] = ()
    """Of kept groups within each shard."""
    rule: np.ndarray | None = None
    """Nodes and log weights, (node, size + 1), if effects are integrated by quadrature."""
    finer: np.ndarray | None = None
    """A rule with more nodes, by which the certificate judges."""

    @property
    def sizes(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.groups.sizes

    @property
    def num_kept(self) -> int:
        return self.groups.num_kept

    @property
    def in_memory(self) -> bool:
        return self.stretches.in_memory

    @property
    def for_certificate(self) -> GroupedBlocks:
        return self if self.finer is None else replace(self, rule=self.finer)

    @property
    def num_data_rows(self) -> int:
        """The number of rows in all groups."""
        return int(self.layout.counts.sum())

    def batches(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, shards: Sequence[int], size: int
    ) -> Iterator[tuple[Sequence[int], GroupedBatch]]:
        for (names, stretches), (_, groups) in zip(
            self.stretches.batches(shards, size), self.groups.batches(shards, size), strict=True
        ):
            rule = None if self.rule is None else jax.device_put(self.rule.astype(np.float32))
            yield names, GroupedBatch(stretches, groups, rule, self.layout.joined, self.counted)

    def with_effects(self, effects: Any) -> GroupedBlocks:
        """The same groups with these arrays (group, ...) about their effects, in the order of `layout.order`."""
        groups = replace(self.groups, rows=jax.tree.map(jnp.asarray, effects), kept=None)
        return replace(self, groups=groups.keep(self.kept_positions))

    def keep(self, positions: Sequence[np.ndarray]) -> GroupedBlocks:
        kept_groups = self.groups.keep(positions)
        stretches = self.layout.stretches_of(positions)
        kept_stretches = self.stretches.keep([rows for rows, _ in stretches])
        number = [each for _, each in stretches]
        return replace(
            self,
            groups=kept_groups,
            stretches=_renumbered(kept_stretches, np.concatenate([*number, np.empty(0, int)]), self.capacity),
            kept_positions=positions,
        )


def _renumbered(blocks: Any, numbers: np.ndarray, capacity: int) -> Blocks:
    """Kept stretches belong to the groups after the shard's own ones."""
    kept: Kept | None = blocks.kept
    if kept is None:
        return blocks
    padded = np.zeros(len(kept.weights), np.int32)
    padded[: len(numbers)] = numbers + capacity
    rows = {**kept.rows, "group": jax.device_put(padded)}
    return replace(blocks, kept=replace(kept, rows=rows))


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
        order = np.argsort(starts[self.shard], kind="stable")
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
        by_group = np.argsort(rank, kind="stable")
        present, begin, counts = np.unique(rank[by_group], return_index=True, return_counts=True)
        pieces = -(-counts // self.length)
        owner = np.repeat(np.arange(len(present)), pieces)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        row = within[:, None] * self.length + np.arange(self.length)
        real = row < counts[owner][:, None]
        index = by_group[begin[owner][:, None] + np.where(real, row, 0)]
        group = present[owner] - self.starts[self.shard[self.order[present[owner]]]]
        return index, real, group.astype(np.int32)


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
class GroupedSource(Source):
    """A table of rows with a column of group codes, 0 to G - 1. Whole groups go to shards."""

    is_table = False

    def __init__(self, source: Source, codes: str, counts: np.ndarray, *, whole: bool = False) -> None:
        self._source, self._codes, self._counts = source, codes, np.asarray(counts, np.int64)
        self._whole = whole  # whether a stretch holds all rows of a group
        self.num_rows = source.num_rows
        self.column_names = source.column_names

    @property
    def num_units(self) -> int:
        return len(self._counts)

    def select(self, columns: Sequence[str]) -> Source:
        return self

    def transform(self, function: Any, columns: Sequence[str], label: str) -> Source:
        return self._with(self._source.transform(function, columns, label))

    def drop_missing(self, columns: Sequence[str] | None = None) -> Source:
        return self._with(self._source.drop_missing(columns))

    def _with(self, source: Source) -> GroupedSource:
        return GroupedSource(source, self._codes, self._counts, whole=self._whole)

    def tables(self, columns: Sequence[str], count: int = 1 << 17) -> Iterator[Any]:
        return self._source.tables(columns, count)

    def sample(self, count: int, seed: int) -> Rows:
        return self._source.sample(count, seed)

    def row_shapes(self) -> Rows:
        return self._source.row_shapes()

    @property
    def fingerprint(self) -> str:
        return f"{self._source.fingerprint} in groups {self._codes}"

    def split(self, partition: Partition, seed: int) -> GroupedBlocks:
        if partition.stratify is not None or partition.sizes is not None:
            raise OptionError(
                "A model with group terms assigns whole groups to shards, so rows cannot be stratified. Leave stratify "
                "out."
            )
        sizes = shard_sizes(self.num_units, partition.shards)
        # Shards get their part of small and of large groups.
        scale = np.frexp(self._counts.astype(np.float64))[1]
        _, strata = np.unique(scale, return_inverse=True)
        assignment = Assignment(sizes, np.bincount(strata), seed if partition.shuffle else None)
        shard = assignment.next(strata, self.num_units)
        length = int(self._counts.max()) if self._whole else stretch_length(self._counts)
        layout = Layout(self._counts, shard, length, partition.shards)
        rows_of = np.bincount(shard, self._counts, minlength=partition.shards).astype(np.int64)
        by = ByGroup(self._codes, shard)
        rows = self._source.split(replace(partition, sizes=rows_of, by=by), seed)
        if isinstance(rows, ArrayBlocks):
            stretches = _stretches_in_memory(rows, self._codes, layout)
            weighted = rows.row_weights is not None
        else:
            assert isinstance(rows, StreamBlocks)
            stretches, weighted = StretchStream(rows, self._codes, layout), rows.has_weights
        nothing = {"none": np.zeros((len(self._counts), 0), np.float32)}
        groups = ArrayBlocks(
            jax.tree.map(jnp.asarray, nothing), None, layout.sizes, layout.starts, exact=True
        )
        return GroupedBlocks(stretches, groups, layout, not weighted)


def _arranged(
    rows: dict[str, np.ndarray], weights: np.ndarray | None, codes: np.ndarray, layout: Layout
) -> dict[str, Any]:
    """Rows of whole groups in stretches."""
    index, real, group = layout.places(codes)
    real = real.astype(np.float32)
    if weights is not None:
        real = real * weights[index]
    return {"rows": jax.tree.map(lambda a: a[index], rows), "weights": real, "group": group}


def _stretches_in_memory(rows: ArrayBlocks, codes: str, layout: Layout) -> ArrayBlocks:
    leaves = dict(rows.rows)
    count = rows.num_rows  # what follows in the arrays pads them
    own = np.asarray(leaves.pop(codes))[:count]
    host = {name: np.asarray(leaf)[:count] for name, leaf in leaves.items()}
    weights = None if rows.row_weights is None else np.asarray(rows.row_weights)[:count]
    made = _arranged(host, weights, own, layout)
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
            rows = slice(int(end - self.stream.sizes[shard]), int(end))
            leaves = {name: np.asarray(leaf[rows]) for name, leaf in batch.rows.items()}
            weights = None if batch.row_weights is None else np.asarray(batch.row_weights[rows])
            parts.append(_arranged(leaves, weights, leaves.pop(self.codes), self.layout))

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
        table = np.full((len(positions), most), self.capacity, np.int32)
        for shard in found:
            chosen = np.unique(np.asarray(positions[shard], np.int64))
            table[shard, : len(chosen)] = chosen
        rows = jax.tree.map(lambda a: jax.device_put(a[index]), rows)
        return replace(self, kept=Kept(rows, jax.device_put(weights), table, count))
