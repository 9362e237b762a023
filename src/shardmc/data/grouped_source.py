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
from shardmc.data.source import ByGroup, Partition, Source
from shardmc.data.stretches import StretchStream, stretches_in_memory
from shardmc.errors import OptionError
from shardmc.types import Rows


@final
class GroupedSource(Source):
    """A table of rows with a column of group codes, 0 to G - 1. Whole groups go to shards."""

    is_table = False

    def __init__(self, source: Source, codes: str, counts: np.ndarray) -> None:
        self._source, self._codes, self._counts = source, codes, np.asarray(counts, np.int64)
        self.num_rows = source.num_rows
        self.column_names = source.column_names

    @property
    def num_units(self) -> int:
        return len(self._counts)

    def select(self, columns: Sequence[str]) -> Source:
        return self

    def transform(self, function: Any, columns: Sequence[str], label: str) -> Source:
        return GroupedSource(self._source.transform(function, columns, label), self._codes, self._counts)

    def drop_missing(self, columns: Sequence[str] | None = None) -> Source:
        return GroupedSource(self._source.drop_missing(columns), self._codes, self._counts)

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
        layout = Layout(self._counts, shard, stretch_length(self._counts), partition.shards)
        rows_of = np.bincount(shard, self._counts, minlength=partition.shards).astype(np.int64)
        by = ByGroup(self._codes, shard)
        rows = self._source.split(replace(partition, sizes=rows_of, by=by), seed)
        if isinstance(rows, ArrayBlocks):
            stretches = stretches_in_memory(rows, self._codes, layout)
            weighted = rows.row_weights is not None
        else:
            assert isinstance(rows, StreamBlocks)
            stretches, weighted = StretchStream(rows, self._codes, layout), rows.has_weights
        nothing = {"none": np.zeros((len(self._counts), 0), np.float32)}
        groups = ArrayBlocks(
            jax.tree.map(jnp.asarray, nothing), None, layout.sizes, layout.starts, exact=True
        )
        return GroupedBlocks(stretches, groups, layout, not weighted)
