"""What every source of rows promises, and how its rows are to be split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardmc.data.batch import Blocks, Rows
from shardmc.data.fingerprint import hash_arrays

Transform = Callable[[pa.Table], Rows]


@dataclass(frozen=True)
class Partition:
    """How rows are split into shards.

    Parameters
    ----------
    shards
        The number of shards, K.
    shuffle
        Whether rows are dealt at random. In the file's order shards differ wherever the file is sorted by something.
    stratify
        A column's name, or one value per row: each shard gets its proportional part of every value (of every
        quantile bin, where a numeric column has many values).
    weights
        A column's name, or one number per row: row j counts weights[j] times in the likelihood.
    sizes
        Rows of each shard, where they are not to be equal.
    """

    shards: int
    shuffle: bool = True
    stratify: str | Any | None = None
    weights: str | Any | None = None
    sizes: Sequence[int] | None = None

    @property
    def fingerprint(self) -> str:
        """A hash that differs where the rows would be dealt differently."""
        plan = {name: getattr(self, name) for name in ("shards", "shuffle", "stratify", "weights", "sizes")}
        arrays = [np.asarray(value) for value in plan.values() if value is not None]
        return hash_arrays(str([name for name, value in plan.items() if value is not None]), arrays)


class Source(ABC):
    """A table or pytree of rows, of which shards can be made."""

    num_rows: int
    is_table: bool
    """Whether rows have named columns, so that `select` means something."""
    column_names: tuple[str, ...]
    """All columns there are, selected or not."""

    @abstractmethod
    def select(self, columns: Sequence[str]) -> Source:
        """The same rows with these columns only; other columns can still weigh or stratify. Not a table: itself."""

    @abstractmethod
    def transform(self, function: Transform, columns: Sequence[str], label: str) -> Source:
        """A source of what a function computes from these columns of a table, piece by piece.

        Parameters
        ----------
        function
            Takes some rows as an Arrow table and returns a pytree of arrays with one entry for each of them. It
            must treat every row alike wherever the table is cut: what needs all rows is worked out before.
        columns
            The columns that the function gets; they may be text or dates.
        label
            Says what the function computes, for the fingerprint.
        """

    @abstractmethod
    def drop_missing(self, columns: Sequence[str] | None = None) -> Source:
        """The rows of a table in which none of these columns (or of those in use) is missing."""

    @abstractmethod
    def tables(self, columns: Sequence[str], count: int = 1 << 17) -> Iterator[pa.Table]:
        """These columns of a table as they are, `count` rows at a time."""

    @abstractmethod
    def sample(self, count: int, seed: int) -> Rows:
        """At most `count` random rows from all over the source, as NumPy arrays of the device's types."""

    @abstractmethod
    def split(self, partition: Partition, seed: int) -> Blocks:
        """Deal the rows into shards; the same seed always gives the same shards."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that differs where the rows differ."""
