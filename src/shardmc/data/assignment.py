"""Which shard each row goes to: exact sizes, proportional within every stratum, random by a seeded permutation."""

from __future__ import annotations

import numbers
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.errors import DataError, OptionError
from shardmc.programs.threads import in_parts

_TABLE = 1024  # up to this many rows the permutation is a table, uniform over all permutations
_ROUNDS = 8


def seed_for(purpose: str, seed: int, *more: int) -> np.random.SeedSequence:
    """The seed of one purpose, so that no two uses of the user's seed share random numbers."""
    return np.random.SeedSequence([zlib.crc32(purpose.encode()), *more, seed])


def spread_positions(num_rows: int, count: int, seed: int) -> np.ndarray:
    """Sorted random row numbers, one from each of `count` equal stretches of the rows.

    Examples
    --------
    >>> spread_positions(1000, 4, seed=0) // 250
    array([0, 1, 2, 3])
    """
    if num_rows <= count:
        return np.arange(num_rows)
    edges = np.arange(count + 1) * num_rows // count
    return np.random.default_rng(seed_for("sample", seed)).integers(edges[:-1], edges[1:])


@final
class Shuffle:
    """A pseudo-random permutation of 0, ..., num_rows - 1 that needs no memory.

    A Feistel network permutes the smallest power of two that holds all rows: the index is cut into two halves,
    and each round changes one half by a keyed hash of the other. An index past the last row goes through again (cycle
    walking), which keeps the map one to one. The position of a row therefore depends only on the seed, the number of
    rows and the row's own number, and not on how the rows are read.

    Parameters
    ----------
    num_rows
        The number of rows.
    seed
        The seed; `seed_for` makes one for a purpose.

    Examples
    --------
    >>> shuffle = Shuffle(5000, seed_for("example", 0))
    >>> sorted(shuffle(np.arange(5000))) == list(range(5000))
    True
    """

    def __init__(self, num_rows: int, seed: np.random.SeedSequence) -> None:
        self.num_rows = num_rows
        self.table = np.random.default_rng(seed).permutation(num_rows) if num_rows <= _TABLE else None
        bits = max(num_rows - 1, 1).bit_length()
        self.halves = bits // 2, bits - bits // 2
        # Half of a word must hold half of an index, so that the upper bits of the hash depend on all of its input.
        self._type = np.uint32 if bits <= 32 else np.uint64
        keys = seed.generate_state(2 * _ROUNDS, self._type).reshape(_ROUNDS, 2)
        self.keys = [(add, multiply | self._type(1)) for add, multiply in keys]

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Positions (int64) of these row numbers in the shuffled order."""
        if self.table is not None:
            return self.table[rows]
        position = self._permute(rows.astype(self._type))
        beyond = np.flatnonzero(position >= self.num_rows)
        while len(beyond):
            again = self._permute(position[beyond])
            position[beyond] = again
            beyond = beyond[again >= self.num_rows]
        return position.astype(np.int64)

    def _permute(self, index: np.ndarray) -> np.ndarray:
        """One pass through the network, a permutation of 0, ..., 2^bits - 1."""
        word = 8 * index.dtype.itemsize
        high_bits, low_bits = self.halves
        high, low = index >> low_bits, index & self._type((1 << low_bits) - 1)
        for number, key in enumerate(self.keys):
            if number % 2:
                low ^= self._hash(high, key) >> (word - low_bits)
            else:
                high ^= self._hash(low, key) >> (word - high_bits)
        return high << low_bits | low

    def _hash(self, half: np.ndarray, key: tuple[np.unsignedinteger, np.unsignedinteger]) -> np.ndarray:
        """A keyed hash whose upper bits are good: add, multiply, fold, multiply (all modulo the word)."""
        add, multiply = key
        mixed = (half + add) * multiply
        mixed ^= mixed >> (4 * mixed.dtype.itemsize)
        mixed *= self._type(0x9E3779B1 if self._type is np.uint32 else 0x9E3779B97F4A7C15)
        return mixed


def shard_sizes(num_rows: int, shards: int, sizes: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
    """The number of rows of each shard: the sizes asked for, or as equal as possible.

    Examples
    --------
    >>> shard_sizes(10, 3)
    array([3, 3, 4])
    """
    if not isinstance(shards, numbers.Integral) or shards < 1:
        raise OptionError(
            f"shards is {shards!r}; it must be a whole number from 1 to the number of rows, {num_rows}."
        )
    shards = int(shards)
    if shards > num_rows:
        raise OptionError(
            f"{shards} shards were asked for, but there are only {num_rows} rows; use at most {num_rows} shards."
        )
    if sizes is None:
        return num_rows // shards + (np.arange(shards) >= shards - num_rows % shards).astype(np.int64)
    given = np.asarray(sizes)
    if given.dtype.kind not in "iu":
        raise OptionError(f"sizes must be whole numbers, not {given.dtype}.")
    given = given.astype(np.int64)
    if given.shape != (shards,):
        raise OptionError(f"sizes has {given.size} entries; it needs one for each of the {shards} shards.")
    if (given < 1).any():
        raise OptionError(
            f"sizes gives shard {int(given.argmin())} {given.min()} rows; every shard needs at least one row."
        )
    if given.sum() != num_rows:
        raise OptionError(
            f"sizes add up to {given.sum()}, but there are {num_rows} rows; every row must be in one shard."
        )
    return given


def shard_starts(sizes: np.ndarray) -> np.ndarray:
    """Where each shard begins in flat arrays: one after another, with the largest shard last.

    A slice of the largest size that starts at any shard's first row then stays inside the arrays.

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


