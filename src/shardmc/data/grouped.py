"""Shards of whole groups, and tables whose rows belong to groups: a group is what a row is elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.assignment import Assignment, shard_sizes
from shardmc.data.batch import Batch, Blocks
from shardmc.data.blocks import ArrayBlocks, StreamBlocks
from shardmc.data.reduction import Reduction
from shardmc.data.source import ByGroup, Partition, Source, Transform
from shardmc.data.stretches import (
    GroupLayout,
    HostRows,
    StretchStream,
    by_shard,
    stretch_length,
    stretches_in_memory,
)
from shardmc.errors import OptionError
from shardmc.types import Rows, Tree

if TYPE_CHECKING:
    import pyarrow as pa

Stretches = ArrayBlocks | StretchStream
"""Stretches of groups, in memory or on disk."""

First = Literal["stretches", "rows", "columns"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedRows:
    """The rows of some groups, in stretches of equal length, so that groups of any size need little padding.

    A group has one or more stretches. The last one is padded with copies of the group's first row, of weight 0.
    """

    rows: Rows  # (stretch, row, ...), or as `first` says
    weights: jax.Array
    """(stretch, row) in the order of `rows`: the user's own weights, or ones; 0 for padding."""
    group: jax.Array  # (stretch,) the group of each; the number of groups for stretches of another shard
    effects: Tree  # (group, ...) what is known about the effects of each group
    rule: jax.Array | None  # (node, size + 1) nodes and log weights by which effects are integrated out
    joined: bool = field(metadata={"static": True})
    """Whether stretch i is all of group i."""
    counted: bool = field(metadata={"static": True})
    """Whether all weights are 0 or 1."""
    first: First = field(default="stretches", metadata={"static": True})
    """"rows": (row, stretch, ...), so that operations over many stretches are long vector operations; "columns":
    (..., row, stretch), so that those over all rows are."""

    @property
    def matched(self) -> bool:
        """Whether many effects are integrated out by matched moments. Second derivatives take very long then."""
        return isinstance(self.effects, dict) and "sites" in self.effects

    @property
    def alone(self) -> GroupedRows:
        """Every group by itself, for `jax.vmap`, if a stretch is all of a group: leaves are (group, 1, ...)."""
        assert self.joined
        return jax.tree.map(lambda leaf: leaf[:, None], self)

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


def points_together(rows: Rows, most: int) -> int:
    """Points at which a likelihood is evaluated together: one on a CPU, if its operations are long enough already."""
    if not isinstance(rows, GroupedRows) or jax.default_backend() != "cpu":
        return most
    return most if rows.first == "stretches" and not rows.matched else 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupedBatch:
    """Some shards of groups: slices of the stretches, and of what is known about the groups."""

    stretches: Batch
    groups: Batch
    rule: jax.Array | None
    joined: bool = field(metadata={"static": True})
    counted: bool = field(metadata={"static": True})
    first: First = field(default="stretches", metadata={"static": True})

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
        rows, of_rows = stretches["rows"], stretches["weights"]
        if self.first != "stretches":
            to = (-1, -2) if self.first == "columns" else (1, 0)
            rows, of_rows = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, (0, 1), to), (rows, of_rows))
        found = GroupedRows(rows, of_rows, group, effects, self.rule, self.joined, self.counted, self.first)
        return found, weights

    def packed(self) -> GroupedBatch:
        """The same shards in arrays with only their slices, to be sent to another process."""
        return replace(self, stretches=self.stretches.packed(), groups=self.groups.packed())


