"""Shards as programs see them: batches of slices of flat arrays, and the rows that every shard has besides its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.columns import float_type
from shardmc.data.device_order import RowOrder
from shardmc.errors import OptionError
from shardmc.types import Rows

Small = np.ndarray | jax.Array
"""On the host, and in a program on the device."""

NOWHERE = 2**31 - 1
"""A position past the end of every shard."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Some shards: slices of flat arrays, and the kept rows that every shard has besides its own.

    Making a shard copies no row. `take` slices `capacity` rows, the same number for every shard, and gives rows of the
    next shard weight 0. Own rows weigh `1 / share` and kept rows 1, so that the share-weighted sum over shards counts
    every row once. No slice may pass the end of the arrays (starts + capacity <= length), so that the j-th row taken
    is the shard's own j-th row. The arrays should be longer than one slice: XLA drops a slice that is the whole array
    and compiles another program, whose results differ in the last bits.
    """

    rows: Rows  # (length, ...)
    row_weights: jax.Array | None  # (length,) the user's own weights
    starts: Small  # (shard,) first row of each shard
    sizes: Small  # (shard,) its number of rows
    factors: Small  # (shard,) 1 / share
    kept_rows: Rows | None  # (kept, ...)
    kept_weights: Small | None  # (kept,) the user's own weights, or ones; 0 for padding
    kept_positions: Small | None  # (shard, most) own rows that are kept; padded with `NOWHERE`
    capacity: int = field(metadata={"static": True})
    order: RowOrder | None = None
    """Which row lies at which place, if rows are not slices of the arrays, but gathered from all over them."""

    @property
    def num_shards(self) -> int:
        return self.starts.shape[0]

    def own(self, i: jax.Array | int) -> tuple[Rows, jax.Array]:
        """Own rows of the batch's i-th shard and their weights, (capacity, ...) and (capacity,)."""
        rows, of_rows = self._taken(self.starts[i])
        weights = jnp.where(jnp.arange(self.capacity) < self.sizes[i], self.factors[i], 0)
        if of_rows is not None:
            weights = weights * of_rows
        return jax.tree.map(wide, rows), weights

    def _taken(self, start: jax.Array) -> tuple[Rows, jax.Array | None]:
        """The entries of a shard in the flat arrays of rows and weights."""
        arrays, structure = jax.tree.flatten((self.rows, self.row_weights))
        if self.order is None:
            taken = [lax.dynamic_slice_in_dim(array, start, self.capacity) for array in arrays]
        else:
            taken = self.order.take(arrays, start, self.capacity)
        return jax.tree.unflatten(structure, taken)

    def take(self, i: jax.Array | int) -> tuple[Rows, jax.Array]:
        """Rows and weights of the batch's i-th shard: its own, then the kept rows. Own rows that are kept weigh 0."""
        rows, weights = self.own(i)
        if self.kept_rows is None:
            return rows, weights
        rows = jax.tree.map(lambda a, b: jnp.concatenate([a, wide(b)]), rows, self.kept_rows)
        assert self.kept_weights is not None
        assert self.kept_positions is not None
        weights = jnp.concatenate([weights, self.kept_weights])
        # Last, because the result is stored then. XLA would join the weights anew at every point that is evaluated.
        return rows, weights.at[self.kept_positions[i]].set(0, mode="drop")

    def packed(self) -> Batch:
        """The same shards in arrays with only their slices, and one more row, to be sent to another process."""

        def joined(*parts: jax.Array) -> np.ndarray:
            return np.concatenate([*map(np.asarray, parts), parts[-1][-1:]])

        rows, weights = jax.tree.map(joined, *(self._taken(start) for start in jnp.asarray(self.starts)))
        starts = (np.arange(self.num_shards) * self.capacity).astype(np.int32)
        return replace(self, rows=rows, row_weights=weights, starts=starts, order=None)


def wide(rows: jax.Array) -> jax.Array:
    """A shard's rows in the precision of the computation. In memory they are float32 even if that is float64."""
    real = jnp.result_type(float)
    narrow = jnp.issubdtype(rows.dtype, jnp.floating) and rows.dtype.itemsize < real.itemsize
    return rows.astype(real) if narrow else rows