def parts_of(total: int, sizes: np.ndarray) -> np.ndarray:
    """How many of `total` rows each shard gets, in proportion to the shards' sizes.

    Webster's method: each row goes to the shard with the smallest (c_i + 1/2) / n_i, where c_i is the number of rows
    it already has. A larger total never takes a row away from a shard, and a total of sum(n_i) gives n_i exactly.

    Examples
    --------
    >>> parts_of(5, np.array([4, 4, 2]))
    array([2, 2, 1])
    """
    counts = (2 * total * sizes + sizes.sum()) // (2 * sizes.sum())
    # The guess is off by a few rows: take back the last row or assign the next one until it is right.
    while True:
        next_score, last_score = (counts + 0.5) / sizes, (counts - 0.5) / sizes
        receiver = int(next_score.argmin())
        giver = len(sizes) - 1 - int(last_score[::-1].argmax())
        excess = int(counts.sum()) - total
        if excess == 0 and (last_score[giver], giver) < (next_score[receiver], receiver):
            return counts
        counts[giver] -= excess >= 0
        counts[receiver] += excess <= 0


@final
class Assignment:
    """Assigns rows to shards, in the order in which they are read.

    Parameters
    ----------
    sizes
        The number of rows of each shard, (shard,).
    strata
        The number of rows of each stratum, (stratum,). Without strata, all rows are one stratum.
    seed
        The seed of the random order within each stratum. None keeps the rows in their own order.

    Examples
    --------
    >>> Assignment(np.array([2, 3]), np.array([5]), seed=None).next(None, 5)
    array([0, 0, 1, 1, 1], dtype=int32)
    """

    def __init__(self, sizes: np.ndarray, strata: np.ndarray, seed: int | None) -> None:
        self.sizes = sizes
        prefixes = np.concatenate([[0], np.cumsum(strata)])
        received = np.stack([parts_of(int(total), sizes) for total in prefixes])
        self.ends = np.cumsum(np.diff(received, axis=0), axis=1)  # (stratum, shard)
        self._seen = np.zeros(len(strata), dtype=np.int64)
        self.shuffles = [
            None if seed is None else Shuffle(int(count), seed_for("partition", seed, stratum))
            for stratum, count in enumerate(strata)
        ]

    def next(self, strata: np.ndarray | None, count: int) -> np.ndarray:
        """The shards of the next `count` rows, given their strata, (row,) int32."""
        if strata is None:
            return self._in_stratum(0, count)
        shards = np.empty(count, dtype=np.int32)
        order = np.argsort(strata, kind="stable")
        present, starts = np.unique(strata[order], return_index=True)
        for stratum, members in zip(present, np.split(order, starts[1:]), strict=True):
            shards[members] = self._in_stratum(int(stratum), len(members))
        return shards

    def _in_stratum(self, stratum: int, count: int) -> np.ndarray:
        start = self._seen[stratum]
        self._seen[stratum] += count
        shuffle, shards = self.shuffles[stratum], np.empty(count, dtype=np.int32)

        def assign(part: slice) -> None:
            rows = np.arange(start + part.start, start + part.stop)
            shards[part] = _stretch_of(rows if shuffle is None else shuffle(rows), self.ends[stratum])

        in_parts(assign, count, count)
        return shards


