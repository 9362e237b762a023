"""Rows of some shards as the compiled programs see them: flat arrays, and where in them each shard lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Rows = Any
"""A pytree of arrays with a common first axis, one entry per row."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Shards that lie one after another in flat arrays, and the kept rows that every shard has besides its own.

    No row is copied to make a shard: `take` slices `capacity` rows, the same number for every shard, and gives those
    beyond the shard's own (a neighbour's) weight 0. Own rows weigh `1 / share`, kept rows 1, so that the
    share-weighted sum over shards counts every row once. Whoever makes a batch sees to it that no slice passes the end
    of the arrays (starts + capacity <= length): then the j-th row taken is the shard's own j-th row. Arrays of several
    batches are longer than one slice: XLA drops a slice that is the whole array, compiles the shard otherwise, and its
    results would differ in the last bits from those of the same shard in a larger batch.
    """

    rows: Rows  # (length, ...)
    row_weights: jax.Array | None  # (length,) the user's own weights
    starts: jax.Array  # (shard,) first row of each shard
    sizes: jax.Array  # (shard,) its number of rows
    factors: jax.Array  # (shard,) 1 / share
    kept_rows: Rows | None  # (kept, ...)
    kept_weights: jax.Array | None  # (kept,) the user's own weights, or ones; 0 for padding
    kept_positions: jax.Array | None  # (shard, most) which of a shard's own are kept; `capacity` for none
    capacity: int = field(metadata={"static": True})

    @property
    def num_shards(self) -> int:
        return self.starts.shape[0]

    def own(self, i: jax.Array | int) -> tuple[Rows, jax.Array]:
        """Own rows of the batch's i-th shard and their weights, (capacity, ...) and (capacity,)."""
        start = self.starts[i]
        rows = jax.tree.map(lambda a: _wide(lax.dynamic_slice_in_dim(a, start, self.capacity)), self.rows)
        weights = jnp.where(jnp.arange(self.capacity) < self.sizes[i], self.factors[i], 0)
        if self.row_weights is not None:
            weights = weights * lax.dynamic_slice_in_dim(self.row_weights, start, self.capacity)
        if self.kept_positions is not None:
            weights = weights.at[self.kept_positions[i]].set(0, mode="drop")
        return rows, weights

    def take(self, i: jax.Array | int) -> tuple[Rows, jax.Array]:
        """Rows and weights of the batch's i-th shard: its own, then the kept rows."""
        rows, weights = self.own(i)
        if self.kept_rows is None:
            return rows, weights
        rows = jax.tree.map(lambda a, b: jnp.concatenate([a, _wide(b)]), rows, self.kept_rows)
        assert self.kept_weights is not None
        return rows, jnp.concatenate([weights, self.kept_weights])


def _wide(rows: jax.Array) -> jax.Array:
    """A shard's rows as the computation has them: they are float32 in memory also where it is in float64."""
    real = jnp.result_type(float)
    narrow = jnp.issubdtype(rows.dtype, jnp.floating) and rows.dtype.itemsize < real.itemsize
    return rows.astype(real) if narrow else rows


class Blocks(ABC):
    """A partition of the rows into shards: their shares, and their rows batch by batch."""

    portable: bool = False
    """Whether a pickled copy reads the rows itself, so that another process needs to be sent no rows."""
    sizes: np.ndarray  # (shard,) own rows

    @property
    @abstractmethod
    def num_kept(self) -> int:
        """Rows that every shard has besides its own."""

    @property
    def num_shards(self) -> int:
        return len(self.sizes)

    @property
    def num_rows(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def shares(self) -> np.ndarray:
        """Each shard's part of all rows, (shard,); they sum to 1."""
        return self.sizes / self.sizes.sum()

    @property
    def capacity(self) -> int:
        """The largest of the sizes."""
        return int(self.sizes.max())

    @abstractmethod
    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        """Yield (shards, batch) with `size` shards each; the last batch repeats its last shard to be as long."""

    @abstractmethod
    def keep(self, positions: Sequence[np.ndarray]) -> Blocks:
        """The same partition with these rows (positions within each shard) kept in every shard, and no others."""
