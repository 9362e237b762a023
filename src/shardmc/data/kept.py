"""Rows that every shard has besides its own, in a table whose length takes few different values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from shardmc.data.batch import Rows
from shardmc.data.columns import float_type
from shardmc.errors import OptionError


@dataclass(frozen=True, eq=False)
class Kept:
    """Kept rows, and where in their own shards they are, to be given weight 0 there."""

    rows: Rows  # (padded, ...) on the device; in a copy from another process, NumPy's
    weights: jax.Array  # (padded,) the user's own weights or ones, 0 for padding
    positions: np.ndarray  # (shard, most) int32; `capacity` for none
    count: int

    def __getstate__(self) -> dict[str, Any]:
        # In a process that JAX has in single precision, a pickled JAX array would come back in it.
        return {**self.__dict__, "rows": jax.device_get(self.rows), "weights": jax.device_get(self.weights)}


Gather = Callable[[np.ndarray, np.ndarray], tuple[Rows, np.ndarray | jax.Array | None]]
"""gather(shards, positions): the rows there, and the user's weights of them."""


def keep_rows(positions: Sequence[np.ndarray], sizes: np.ndarray, gather: Gather) -> Kept | None:
    """The kept rows at these positions within each shard; None where there are none."""
    if len(positions) == 0:
        return None
    if len(positions) != len(sizes):
        raise OptionError(f"Positions of {len(positions)} shards were given; there are {len(sizes)} shards.")
    unique = [np.unique(np.asarray(p, dtype=np.int64)) for p in positions]
    counts = np.array([len(p) for p in unique])
    count = int(counts.sum())
    if count == 0:
        return None
    for shard, p in enumerate(unique):
        if len(p) and not 0 <= p[0] <= p[-1] < sizes[shard]:
            raise OptionError(
                f"Row {p[-1]} of shard {shard} cannot be kept: the shard has {sizes[shard]} rows."
            )
    # Padding repeats the last kept row: a likelihood that is finite at real rows is finite there.
    index = np.minimum(np.arange(padded_length(count)), count - 1)
    rows, own = gather(np.repeat(np.arange(len(sizes)), counts)[index], np.concatenate(unique)[index])
    weights = (np.arange(len(index)) < count) * (np.ones(len(index)) if own is None else np.asarray(own))
    table = np.full((len(unique), padded_length(int(counts.max()))), sizes.max(), dtype=np.int32)
    for shard, p in enumerate(unique):
        table[shard, : len(p)] = p
    return Kept(rows, jax.device_put(weights.astype(float_type())), table, count)


def padded_length(count: int) -> int:
    """The next of few lengths: a multiple of 8, and of an eighth of the power of two below.

    Examples
    --------
    >>> padded_length(3), padded_length(100), padded_length(6369)
    (8, 104, 6656)
    """
    step = max(8, 1 << max(count.bit_length() - 4, 0))
    return -(-count // step) * step
