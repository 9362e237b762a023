"""Shards in memory, and the small table of kept rows that any kind of shards may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Batch, Blocks, Rows
from shardmc.data.columns import float_type


@dataclass(frozen=True)
class Kept:
    """Rows that every shard has besides its own, padded so that their number takes few different values."""

    rows: Rows  # (padded, ...)
    weights: jax.Array  # (padded,) the user's own weights or ones, 0 for padding
    positions: np.ndarray  # (shard, most) int32, `capacity` for none
    count: int


def find_kept(
    positions: Sequence[np.ndarray],
    capacity: int,
    gather: Callable[[int, np.ndarray], tuple[Rows, np.ndarray | None]],
) -> Kept | None:
    """The kept rows at these positions within the shards; `gather(shard, positions)` fetches rows and their weights."""
    unique = [np.unique(np.asarray(p, dtype=np.int64)) for p in positions]
    count = sum(len(p) for p in unique)
    if count == 0:
        return None
    fetched = [gather(shard, p) for shard, p in enumerate(unique) if len(p)]
    padding = _padded(count) - count
    rows = jax.tree.map(lambda *parts: _joined(parts, padding), *(rows for rows, _ in fetched))
    own = [np.ones(len(jax.tree.leaves(r)[0])) if w is None else np.asarray(w) for r, w in fetched]
    weights = np.concatenate([*own, np.zeros(padding)]).astype(float_type())
    table = np.full((len(unique), _padded(max(len(p) for p in unique))), capacity, dtype=np.int32)
    for shard, p in enumerate(unique):
        table[shard, : len(p)] = p
    return Kept(rows, jax.device_put(weights), table, count)


def _joined(parts: Sequence[np.ndarray | jax.Array], padding: int) -> jax.Array:
    """Parts one after another; padding repeats a real row, at which a likelihood is finite."""
    last = parts[-1][-1:]
    return jnp.concatenate([*parts, jnp.repeat(last, padding, axis=0)])


def _padded(count: int) -> int:
    """The next of few lengths: a multiple of 8, or of an eighth of the power of two below."""
    step = max(8, 1 << max(count.bit_length() - 4, 0))
    return -(-count // step) * step


def groups_of(shards: Sequence[int], size: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Cut shards into groups of `size`: (group, group with its last shard repeated to that length)."""
    for start in range(0, len(shards), size):
        group = [int(shard) for shard in shards[start : start + size]]
        yield group, np.array(group + group[-1:] * (size - len(group)))


@final
@dataclass(frozen=True)
class ArrayBlocks(Blocks):
    """Shards one after another in flat arrays on the device: a batch names stretches of them and copies nothing."""

    rows: Rows  # (num_rows, ...)
    row_weights: jax.Array | None
    sizes: np.ndarray
    kept: Kept | None = field(default=None)

    @property
    def num_rows(self) -> int:
        return int(self.sizes.sum())

    @property
    def shares(self) -> np.ndarray:
        return self.sizes / self.num_rows

    @property
    def capacity(self) -> int:
        return int(self.sizes.max())

    @property
    def num_kept(self) -> int:
        return self.kept.count if self.kept else 0

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        starts = np.cumsum(self.sizes) - self.sizes
        for group, padded in groups_of(shards, size):
            kept = self.kept
            yield (
                group,
                Batch(
                    rows=self.rows,
                    row_weights=self.row_weights,
                    starts=jnp.asarray(starts[padded], dtype=jnp.int32),
                    sizes=jnp.asarray(self.sizes[padded], dtype=jnp.int32),
                    factors=jnp.asarray(1 / self.shares[padded], dtype=float_type()),
                    kept_rows=kept.rows if kept else None,
                    kept_weights=kept.weights if kept else None,
                    kept_positions=jnp.asarray(kept.positions[padded]) if kept else None,
                    capacity=self.capacity,
                ),
            )

    def keep(self, positions: Sequence[np.ndarray]) -> ArrayBlocks:
        starts = np.cumsum(self.sizes) - self.sizes

        def gather(shard: int, within: np.ndarray) -> tuple[Rows, np.ndarray | None]:
            index = jnp.asarray(starts[shard] + within, dtype=jnp.int32)
            rows = jax.tree.map(lambda a: a[index], self.rows)
            return rows, None if self.row_weights is None else np.asarray(self.row_weights[index])

        return replace(self, kept=find_kept(positions, self.capacity, gather))
