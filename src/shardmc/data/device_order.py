"""Rows that stay where they are on an accelerator: the order in which shards read them, computed there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.data.assignment import (
    BINS,
    MOST_LEVELS,
    SAMPLE,
    Assignment,
    Shuffle,
    Strata,
    refuse_levels,
    seed_for,
)
from shardmc.errors import DataError
from shardmc.programs.compiled import jit


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyedOrder:
    """The inverse of a `Shuffle`, computed for the positions that are asked for. It needs no memory, but time."""

    keys: jax.Array  # (round, 2) what is added and what multiplies
    num_rows: int = field(metadata={"static": True})
    halves: tuple[int, int] = field(metadata={"static": True})

    @staticmethod
    def of(shuffle: Shuffle) -> KeyedOrder:
        return KeyedOrder(jax.device_put(np.array(shuffle.keys)), shuffle.num_rows, shuffle.halves)

    def rows_at(self, positions: jax.Array) -> jax.Array:
        """The numbers of the rows at these positions. A position past the end counts as the last."""
        last = jnp.asarray(self.num_rows - 1, jnp.uint32)
        index = self._back(jnp.minimum(positions.astype(jnp.uint32), last))
        # The network permutes a power of two. What leads past the last row goes through again.
        index = lax.while_loop(
            lambda index: (index > last).any(),
            lambda index: jnp.where(index > last, self._back(index), index),
            index,
        )
        return index.astype(jnp.int32)

    def take(self, arrays: Sequence[jax.Array], start: jax.Array, count: int) -> list[jax.Array]:
        """The entries (count, ...) of flat arrays that lie one after another in this order."""
        rows = self.rows_at(start + jnp.arange(count, dtype=jnp.int32))
        return [_gathered(array, rows) for array in arrays]

    def _back(self, index: jax.Array) -> jax.Array:
        high_bits, low_bits = self.halves
        high, low = index >> low_bits, index & jnp.asarray((1 << low_bits) - 1, jnp.uint32)
        for number in reversed(range(self.keys.shape[0])):
            if number % 2:
                low ^= _hash(high, self.keys[number]) >> (32 - low_bits)
            else:
                high ^= _hash(low, self.keys[number]) >> (32 - high_bits)
        return high << low_bits | low


def _gathered(array: jax.Array, rows: jax.Array) -> jax.Array:
    return array.at[rows].get(mode="promise_in_bounds")


def _hash(half: jax.Array, key: jax.Array) -> jax.Array:
    """The hash of `Shuffle`, for words of 32 bits."""
    mixed = (half + key[..., 0]) * key[..., 1]
    mixed ^= mixed >> 16
    return mixed * jnp.asarray(0x9E3779B1, jnp.uint32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ListedOrder:
    """An order that is a list of row numbers: four bytes for each row."""

    rows: jax.Array  # (num_rows,) int32
    copies: tuple[jax.Array | None, ...] = ()
    """Copies, in this order, of some of the arrays that are taken. Reading them is faster than gathering entries from
    all over the memory, above all if an entry is a single number."""

    def rows_at(self, positions: jax.Array) -> jax.Array:
        return self.rows.at[positions].get(mode="clip")

    def take(self, arrays: Sequence[jax.Array], start: jax.Array, count: int) -> list[jax.Array]:
        """As for a `KeyedOrder`."""
        rows = self.rows_at(start + jnp.arange(count, dtype=jnp.int32))
        copies = self.copies or (None,) * len(arrays)
        return [
            _gathered(array, rows) if copy is None else lax.dynamic_slice_in_dim(copy, start, count)
            for array, copy in zip(arrays, copies, strict=True)
        ]


RowOrder = KeyedOrder | ListedOrder
"""rows_at(positions): the numbers of the rows at these positions of the shards, laid one after another."""


def with_copies(order: RowOrder, arrays: Sequence[jax.Array], length: int) -> RowOrder:
    """The order with copies of arrays, those with the least bytes first, as far as half of the free memory goes.

    A copy has `length` entries, at least as many as the array: the last one is repeated.
    """
    copies: list[jax.Array | None] = [None] * len(arrays)
    room = _free_bytes() / 2
    for i in sorted(range(len(arrays)), key=lambda i: arrays[i].nbytes):
        room -= arrays[i].nbytes / len(arrays[i]) * length
        if room < 0 or not isinstance(order, ListedOrder):
            return order
        copies[i] = _copied(order, arrays[i], length)
        order = ListedOrder(order.rows, tuple(copies))
    return order


@partial(jit, static_argnums=2)
def _copied(order: ListedOrder, array: jax.Array, length: int) -> jax.Array:
    return _gathered(array, order.rows_at(jnp.arange(length, dtype=jnp.int32)))


def random_order(num_rows: int, seed: int) -> RowOrder:
    """The order in which `Assignment` gives rows to shards, without strata.

    It is listed where the device has room: every stage reads the order again, and computing it takes longer.
    """
    shuffle = Shuffle(num_rows, seed_for("partition", seed, 0))
    if shuffle.table is not None:
        return ListedOrder(jax.device_put(np.argsort(shuffle.table).astype(np.int32)))
    keyed = KeyedOrder.of(shuffle)
    return as_list(keyed) if _free_bytes() > _BYTES_TO_LIST * num_rows else keyed


@jit
def as_list(order: KeyedOrder) -> ListedOrder:
    """The same order as a list."""
    return ListedOrder(order.rows_at(jnp.arange(order.num_rows, dtype=jnp.int32)))


_BYTES_TO_LIST = 32
"""Free memory per row that is needed to list an order: four bytes for the list, up to four times that to compute it,
and as much again for the stages that follow."""


def _free_bytes() -> float:
    """The memory that is free on the device, 0 if it is not known."""
    known = jax.local_devices()[0].memory_stats() or {}
    return known.get("bytes_limit", 0) - known.get("bytes_in_use", 0)


def stratified_order(strata: Strata, codes: jax.Array, sizes: np.ndarray, seed: int | None) -> ListedOrder:
    """The order of rows by shard and row number, with every shard's part of each stratum. It is made by two sorts."""
    assignment = Assignment(sizes, strata.counts, seed)
    firsts = np.cumsum(strata.counts) - strata.counts
    ends = (firsts[:, None] + assignment.ends).ravel().astype(np.int32)
    shuffles = None if seed is None else _Shuffles.of([s for s in assignment.shuffles if s is not None])
    return ListedOrder(_stratified(codes, firsts.astype(np.int32), ends, len(sizes), shuffles))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Shuffles:
    """The shuffles of all strata: tables of the small ones, keys of the others."""

    table: jax.Array
    table_start: jax.Array  # (stratum,) or -1
    keys: jax.Array  # (round, stratum, 2)
    halves: jax.Array  # (2, stratum)
    num_rows: jax.Array  # (stratum,)

    @staticmethod
    def of(shuffles: Sequence[Shuffle]) -> _Shuffles:
        lengths = [0 if s.table is None else len(s.table) for s in shuffles]
        starts = np.where(lengths, np.cumsum(lengths) - lengths, -1)
        tables = [s.table for s in shuffles if s.table is not None]
        return _Shuffles(
            jax.device_put(np.concatenate([*tables, [0]]).astype(np.uint32)),
            jax.device_put(starts.astype(np.int32)),
            jax.device_put(np.array([s.keys for s in shuffles]).swapaxes(0, 1)),
            jax.device_put(np.array([s.halves for s in shuffles], np.uint32).T),
            jax.device_put(np.array([s.num_rows for s in shuffles], np.uint32)),
        )

    def positions(self, stratum: jax.Array, rank: jax.Array) -> jax.Array:
        """Where the rows of these ranks lie in the shuffled order of their strata."""
        last = self.num_rows[stratum] - 1
        start = self.table_start[stratum]
        index = self._forth(stratum, rank.astype(jnp.uint32))
        in_table = self.table[jnp.where(start >= 0, start + rank, 0)]
        index = jnp.where(start >= 0, in_table, index)
        index = lax.while_loop(
            lambda index: (index > last).any(),
            lambda index: jnp.where(index > last, self._forth(stratum, index), index),
            index,
        )
        return index.astype(jnp.int32)

    def _forth(self, stratum: jax.Array, index: jax.Array) -> jax.Array:
        high_bits, low_bits = self.halves[0][stratum], self.halves[1][stratum]
        one = jnp.asarray(1, jnp.uint32)
        high, low = index >> low_bits, index & ((one << low_bits) - one)
        for number in range(self.keys.shape[0]):
            key = self.keys[number][stratum]
            if number % 2:
                low ^= _hash(high, key) >> (32 - low_bits)
            else:
                high ^= _hash(low, key) >> (32 - high_bits)
        return high << low_bits | low