class Blocks(ABC):
    """A partition of the rows into shards: their shares, and their rows batch by batch."""

    portable: bool = False
    """Whether a pickled copy reads the rows itself, so that no rows are sent to another process."""
    sizes: np.ndarray  # (shard,) own rows
    kept: Kept | None = None
    most_in_memory: int | None = None
    """Shards that may be in memory at a time; None if there is no limit."""

    @property
    def of_groups(self) -> bool:
        """Whether shards are made of whole groups, and sizes, shares and kept rows are those of groups."""
        return False

    @property
    def matched(self) -> bool:
        """Whether many effects of groups are integrated out, by matched moments."""
        return False

    @property
    def num_kept(self) -> int:
        """Rows that every shard has besides its own."""
        return self.kept.count if self.kept else 0

    @property
    def num_shards(self) -> int:
        return len(self.sizes)

    @cached_property
    def num_rows(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def shares(self) -> np.ndarray:
        """Each shard's share of the rows, (shard,). They sum to 1."""
        return self.sizes / self.sizes.sum()

    @cached_property
    def capacity(self) -> int:
        """The largest of the sizes."""
        return int(self.sizes.max())

    @cached_property
    def slots(self) -> int:
        """The length of every shard's slice: at least `capacity`."""
        return self.capacity

    @property
    def in_memory(self) -> bool:
        """Whether batches are made without reading files, so that one is there at once."""
        return False

    @property
    def held(self) -> list[object]:
        """The objects that hold the rows in this process. Another partition of the rows has other objects."""
        return []

    @property
    def for_certificate(self) -> Blocks:
        """The same rows as the certificate evaluates them: more precisely, if the likelihood is an approximation."""
        return self

    @abstractmethod
    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        """Yield (shards, batch) with `size` shards each. The last batch is padded with its last shard."""

    def outline(self, shards: Sequence[int], size: int) -> Batch:
        """The first of these batches. Its rows may be missing, if they would have to be read or copied."""
        return next(iter(self.batches(shards, size)))[1]

    @abstractmethod
    def keep(self, positions: Sequence[np.ndarray]) -> Blocks:
        """The same partition, with these rows (positions within each shard) kept in every shard."""


@dataclass(frozen=True, eq=False)
class Kept:
    """Rows that every shard has, and their positions in their own shards, where they get weight 0."""

    rows: Rows  # (padded, ...) on the device; NumPy arrays in a copy from another process
    weights: np.ndarray | jax.Array  # (padded,) the user's own weights or ones, 0 for padding
    positions: np.ndarray  # (shard, most) int32, padded with `NOWHERE`
    count: int

    def __getstate__(self) -> dict[str, object]:
        # A process without x64 would read a pickled JAX array in single precision.
        return {**self.__dict__, "rows": jax.device_get(self.rows), "weights": jax.device_get(self.weights)}


Gather = Callable[[np.ndarray, np.ndarray], tuple[Rows, np.ndarray | jax.Array | None]]
"""gather(shards, positions): the rows there, and their row weights."""


def keep_rows(positions: Sequence[np.ndarray], sizes: np.ndarray, slots: int, gather: Gather) -> Kept | None:
    """The kept rows at these positions within each shard, or None without positions.

    If no shard has any, there are rows of weight 0 in their place: programs are then those for a few kept rows.
    """
    if len(positions) == 0:
        return None
    if len(positions) != len(sizes):
        raise OptionError(f"Positions of {len(positions)} shards were given; there are {len(sizes)} shards.")
    unique = [np.unique(np.asarray(p, dtype=np.int64)) for p in positions]
    counts = np.array([len(p) for p in unique])
    count = int(counts.sum())
    for shard, p in enumerate(unique):
        if len(p) and not 0 <= p[0] <= p[-1] < sizes[shard]:
            wrong = p[0] if p[0] < 0 else p[-1]
            raise OptionError(
                f"Row {wrong} of shard {shard} cannot be kept: the shard has {sizes[shard]} rows, counted from 0."
            )
    # Padding repeats the last kept row, or the first of all, where the likelihood is finite.
    shards, within = np.repeat(np.arange(len(sizes)), counts), np.concatenate(unique)
    if count == 0:
        shards, within = np.flatnonzero(sizes)[:1], np.zeros(1, np.int64)
    index = np.minimum(np.arange(kept_length(count, slots)), len(shards) - 1)
    rows, own = gather(shards[index], within[index])
    weights = (np.arange(len(index)) < count) * (np.ones(len(index)) if own is None else np.asarray(own))
    table = np.full((len(unique), power_of_four(int(counts.max()))), NOWHERE, dtype=np.int32)
    for shard, p in enumerate(unique):
        table[shard, : len(p)] = p
    return Kept(rows, weights, table, count)


_SMALL = 1 << 20
"""Up to this many rows, a fit takes about as long as compiling its programs, so lengths are rounded coarsely."""


def rounded(count: int, num_rows: int) -> int:
    """Round a number of rows up to one of few lengths: by at most 1/8 in a small table, by 1/64 in a large one.

    Examples
    --------
    >>> rounded(60, 1_000), rounded(5_700, 570_000), rounded(6_000, 600_000), rounded(6_000, 6_000_000)
    (60, 6144, 6144, 6016)
    """
    bits = 4 if num_rows <= _SMALL else 7
    step = 1 << max(count.bit_length() - bits, 0)
    return -(-count // step) * step


def flat_length(sizes: np.ndarray) -> int:
    """The length of arrays that hold these shards one after another, such that no slice passes the end.

    For shards of equal size it changes only where the length of a slice does.

    Examples
    --------
    >>> flat_length(np.array([57, 56])), flat_length(np.array([60, 60])), flat_length(np.array([50, 3]))
    (120, 120, 56)
    """
    num_rows, largest = int(sizes.sum()), int(sizes.max())
    slots = rounded(largest, num_rows)
    if largest - sizes.min() <= 1 and num_rows <= _SMALL:
        return len(sizes) * slots
    return rounded(num_rows + slots - largest, num_rows)


def kept_length(count: int, slots: int) -> int:
    """Round the number of kept rows up to 1/32, 1/16, 2/16, ... of a shard, so that other seeds have the same length.

    Examples
    --------
    >>> kept_length(0, 6_144), kept_length(97, 6_144), kept_length(300, 6_144), kept_length(600, 6_144)
    (192, 192, 384, 768)
    """
    step = max(16, slots // 32)
    return step if count <= step else -(-count // (2 * step)) * 2 * step


def power_of_four(count: int) -> int:
    """Round up to 16, 64, 256, ...

    Examples
    --------
    >>> power_of_four(5), power_of_four(17), power_of_four(64)
    (16, 64, 64)
    """
    power = 16
    while power < count:
        power *= 4
    return power


def groups_of(shards: Sequence[int], size: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Cut shards into groups of `size`: (group, group padded with its last shard).

    Examples
    --------
    >>> list(groups_of([4, 5, 6], 2))
    [([4, 5], array([4, 5])), ([6], array([6, 6]))]
    """
    for start in range(0, len(shards), size):
        group = [int(shard) for shard in shards[start : start + size]]
        yield group, padded(group, size)


def padded(shards: Sequence[int], size: int) -> np.ndarray:
    """The shards, the last one repeated up to `size`."""
    return np.array([*shards, *[shards[-1]] * (size - len(shards))])


def make_batch(
    blocks: Blocks,
    shards: np.ndarray,
    rows: Rows,
    row_weights: jax.Array | None,
    starts: np.ndarray,
    kept: Kept | None,
    order: RowOrder | None = None,
) -> Batch:
    """The batch of these shards, which begin at `starts` in the flat arrays of rows and weights.

    All but the rows are small arrays on the host. A compiled program takes them along faster than `jax.device_put`.
    """
    return Batch(
        rows=rows,
        row_weights=row_weights,
        starts=starts.astype(np.int32),
        sizes=blocks.sizes[shards].astype(np.int32),
        factors=(1 / blocks.shares[shards]).astype(float_type()),
        kept_rows=kept.rows if kept else None,
        kept_weights=np.asarray(kept.weights, float_type()) if kept else None,
        kept_positions=kept.positions[shards] if kept else None,
        capacity=blocks.slots,
        order=order,
    )
