"""Shards in memory, shards of a larger whole, and shards whose rows are elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import final

import jax
import numpy as np

from shardmc.data.batch import Batch, Blocks, Kept, Rows, groups_of, keep_rows, make_batch
from shardmc.errors import OptionError


@final
@dataclass(frozen=True, eq=False, repr=False)
class ArrayBlocks(Blocks):
    """Shards in flat arrays on the device. A batch holds slices of them and copies nothing."""

    rows: Rows  # (num_rows, ...)
    row_weights: jax.Array | None  # (num_rows,)
    sizes: np.ndarray
    starts: np.ndarray  # (shard,) first row of each
    kept: Kept | None = None

    @property
    def num_kept(self) -> int:
        return self.kept.count if self.kept else 0

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        for group, padded in groups_of(shards, size):
            yield group, make_batch(self, padded, self.rows, self.row_weights, self.starts[padded], self.kept)

    def keep(self, positions: Sequence[np.ndarray]) -> ArrayBlocks:
        def gather(shards: np.ndarray, within: np.ndarray) -> tuple[Rows, jax.Array | None]:
            index = (self.starts[shards] + within).astype(np.int32)
            return _rows_at((self.rows, self.row_weights), index)

        return replace(self, kept=keep_rows(positions, self.sizes, gather))


@jax.jit
def _rows_at(arrays: tuple[Rows, jax.Array | None], index: jax.Array) -> tuple[Rows, jax.Array | None]:
    return jax.tree.map(lambda a: a.at[index].get(mode="promise_in_bounds"), arrays)


@final
@dataclass(frozen=True, eq=False, repr=False)
class RescaledBlocks(Blocks):
    """Blocks in which every row counts `factor` times.

    If these shards hold M of N rows, factor N / M rescales their subposteriors to N rows. Shares are still relative
    to these shards and sum to 1.
    """

    blocks: Blocks
    factor: float
    sizes: np.ndarray = field(init=False)
    portable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", self.blocks.sizes)
        object.__setattr__(self, "portable", self.blocks.portable)

    @property
    def num_kept(self) -> int:
        return self.blocks.num_kept

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        for names, batch in self.blocks.batches(shards, size):
            kept = None if batch.kept_weights is None else batch.kept_weights * self.factor
            yield names, replace(batch, factors=batch.factors * self.factor, kept_weights=kept)

    def keep(self, positions: Sequence[np.ndarray]) -> RescaledBlocks:
        return RescaledBlocks(self.blocks.keep(positions), self.factor)


@final
@dataclass(frozen=True, eq=False, repr=False)
class AbsentBlocks(Blocks):
    """Sizes and shares of shards whose rows are not available here."""

    sizes: np.ndarray
    parts: np.ndarray  # (shard,) proportional to the shares

    @cached_property
    def shares(self) -> np.ndarray:
        return self.parts / self.parts.sum()

    @property
    def num_kept(self) -> int:
        return 0

    def batches(self, shards: Sequence[int], size: int) -> Iterator[tuple[Sequence[int], Batch]]:
        raise OptionError("This needs the rows, but only the draws and modes of their shards are available.")

    def keep(self, positions: Sequence[np.ndarray]) -> Blocks:
        raise OptionError("The rows are not available, so none can be kept in every shard.")
