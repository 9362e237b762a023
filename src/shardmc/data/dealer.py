"""Which shard a row goes to: exact sizes, in proportion within every stratum, and random within it."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import final

import numpy as np

from shardmc.data.shuffle import Shuffle, seed_for
from shardmc.errors import OptionError


def shard_sizes(num_rows: int, shards: int, sizes: Sequence[int] | None = None) -> np.ndarray:
    """Rows of each shard: the ones asked for, or as equal as they can be.

    Examples
    --------
    >>> shard_sizes(10, 3)
    array([3, 3, 4])
    """
    if not isinstance(shards, numbers.Integral) or shards < 1:
        raise OptionError(
            f"shards is {shards!r}; a whole number from 1 to the number of rows, {num_rows}, is needed."
        )
    shards = int(shards)
    if shards > num_rows:
        raise OptionError(
            f"{shards} shards were asked for, but there are only {num_rows} rows; take at most {num_rows} shards."
        )
    if sizes is None:
        return num_rows // shards + (np.arange(shards) >= shards - num_rows % shards).astype(np.int64)
    given = np.asarray(sizes)
    if given.dtype.kind not in "iu":
        raise OptionError(f"sizes must be whole numbers, not {given.dtype}.")
    given = given.astype(np.int64)
    if given.shape != (shards,):
        raise OptionError(f"sizes has {given.size} entries; one for each of the {shards} shards is needed.")
    if (given < 1).any():
        raise OptionError(
            f"sizes gives shard {int(given.argmin())} {given.min()} rows; every shard needs at least one."
        )
    if given.sum() != num_rows:
        raise OptionError(
            f"sizes add up to {given.sum()}, but there are {num_rows} rows; every row needs one shard."
        )
    return given


def shard_starts(sizes: np.ndarray) -> np.ndarray:
    """Where each shard begins in flat arrays: one after another, but the largest shard at the end.

    A slice of the largest size from any shard's first row then stays inside the arrays.

    Examples
    --------
    >>> shard_starts(np.array([2, 5, 3]))
    array([0, 5, 2])
    """
    largest = len(sizes) - 1 - int(sizes[::-1].argmax())
    order = np.append(np.delete(np.arange(len(sizes)), largest), largest)
    starts = np.empty_like(sizes)
    starts[order] = np.cumsum(sizes[order]) - sizes[order]
    return starts


def apportion(total: int, sizes: np.ndarray) -> np.ndarray:
    """How many of `total` rows each shard gets, in proportion to the shards' sizes.

    Webster's method: the rows are dealt one by one to the shard with the smallest (c_i + 1/2) / n_i, c_i what it
    has already. A larger total then never takes a row away from a shard, and a total of sum(n_i) gives n_i exactly.

    Examples
    --------
    >>> apportion(5, np.array([4, 4, 2]))
    array([2, 2, 1])
    """
    counts = (2 * total * sizes + sizes.sum()) // (2 * sizes.sum())
    # The guess is off by a few rows; one at a time, the last card dealt comes back or the next is dealt.
    while True:
        next_card, last_card = (counts + 0.5) / sizes, (counts - 0.5) / sizes
        receiver = int(next_card.argmin())
        giver = len(sizes) - 1 - int(last_card[::-1].argmax())
        excess = int(counts.sum()) - total
        if excess == 0 and (last_card[giver], giver) < (next_card[receiver], receiver):
            return counts
        counts[giver] -= excess >= 0
        counts[receiver] += excess <= 0


@final
class Dealer:
    """Deals rows, handed to it in their order, to shards.

    Parameters
    ----------
    sizes
        Rows of each shard, (shard,).
    strata
        Rows of each stratum, (stratum,); they add up to the same number. Without strata: all rows are one.
    seed
        The seed of the random order within each stratum; None deals the rows in their own order.
    """

    def __init__(self, sizes: np.ndarray, strata: np.ndarray, seed: int | None) -> None:
        self.sizes = sizes
        prefixes = np.concatenate([[0], np.cumsum(strata)])
        received = np.stack([apportion(int(total), sizes) for total in prefixes])
        self._ends = np.cumsum(np.diff(received, axis=0), axis=1)  # (stratum, shard)
        self._seen = np.zeros(len(strata), dtype=np.int64)
        self._shuffles = [
            None if seed is None else Shuffle(int(count), seed_for("partition", seed, stratum))
            for stratum, count in enumerate(strata)
        ]

    def deal(self, strata: np.ndarray | None, count: int) -> np.ndarray:
        """The shards of the next `count` rows, given their strata, (row,) int32."""
        if strata is None:
            return self._deal_stratum(0, count)
        shards = np.empty(count, dtype=np.int32)
        order = np.argsort(strata, kind="stable")
        present, starts = np.unique(strata[order], return_index=True)
        for stratum, members in zip(present, np.split(order, starts[1:]), strict=True):
            shards[members] = self._deal_stratum(int(stratum), len(members))
        return shards

    def _deal_stratum(self, stratum: int, count: int) -> np.ndarray:
        start = self._seen[stratum]
        self._seen[stratum] += count
        rows = np.arange(start, start + count)
        shuffle = self._shuffles[stratum]
        positions = rows if shuffle is None else shuffle(rows)
        return _stretch_of(positions, self._ends[stratum])


def _stretch_of(positions: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The first stretch that ends beyond each position: searchsorted, faster where stretches are alike."""
    shift = max(0, int(ends[-1]).bit_length() - len(ends).bit_length() - 2)
    cells = np.arange((int(ends[-1]) >> shift) + 1) << shift
    stretch = np.searchsorted(ends, cells, side="right").astype(np.int32)[positions >> shift]
    while (beyond := positions >= ends[stretch]).any():
        stretch += beyond
    return stretch