@jit
def _stratified(
    codes: jax.Array, firsts: jax.Array, ends: jax.Array, shards: int, shuffles: _Shuffles | None
) -> jax.Array:
    by_stratum = jnp.argsort(codes, stable=True).astype(jnp.int32)
    stratum = codes[by_stratum].astype(jnp.int32)
    first = firsts[stratum]
    rank = jnp.arange(len(codes), dtype=jnp.int32) - first
    position = rank if shuffles is None else shuffles.positions(stratum, rank)
    shard = jnp.searchsorted(ends, first + position, side="right").astype(jnp.int32) - stratum * shards
    of_row = jnp.zeros(len(codes), jnp.int32).at[by_stratum].set(shard, unique_indices=True)
    return jnp.argsort(of_row, stable=True).astype(jnp.int32)


def find_strata_on_device(what: str, values: jax.Array) -> tuple[Strata, jax.Array]:
    """The strata of an array on a device, as `find_strata` finds them, and the stratum of every row."""
    if values.ndim != 1:
        raise DataError(f"{what} has shape {values.shape[1:]} per row; it must have one value per row.")
    real = jnp.issubdtype(values.dtype, jnp.floating)
    if real and bool(jnp.isnan(values).any()):
        raise DataError(f"{what} has missing values; replace them by a separate value.")
    most = BINS if real else MOST_LEVELS
    points = np.unique(np.asarray(_some_levels(values, most + 1)))
    if len(points) > most:
        if not real and not jnp.issubdtype(values.dtype, jnp.integer):
            raise refuse_levels(what)
        sample = np.asarray(values[:: max(1, len(values) // SAMPLE)])
        edges = np.unique(np.quantile(sample, np.arange(1, BINS) / BINS))
        found = Strata(edges, True, np.empty(0))
    else:
        found = Strata(points, False, np.empty(0))
    side = "right" if found.binned else "left"
    codes = jnp.searchsorted(jnp.asarray(found.points, values.dtype), values, side=side)
    counts = jnp.bincount(codes, length=len(found.points) + found.binned)
    return Strata(found.points, found.binned, np.asarray(counts, np.int64)), codes


def _some_levels(values: jax.Array, most: int) -> jax.Array:
    """Distinct values, at least as many as there are or `most`."""
    return jnp.unique(values, size=most, fill_value=values[0])