def _stretch_of(positions: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The first stretch that ends after each position: searchsorted, but faster for stretches of similar length."""
    shift = max(0, int(ends[-1]).bit_length() - len(ends).bit_length() - 2)
    cells = np.arange((int(ends[-1]) >> shift) + 1) << shift
    stretch = np.searchsorted(ends, cells, side="right").astype(np.int32)[positions >> shift]
    while (beyond := positions >= ends[stretch]).any():
        stretch += beyond
    return stretch


MOST_LEVELS = 1000
BINS = 20  # a floating-point column with no more distinct values than this is not binned
SAMPLE = 100_000  # values from which the edges of the bins are computed


@dataclass(frozen=True)
class Strata:
    """The strata of a column, and the number of rows in each."""

    points: np.ndarray  # sorted: the distinct values, or the inner edges of bins
    binned: bool
    counts: np.ndarray  # (stratum,)

    def codes(self, values: np.ndarray) -> np.ndarray:
        """The strata of these values, (row,)."""
        return np.searchsorted(self.points, _plain(values), side="right" if self.binned else "left")


def find_strata(what: str, pieces: Callable[[], Iterator[np.ndarray]], num_rows: int) -> Strata:
    """Find the strata of a column, read piece by piece: once, or twice if its values have to be binned.

    `what` names the column in messages.
    """
    points, counts = np.zeros(0), np.zeros(0, dtype=np.int64)
    sample: list[np.ndarray] = []
    row, stride = 0, max(1, num_rows // SAMPLE)
    for piece in pieces():
        values = _checked(what, piece)
        sample.append(values[-row % stride :: stride])
        row += len(values)
        if len(points) <= MOST_LEVELS:
            points, counts = _merge(points, counts, *np.unique(values, return_counts=True))
    if len(points) <= (BINS if points.dtype.kind == "f" else MOST_LEVELS):
        return Strata(points, False, counts)
    if points.dtype.kind not in "fiu":
        raise refuse_levels(what)
    edges = np.unique(np.quantile(np.concatenate(sample), np.arange(1, BINS) / BINS))
    bins = Strata(edges, True, np.zeros(len(edges) + 1, dtype=np.int64))
    for piece in pieces():
        bins.counts[:] += np.bincount(bins.codes(piece), minlength=len(bins.counts))
    return bins


def refuse_levels(what: str) -> DataError:
    return DataError(
        f"{what} has more than {MOST_LEVELS} different values; group them, or stratify by another column."
    )


def _plain(values: np.ndarray) -> np.ndarray:
    """Values that can be sorted. Objects become text, so that missing is a level of its own."""
    return values.astype(str) if values.dtype.kind == "O" else values


def _checked(what: str, piece: np.ndarray) -> np.ndarray:
    if piece.ndim != 1:
        raise DataError(f"{what} has shape {piece.shape[1:]} per row; it must have one value per row.")
    if piece.dtype.kind == "f" and np.isnan(piece).any():
        raise DataError(f"{what} has missing values; replace them by a separate value.")
    return _plain(piece)


def _merge(
    points: np.ndarray, counts: np.ndarray, found: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    if not len(points):
        return found, number
    merged, inverse = np.unique(np.concatenate([points, found]), return_inverse=True)
    return merged, np.bincount(inverse, weights=np.concatenate([counts, number])).astype(np.int64)
