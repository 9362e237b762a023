"""A seeded random permutation, computed row by row without a table of all rows."""

from __future__ import annotations

import zlib
from typing import final

import numpy as np

_TABLE = 1024  # up to this many rows the permutation is a table, uniform over all permutations
_ROUNDS = 8


def seed_for(purpose: str, seed: int, *more: int) -> np.random.SeedSequence:
    """The seed of one purpose, so that no two uses of the user's seed share random numbers."""
    return np.random.SeedSequence([zlib.crc32(purpose.encode()), *more, seed])


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
        self._table = np.random.default_rng(seed).permutation(num_rows) if num_rows <= _TABLE else None
        bits = max(num_rows - 1, 1).bit_length()
        self._halves = bits // 2, bits - bits // 2
        # Half of a word must hold half of an index, so that the upper bits of the hash depend on all of its input.
        self._type = np.uint32 if bits <= 32 else np.uint64
        keys = seed.generate_state(2 * _ROUNDS, self._type).reshape(_ROUNDS, 2)
        self._keys = [(add, multiply | self._type(1)) for add, multiply in keys]

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Positions (int64) of these row numbers in the shuffled order."""
        if self._table is not None:
            return self._table[rows]
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
        high_bits, low_bits = self._halves
        high, low = index >> low_bits, index & self._type((1 << low_bits) - 1)
        for number, key in enumerate(self._keys):
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
