"""What every source of rows promises, and how its rows are to be split."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardmc.data.batch import Blocks, Rows


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
    def sample(self, count: int, seed: int) -> Rows:
        """At most `count` random rows from all over the source, as NumPy arrays of the device's types."""

    @abstractmethod
    def split(self, partition: Partition, seed: int) -> Blocks:
        """Deal the rows into shards; the same seed always gives the same shards."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that differs where the rows differ."""
