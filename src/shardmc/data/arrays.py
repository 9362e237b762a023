"""Rows that are arrays in memory: one array, a tuple, a dictionary, or any pytree of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from shardmc.data.assignment import shard_sizes, spread_positions
from shardmc.data.batch import Blocks
from shardmc.data.blocks import ArrayBlocks
from shardmc.data.columns import (
    Column,
    ColumnCheck,
    InternalKey,
    cast_sample,
    device_type,
    float_type,
    is_numeric,
    leaf_name,
    raise_unusable,
    refuse_repeated,
    shapes_of,
)
from shardmc.data.device_order import find_strata_on_device, random_order, stratified_order, with_copies
from shardmc.data.gathered import GatheredBlocks, GatherPlan, InPlace, Limits, OrderSink
from shardmc.data.partition import MemorySink, Partitioner, refuse_negative, refuse_zero, resolve
from shardmc.data.source import Partition, Source, Transform, hash_arrays
from shardmc.errors import DataError, OptionError, unknown
from shardmc.types import Rows, RowValues

if TYPE_CHECKING:
    import pyarrow as pa

    from shardmc.data.table import TableSource

_ROW, _GIVEN = InternalKey("row number"), InternalKey("weights or strata")
_ROW_NUMBER = Column("row number", np.dtype(np.int32), own_key=_ROW)


@final
class ArraySource(Source):
    """NumPy or JAX arrays with a common first axis. A dictionary of arrays, or of lists of numbers or texts, is a
    table."""

    def __init__(
        self, data: Rows, columns: Sequence[str] | None = None, limits: Limits | None = None
    ) -> None:
        self.is_table = isinstance(data, Mapping) and all(isinstance(name, str) for name in data)
        if self.is_table:
            data = {name: _column(name, value) for name, value in data.items()}
        self._data, self._limits = data, limits or Limits()
        try:
            found, _ = jax.tree_util.tree_flatten_with_path(data)
        except ValueError as error:  # JAX sorts the names
            raise DataError("The names in a dictionary of arrays must all be text.") from error
        # Arrays are read by their paths, because names of nested arrays may repeat.
        self._paths = [path for path, _ in found]
        self._leaves: dict[Hashable, np.ndarray | jax.Array] = {
            path: _array(leaf_name(path), leaf) for path, leaf in found
        }
        names = tuple(map(leaf_name, self._paths))
        self.num_rows = _common_length(names, list(self._leaves.values()))
        self.column_names = tuple(data) if self.is_table else names
        self._used = self._numeric() if columns is None else self._chosen(columns)

    def _numeric(self) -> Rows:
        """All data. From a table only the numeric columns, as the model cannot use others."""
        if not self.is_table:
            return self._data
        text = {path[0].key for path in self._paths if not is_numeric(self._leaves[path].dtype)}
        return {name: value for name, value in self._data.items() if name not in text} or self._data

    def _chosen(self, columns: Sequence[str]) -> Rows:
        for name in columns:
            if name not in self.column_names:
                raise unknown("column", name, self.column_names)
        return {name: self._data[name] for name in columns}

    def select(self, columns: Sequence[str]) -> ArraySource:
        return ArraySource(self._data, columns, self._limits) if self.is_table else self

    def transform(self, function: Transform, columns: Sequence[str], label: str) -> Source:
        return self._as_table().transform(function, columns, label)

    def drop_missing(self, columns: Sequence[str] | None = None) -> Source:
        return self._as_table().select(list(self._used)).drop_missing(columns)

    def tables(self, columns: Sequence[str], count: int = 1 << 17) -> Iterator[pa.Table]:
        return self._as_table().tables(columns, count)

    def _as_table(self) -> TableSource:
        if not self.is_table:
            raise OptionError("The data has no column names. Give a table, a file or a dictionary of arrays.")
        # Imported here because most fits of arrays need no tables, and Arrow is slow to import.
        import narwhals as nw
        import pyarrow as pa

        from shardmc.data.arrow import as_arrow
        from shardmc.data.table import FrameReader, TableSource

        names = [leaf_name(path) for path in self._paths]
        refuse_repeated(names)
        arrays = [as_arrow(np.asarray(leaf)) for leaf in self._leaves.values()]
        return TableSource(FrameReader(nw.from_native(pa.table(arrays, names=names))), None, self._limits)

    def _columns(self) -> list[Column]:
        paths, _ = jax.tree_util.tree_flatten_with_path(self._used)
        leaves = [(leaf_name(path), path, self._leaves[path]) for path, _ in paths]
        return [
            Column(name, device_type(name, leaf.dtype), leaf.shape[1:], own_key=path)
            for name, path, leaf in leaves
        ]

    def _assemble(self, leaves: Sequence[np.ndarray | jax.Array] | Sequence[jax.ShapeDtypeStruct]) -> Rows:
        return jax.tree.unflatten(jax.tree.structure(self._used), leaves)

    def _read(self, keys: Sequence[Hashable], count: int) -> Iterator[list[np.ndarray]]:
        for start in range(0, self.num_rows, count):
            stop = min(start + count, self.num_rows)
            yield [
                np.arange(start, stop) if key is _ROW else np.asarray(self._leaves[key][start:stop])
                for key in keys
            ]

    def sample(self, count: int, seed: int) -> Rows:
        positions = spread_positions(self.num_rows, count, seed)
        columns = self._columns()
        return self._assemble(
            cast_sample(columns, [np.asarray(self._leaves[c.key][positions]) for c in columns])
        )

    def row_shapes(self) -> Rows:
        return self._assemble(shapes_of(self._columns()))

    def split(self, partition: Partition, seed: int) -> Blocks:
        columns = self._columns()
        there = {c: leaf for c in columns if isinstance(leaf := self._leaves[c.key], jax.Array)}
        here = [c for c in columns if c not in there]
        in_place = not partition.shuffle and partition.stratify is None and partition.weights is None
        if not here and (in_place or _on_accelerator(there.values())):
            return self._in_place(there, partition, seed)
        if partition.by is None and _on_host(there.values()):
            plan = GatherPlan.of(columns, self.num_rows, partition, self._limits.memory)
            if plan is not None:
                return self._gathered(columns, plan, partition, seed)
        order = [_ROW_NUMBER] if there else []
        partitioner = Partitioner(self._read, here + order, self._by_name(), self.num_rows, partition, seed)
        sink = MemorySink(partitioner.columns, self.num_rows, partitioner.sizes)
        partitioner.run(sink)
        written = sink.on_device()
        weights = written.pop() if partitioner.has_weights else None
        arrays = _ordered_on_device(there, written.pop()) if there else {}
        arrays |= zip((c.key for c in here), written, strict=True)
        return ArrayBlocks(
            self._assemble([arrays[c.key] for c in columns]), weights, partitioner.sizes, partitioner.starts
        )

    def _gathered(
        self, columns: Sequence[Column], plan: GatherPlan, partition: Partition, seed: int
    ) -> Blocks:
        """Arrays that stay where they are on the host. One pass checks them and lists the rows of the shards."""
        listed = [*columns, *([_ROW_NUMBER] if plan.listed else [])]
        partitioner = Partitioner(self._read, listed, self._by_name(), self.num_rows, partition, seed)
        sink = OrderSink(len(columns) if plan.listed else None, self.num_rows)
        partitioner.run(sink)
        arrays = [InPlace(np.asarray(self._leaves[c.key])) for c in columns]
        if partitioner.has_weights:
            weights = self._given("weights", partition.weights)
            arrays.append(InPlace(np.asarray(weights), partition.weight_factor))
        sizes = partitioner.sizes
        return GatheredBlocks(
            columns=[*columns, *partitioner.columns[len(listed) :]],
            structure=jax.tree.structure(self._used),
            has_weights=partitioner.has_weights,
            sizes=sizes,
            starts=partitioner.starts if plan.listed else np.cumsum(sizes) - sizes,
            most_in_memory=plan.most_in_memory,
            arrays=arrays,
            order=sink.order,
        )

    def _by_name(self) -> dict[str, Hashable]:
        """The array of each name. A column of the table wins over an array inside another column."""
        inside_first = sorted(self._paths, key=len, reverse=True)
        return {leaf_name(path): path for path in inside_first}

    def _in_place(self, leaves: Mapping[Column, jax.Array], partition: Partition, seed: int) -> Blocks:
        """Arrays that stay on their device, in their own order: shards are slices of them, or gather their rows."""
        _check_on_device(leaves)
        sizes = shard_sizes(self.num_rows, partition.shards, partition.sizes)
        weights = _on_device(self._given("weights", partition.weights))
        if weights is not None:
            label = partition.weights if isinstance(partition.weights, str) else "row weights"
            refuse_negative(float(weights.min()))
            refuse_zero(float(weights.sum()))
            _check_on_device({Column(label, float_type()): weights})
            weights = weights.astype(float_type()) * partition.weight_factor
        strata = _on_device(self._given("stratify", partition.stratify))
        order = None
        if strata is None and partition.shuffle:
            order = random_order(self.num_rows, seed)
        elif strata is not None:
            label = (
                f"stratify column {partition.stratify!r}"
                if isinstance(partition.stratify, str)
                else "stratify"
            )
            found, codes = find_strata_on_device(label, strata)
            order = stratified_order(found, codes, sizes, seed if partition.shuffle else None)
        elif sizes[-1] < sizes.max():  # no slice may pass the end of the arrays
            sizes = np.sort(sizes)
        rows = self._assemble([leaf.astype(column.dtype) for column, leaf in leaves.items()])
        blocks = ArrayBlocks(rows, weights, sizes, np.cumsum(sizes) - sizes, order=order)
        if order is None:
            return blocks
        # No slice of a copy may pass its end.
        length = int(blocks.starts.max()) + blocks.slots
        return replace(blocks, order=with_copies(order, jax.tree.leaves((rows, weights)), length))

    def _given(self, option: str, given: RowValues) -> np.ndarray | jax.Array | None:
        """The array of weights or strata, which may be a column's."""
        arrays: dict[Hashable, np.ndarray | jax.Array] = dict(self._leaves)
        key = resolve(option, given, _GIVEN, self._by_name(), arrays, self.num_rows)
        return None if key is None else arrays[key]

    @cached_property
    def fingerprint(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        leaves = [(leaf_name(path), self._leaves[path]) for path in self._paths]
        heading = [f"{name} {leaf.dtype} {leaf.shape}" for name, leaf in leaves]
        pieces = (piece[0] for path in self._paths for piece in self._read([path], 1 << 16))
        return hash_arrays(f"{jax.tree.structure(self._data)} {heading}", pieces)


def _on_accelerator(arrays: Iterable[jax.Array]) -> bool:
    return all(device.platform != "cpu" for array in arrays for device in array.devices())


def _on_host(arrays: Iterable[jax.Array]) -> bool:
    """Whether computations run on the host, and these arrays are there, too."""
    devices = {device.platform for array in arrays for device in array.devices()}
    return jax.default_backend() == "cpu" and devices <= {"cpu"}


def _on_device(array: np.ndarray | jax.Array | None) -> jax.Array | None:
    return None if array is None else jnp.asarray(array)


def _check_on_device(leaves: Mapping[Column, jax.Array]) -> None:
    checks = [ColumnCheck(column) for column in leaves]
    for check, leaf in zip(checks, leaves.values(), strict=True):
        check.count_on_device(leaf)
    raise_unusable(checks)


def _ordered_on_device(leaves: Mapping[Column, jax.Array], order: jax.Array) -> dict[Hashable, jax.Array]:
    """Check arrays that are already on a device, and reorder them there by shard."""
    _check_on_device(leaves)
    in_order = bool((order[1:] > order[:-1]).all())
    return {
        column.key: (leaf if in_order else leaf.at[order].get(mode="promise_in_bounds")).astype(column.dtype)
        for column, leaf in leaves.items()
    }


def _column(name: str, value: object) -> object:
    """A list of numbers or of texts in a dictionary as an array; any other value as it is."""
    if not isinstance(value, list) or not all(isinstance(x, _SINGLE | None) for x in value):
        return value
    texts = sum(isinstance(x, str) for x in value)
    missing = sum(x is None for x in value)
    if texts and texts + missing < len(value):
        raise DataError(f"Column {name!r} has both numbers and texts.")
    # None is a missing number; in a list of texts it stays.
    return np.asarray(
        [np.nan if x is None and not texts else x for x in value], object if texts and missing else None
    )


_SINGLE = int | float | str | np.generic


def _array(name: str, leaf: ArrayLike | jax.Array) -> np.ndarray | jax.Array:
    if hasattr(leaf, "toarray"):
        raise DataError(f"Column {name!r} is a sparse matrix; convert it with its method toarray().")
    if np.ma.is_masked(leaf):
        count = int(np.ma.count_masked(leaf))
        raise DataError(
            f"Column {name!r} has {count} masked value{'s' if count > 1 else ''}. Drop or impute those rows first: "
            "shardmc does not guess."
        )
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    if array.ndim == 0:
        raise DataError(
            f"Column {name!r} is the single value {leaf!r}; give an array with one entry per row "
            "(convert a list with numpy.asarray)."
        )
    return array


def _common_length(names: Sequence[str], leaves: Sequence[np.ndarray | jax.Array]) -> int:
    if not leaves:
        raise DataError("The data holds no arrays; give at least one, with one entry per row.")
    length = leaves[0].shape[0]
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.shape[0] != length:
            raise DataError(
                f"Column {names[0]!r} has {length} rows but {name!r} has {leaf.shape[0]}; all columns need the same "
                "number of rows."
            )
    if length == 0:
        raise DataError("The table is empty: it has no rows.")
    return length