@final
@dataclass(frozen=True, eq=False, repr=False)
class GroupedBlocks(Blocks):
    """Shards of whole groups. Sizes, shares and kept rows are those of groups."""

    stretches: Stretches
    groups: ArrayBlocks
    layout: GroupLayout
    counted: bool
    kept_positions: Sequence[np.ndarray] = ()
    """Of kept groups within each shard."""
    rule: np.ndarray | None = None
    """Nodes and log weights, (node, size + 1), if effects are integrated by quadrature."""
    finer: np.ndarray | None = None
    """A rule with more nodes, for the certificate."""
    first: First = "stretches"
    """How a program gets rows, as in `GroupedRows`."""

    @property
    def sizes(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.groups.sizes

    @property
    def of_groups(self) -> bool:
        return True

    @property
    def matched(self) -> bool:
        return isinstance(self.groups.rows, dict) and "sites" in self.groups.rows

    @property
    def num_kept(self) -> int:
        return self.groups.num_kept

    @property
    def in_memory(self) -> bool:
        return self.stretches.in_memory

    @property
    def for_certificate(self) -> GroupedBlocks:
        return self if self.finer is None else replace(self.uncorrected, rule=self.finer)

    @property
    def uncorrected(self) -> GroupedBlocks:
        """The same without the correction of the rule (see `shardmc.mixed.marginal`)."""
        if "tilt" not in self.groups.rows:
            return self
        plain = {name: a for name, a in self.groups.rows.items() if name not in ("tilt", "level")}
        return self.with_effects(plain)

    def batches(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, shards: Sequence[int], size: int
    ) -> Iterator[tuple[Sequence[int], GroupedBatch]]:
        for (names, stretches), (_, groups) in zip(
            self.stretches.batches(shards, size), self.groups.batches(shards, size), strict=True
        ):
            rule = None if self.rule is None else jax.device_put(self.rule.astype(np.float32))
            yield (
                names,
                GroupedBatch(stretches, groups, rule, self.layout.joined, self.counted, self.first),
            )

    def with_effects(self, effects: Tree) -> GroupedBlocks:
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


def _renumbered(blocks: Stretches, numbers: np.ndarray, capacity: int) -> Stretches:
    """Kept stretches belong to the groups after the shard's own ones."""
    kept = blocks.kept
    if kept is None:
        return blocks
    padded = np.zeros(len(kept.weights), np.int32)
    padded[: len(numbers)] = numbers + capacity
    rows = {**kept.rows, "group": jax.device_put(padded)}
    return replace(blocks, kept=replace(kept, rows=rows))


@final
class GroupedSource(Source):
    """A table of rows with a column of group codes, 0 to G - 1. Whole groups go to shards.

    A `reduction` replaces the rows of groups by fewer ones, if that pays. With `whole`, a stretch holds all rows of a
    group.
    """

    is_table = False

    def __init__(
        self,
        source: Source,
        codes: str,
        counts: np.ndarray,
        reduction: Reduction | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._source, self._codes, self._counts = source, codes, np.asarray(counts, np.int64)
        self._reduction, self._whole = reduction, whole
        self.num_rows = source.num_rows
        self.column_names = source.column_names

    @property
    def num_units(self) -> int:
        return len(self._counts)

    def select(self, columns: Sequence[str]) -> Source:
        return self

    def transform(self, function: Transform, columns: Sequence[str], label: str) -> Source:
        return self._of(self._source.transform(function, columns, label))

    def drop_missing(self, columns: Sequence[str] | None = None) -> Source:
        return self._of(self._source.drop_missing(columns))

    def _of(self, source: Source) -> GroupedSource:
        return GroupedSource(source, self._codes, self._counts, self._reduction, whole=self._whole)

    def tables(self, columns: Sequence[str], count: int = 1 << 17) -> Iterator[pa.Table]:
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
            given = "sizes" if partition.stratify is None else "stratify"
            raise OptionError(
                f"A model with effects of groups assigns whole groups to shards, so {given}= cannot be used. Leave it "
                "out."
            )
        sizes = shard_sizes(self.num_units, partition.shards)
        # Shards get their part of small and of large groups.
        scale = np.frexp(self._counts.astype(np.float64))[1]
        _, strata = np.unique(scale, return_inverse=True)
        assignment = Assignment(sizes, np.bincount(strata), seed if partition.shuffle else None)
        shard = assignment.next(strata, self.num_units)
        rows_of = np.bincount(shard, self._counts, minlength=partition.shards).astype(np.int64)
        by = ByGroup(self._codes, shard)
        rows = self._source.split(replace(partition, sizes=rows_of, by=by), seed)
        assert isinstance(rows, ArrayBlocks | StreamBlocks)
        reduced = self._reduced(rows)
        counts = self._counts if reduced is None else np.bincount(reduced.codes, minlength=self.num_units)
        length = int(counts.max()) if self._whole else stretch_length(counts)
        layout = GroupLayout(counts, shard, length, partition.shards)
        if isinstance(rows, StreamBlocks) and reduced is None:
            stretches, weighted = StretchStream(rows, self._codes, layout), rows.has_weights
        else:
            found = reduced or next(by_shard(rows, self._codes))
            stretches, weighted = stretches_in_memory(found, layout), found.weights is not None
        nothing = {"none": np.zeros((len(self._counts), 0), np.float32)}
        groups = ArrayBlocks(
            jax.tree.map(jnp.asarray, nothing), None, layout.sizes, layout.starts, exact=True
        )
        return GroupedBlocks(stretches, groups, layout, not weighted)

    def _reduced(self, rows: ArrayBlocks | StreamBlocks) -> HostRows | None:
        """The rows, shard by shard, after the reduction; None if it does not pay."""
        reduction = self._reduction
        if reduction is None:
            return None
        shapes = {name: leaf for name, leaf in self.row_shapes().items() if name != self._codes}
        least = int(np.minimum(self._counts, 1 + reduction.width(shapes)).sum())
        if not reduction.pays(self.num_rows, least):
            return None
        parts, count = [], 0
        for part in by_shard(rows, self._codes):
            parts.append(HostRows(*reduction(part.columns, part.weights, part.codes)))
            count += len(parts[-1].codes)
            if not reduction.pays(self.num_rows, count):
                return None
        return HostRows.joined(parts)
