"""A table whose rows belong to groups: whole groups are split into shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.assignment import Assignment, shard_sizes
from shardmc.data.blocks import ArrayBlocks, StreamBlocks
from shardmc.data.grouped import GroupedBlocks
from shardmc.data.layout import Layout, stretch_length
from shardmc.data.reduction import Reduction
from shardmc.data.source import ByGroup, Partition, Source
from shardmc.data.stretches import HostRows, StretchStream, by_shard, stretches_in_memory
from shardmc.errors import OptionError
from shardmc.types import Rows


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

    def transform(self, function: Any, columns: Sequence[str], label: str) -> Source:
        return self._of(self._source.transform(function, columns, label))

    def drop_missing(self, columns: Sequence[str] | None = None) -> Source:
        return self._of(self._source.drop_missing(columns))

    def _of(self, source: Source) -> GroupedSource:
        return GroupedSource(source, self._codes, self._counts, self._reduction, whole=self._whole)

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
        rows_of = np.bincount(shard, self._counts, minlength=partition.shards).astype(np.int64)
        by = ByGroup(self._codes, shard)
        rows = self._source.split(replace(partition, sizes=rows_of, by=by), seed)
        assert isinstance(rows, ArrayBlocks | StreamBlocks)
        reduced = self._reduced(rows)
        counts = self._counts if reduced is None else np.bincount(reduced.codes, minlength=self.num_units)
        length = int(counts.max()) if self._whole else stretch_length(counts)
        layout = Layout(counts, shard, length, partition.shards)
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
