"""What a table must offer so that rows can be read from it: types, pieces, a sample, a fingerprint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from shardmc.data.shuffle import seed_for


class TableReader(ABC):
    """Reads named columns as Arrow tables, a piece at a time, in the order of the rows."""

    num_rows: int
    types: Mapping[str, pa.DataType]
    """All columns and their types."""
    in_memory: bool
    """Whether the rows are in memory already, so that dealing them to files would save none."""

    @abstractmethod
    def pieces(self, names: Sequence[str], count: int) -> Iterator[pa.Table]:
        """The named columns, at most `count` rows at a time."""

    @abstractmethod
    def sample(self, names: Sequence[str], count: int, seed: int) -> pa.Table:
        """At most `count` rows from all over the table, read without reading it all."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that differs where the rows differ."""


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
