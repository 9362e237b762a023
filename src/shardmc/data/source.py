"""What every source of rows offers: it selects columns, computes others, samples rows, and splits them into shards."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardmc.data.batch import Blocks
from shardmc.types import Rows, RowValues

if TYPE_CHECKING:
    import pyarrow as pa

Transform = Callable[["pa.Table"], Rows]
"""Rows of a table -> rows as a model reads them."""


@dataclass(frozen=True)
class ByGroup:
    """Which shard the rows of each group go to."""

    codes: str
    """The column that holds the number of each row's group."""
    shard: np.ndarray  # (group,)


@dataclass(frozen=True)
class Partition:
    """How rows are split into shards.

    Parameters
    ----------
    shards
        The number of shards, K.
    shuffle
        Whether rows are assigned to shards at random. In file order, shards differ if the file is sorted by anything.
    stratify
        A column's name, or one value per row. Each shard gets its proportional part of every value, or of every
        quantile bin if a numeric column has many values.
    weights
        A column's name, or one number per row. Row j counts weights[j] times in the likelihood.
    sizes
        The number of rows of each shard. By default the shards are as equal as possible.
    by
        Which shard each group of rows goes to. By default rows go to shards one by one.
    weight_factor
        What the weights are multiplied by.

    Examples
    --------
    >>> Partition(10) == Partition(shards=10, shuffle=True)
    True
    """

    shards: int
    shuffle: bool = True
    stratify: RowValues = None
    weights: RowValues = None
    sizes: Sequence[int] | np.ndarray | None = None
    by: ByGroup | None = None
    weight_factor: float = 1.0

    @property
    def fingerprint(self) -> str:
        """A hash that changes when the rows would be split differently."""
        plan = {name: getattr(self, name) for name in ("shards", "shuffle", "stratify", "weights", "sizes")}
        plan |= {"weight_factor": self.weight_factor} if self.weight_factor != 1 else {}
        arrays = [np.asarray(value) for value in plan.values() if value is not None]
        arrays += [] if self.by is None else [self.by.shard]
        return hash_arrays(str([name for name, value in plan.items() if value is not None]), arrays)


class Source(ABC):
    """A table or pytree of rows that can be split into shards."""

    num_rows: int
    is_table: bool
    """Whether rows have named columns, which `select` can choose from."""
    column_names: tuple[str, ...]
    """All columns, selected or not."""
    origin: str = ""
    """The name of the file or folder that the rows come from, if they come from one."""

    @property
    def num_units(self) -> int:
        """What goes to shards one by one: rows, or groups of rows."""
        return self.num_rows

    @abstractmethod
    def select(self, columns: Sequence[str]) -> Source:
        """The same rows with these columns only. Weights and strata may still use the other columns."""

    @abstractmethod
    def transform(self, function: Transform, columns: Sequence[str], label: str) -> Source:
        """A source of the rows that a function computes from these columns, piece by piece.

        Parameters
        ----------
        function
            Takes some rows as an Arrow table and returns a pytree of arrays with one entry per row. Its result for
            a row must not depend on the other rows of the piece.
        columns
            The columns that the function gets. They may hold text or dates.
        label
            Describes what the function computes, for the fingerprint.
        """

    @abstractmethod
    def drop_missing(self, columns: Sequence[str] | None = None) -> Source:
        """The rows in which none of these columns (by default: the columns in use) is missing."""

    @abstractmethod
    def tables(self, columns: Sequence[str], count: int = 1 << 17) -> Iterator[pa.Table]:
        """These columns of the table, unchanged, `count` rows at a time."""

    @abstractmethod
    def sample(self, count: int, seed: int) -> Rows:
        """At most `count` random rows from all over the source, as NumPy arrays of the device's types."""

    @abstractmethod
    def row_shapes(self) -> Rows:
        """One row without its values: shapes (1, ...) and types, as a model is traced with them."""

    @abstractmethod
    def split(self, partition: Partition, seed: int) -> Blocks:
        """Split the rows into shards. The same seed always gives the same shards."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that changes when the rows change."""


def hash_arrays(heading: str, arrays: Iterable[np.ndarray]) -> str:
    """A hash of a heading and of every entry of these arrays.

    Examples
    --------
    >>> hash_arrays("x", [np.arange(3)]) == hash_arrays("x", [np.array([0, 2, 1])])
    False
    """
    digest = hashlib.sha256(heading.encode())
    for array in arrays:
        if array.dtype.kind in "OUT":
            digest.update("\x1f".join(map(str, array.ravel().tolist())).encode())
        else:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
