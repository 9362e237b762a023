"""Where rows come from and how they are split into shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath

import jax
import numpy as np

from shardmc.data.arrays import ArraySource
from shardmc.data.batch import Batch, Blocks
from shardmc.data.gathered import Limits
from shardmc.data.source import Partition, Source, Transform
from shardmc.errors import DataError
from shardmc.types import Data, Rows

__all__ = ["Batch", "Blocks", "Partition", "Rows", "Source", "Transform", "as_source"]


def as_source(
    data: Data,
    *,
    columns: Sequence[str] | None = None,
    memory: int | None = None,
    scratch: str | os.PathLike[str] | None = None,
    trust_files: bool = False,
) -> Source:
    """Make a source of rows from arrays, a table or files.

    Parameters
    ----------
    data
        An array, or a tuple, dictionary or any pytree of arrays with a common first axis (NumPy or JAX); a
        pandas, polars or Arrow table; the path or URL of a Parquet or CSV file, or of a folder of Parquet files.
    columns
        The columns of a table to use. By default all columns that hold numbers.
    memory
        The largest size, in bytes, of shardmc's own copy of the rows.

        - Files: 1 GiB by default. The rows of a larger file are written to shard files in one pass, and each shard is
          read when it is needed. The process needs about 1 GB more. If shards are so large that the limit cannot be
          kept, a warning says so before rows are read.
        - Arrays: a quarter of the free memory by default, and at least 1 GiB. Larger arrays stay where they are, and
          each batch of shards gathers its rows from them, which takes longer.
        - Tables in memory: copied by default. If a limit is given, a larger copy goes to shard files, as for files.
    scratch
        The folder for the shard files. They stay there, and a later run with the same data, partition and seed reuses
        them. By default they are in the system's temporary folder and are deleted with the shards.
    trust_files
        Files of more than 512 MB are recognised, in a scratch or run folder, by their size, a hash of some parts, their
        modification time and their inode. True leaves out time and inode, for files that were copied or moved. Smaller
        files are always hashed completely.

    Returns
    -------
    Source
        Rows that can be sampled and split. The rows of a table are a dictionary of its columns.

    Examples
    --------
    >>> import numpy as np
    >>> source = as_source({"x": np.zeros((10, 2)), "y": np.arange(10)})
    >>> source.num_rows, source.column_names
    (10, ('x', 'y'))
    """
    if isinstance(data, Source):
        return data if columns is None else data.select(columns)
    limits = Limits(memory, scratch)
    if isinstance(data, tuple | list | dict | np.ndarray | jax.Array):
        return ArraySource(data, columns, limits)
    # Imported here because most arrays need no tables, and Arrow is slow to import.
    import narwhals as nw

    from shardmc.data.table import FrameReader, TableSource

    if isinstance(data, str | os.PathLike):
        from shardmc.data.readers import SUFFIXES, CsvReader, ParquetReader

        location = os.fspath(data)
        kind = CsvReader if location.endswith(SUFFIXES) else ParquetReader
        reader = kind(location, trusted=trust_files)
        source = TableSource(reader, columns, limits)
        # Without what a URL may tell of its user.
        source.origin = PurePosixPath(location.partition("?")[0]).name
        return source
    try:
        frame = nw.from_native(data, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        raise DataError(f"Column names must differ. {' '.join(str(error).split())}.") from error
    if isinstance(frame, nw.LazyFrame):
        raise DataError(
            "A lazy table has no rows yet. Call its collect(), or give the path of its Parquet files."
        )
    if isinstance(frame, nw.DataFrame):
        return TableSource(FrameReader(frame), columns, limits)
    return ArraySource(data, columns, limits)
