"""What a column becomes on the device, and which of its entries cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError
from shardmc.programs.compiled import jit

if TYPE_CHECKING:
    from jax.tree_util import KeyPath


def float_type() -> np.dtype:
    """The floating-point type of rows and weights on the device, from the user's JAX configuration."""
    return np.dtype(jnp.result_type(float))


def is_numeric(dtype: np.dtype) -> bool:
    """Whether a type is boolean, integer or floating-point."""
    # bfloat16 and similar types are floating-point, but NumPy gives them another kind.
    return dtype.kind in "biuf" or jnp.issubdtype(dtype, jnp.floating)


def device_type(name: str, dtype: np.dtype) -> np.dtype:
    """The type of a column on the device: 64 bits become 32 unless x64 is enabled, smaller types stay."""
    if not is_numeric(dtype):
        raise not_numbers(name, dtype)
    if dtype.kind in "iu":
        return dtype if dtype.itemsize < 8 else np.dtype(jnp.result_type(int))
    if dtype.kind == "b":
        return dtype
    return np.dtype(np.float32) if dtype.itemsize <= 4 else float_type()


def not_numbers(name: str, dtype: np.dtype) -> DataError:
    """The error for a column that does not hold numbers."""
    what, advice = _KINDS.get(
        dtype.kind, ("values", "convert it to numbers first, or leave it out of the columns used.")
    )
    return DataError(f"Column {name!r} holds {what} ({dtype}); {advice}")


_CODES = "encode its levels as integers first, or leave it out of the columns used."
_KINDS = {
    "U": ("text", _CODES),
    "S": ("text", _CODES),
    "T": ("text", _CODES),
    "O": ("Python objects", "give it a numeric type first, or leave it out of the columns used."),
    "M": ("dates", "convert it to numbers first, such as days since some date."),
    "m": ("durations", "convert it to numbers first, such as seconds."),
    "c": ("complex numbers", "give its real and imaginary parts as two columns."),
}


def leaf_name(path: KeyPath) -> str:
    """The name of a leaf: the key in a dictionary, otherwise the index in Python's notation."""
    if not path:
        return "data"
    first = path[0]
    if isinstance(first, jax.tree_util.DictKey):
        return str(first.key) + jax.tree_util.keystr(path[1:])
    return jax.tree_util.keystr(path)


def refuse_repeated(names: Sequence[str]) -> None:
    """Refuse a name that two columns share: 1 and "1" in pandas, or arrays inside others."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"Column names must differ, but {count} columns are called {name!r}; rename them.")


@dataclass(frozen=True)
class InternalKey:
    """The key of a column that is not the user's: row numbers, weights given as an array, what a formula computes.

    The key of a user's column is its name or its path in a pytree. An `InternalKey` equals neither, so no name that a
    user chooses can clash with it.
    """

    what: str
    number: int = 0


@dataclass(frozen=True)
class Column:
    """One array of the rows: its name, and its type and shape on the device."""

    name: str  # for messages; the key identifies the column
    dtype: np.dtype
    shape: tuple[int, ...] = ()  # of one row's entry
    from_table: bool = False
    implied: bool = False  # used only because the user named no columns
    own_key: Hashable = None

    @property
    def key(self) -> Hashable:
        """The key by which the column is read: `own_key`, or else its name."""
        return self.name if self.own_key is None else self.own_key

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape))


_NAMED = 5  # columns that a message lists


@final
class ColumnCheck:
    """Casts a column's entries to the device's type and counts those that cannot be used."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.missing = np.zeros(column.shape, dtype=np.int64)
        self.infinite = np.zeros(column.shape, dtype=np.int64)
        self.too_large: float | None = None  # the first value outside the range of the device's type

    def cast(self, entries: np.ndarray) -> np.ndarray:
        """Cast entries (row, ...) to the device's type. Unusable entries are counted, not raised."""
        target = self.column.dtype
        if not is_numeric(entries.dtype):
            raise not_numbers(self.column.name, entries.dtype)
        if entries.shape[1:] != self.column.shape:
            raise DataError(
                f"Column {self.column.name!r} has shape {self.column.shape} in some rows and {entries.shape[1:]} "
                "in others; all rows need the same shape."
            )
        if entries.dtype.kind == "f" and target.kind != "f":
            entries = self._whole(entries)
        if entries.dtype.kind in "iuf" and target.kind in "iu" and entries.dtype != target:
            self._check_range(entries)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = entries.astype(target, copy=False)
        # min and max propagate NaN and infinity, and unlike isfinite they allocate no array.
        if target.kind == "f" and cast.size and not np.isfinite([cast.min(), cast.max()]).all():
            self._count(entries, cast)
        return cast

    def _whole(self, entries: np.ndarray) -> np.ndarray:
        """Integers that a reader returned as floats because some are missing."""
        missing = np.isnan(entries)
        self.missing += missing.sum(axis=0)
        if (entries != np.rint(entries))[~missing].any():
            raise DataError(
                f"Column {self.column.name!r} holds integers in its first rows and fractions in others; "
                "convert it to floating point."
            )
        return np.where(missing, 0, entries)

    def _check_range(self, entries: np.ndarray) -> None:
        limits = np.iinfo(self.column.dtype)
        for extreme in (entries.min(), entries.max()) if entries.size else ():
            if not limits.min <= extreme <= limits.max:
                self.too_large = int(extreme)

    def _count(self, entries: np.ndarray, cast: np.ndarray) -> None:
        self.missing += np.isnan(cast).sum(axis=0)
        infinite = np.isinf(entries)
        self.infinite += infinite.sum(axis=0)
        large = np.isinf(cast) & ~infinite
        if self.too_large is None and large.any():
            self.too_large = float(entries[large][0])

    def count_on_device(self, array: jax.Array) -> None:
        """Count the unusable entries of an array that is already on a device."""
        if array.dtype != self.column.dtype and jnp.issubdtype(array.dtype, jnp.integer):
            self._check_range(np.asarray([array.min(), array.max()]))
        elif jnp.issubdtype(array.dtype, jnp.floating):
            missing, infinite = _count_on_device(array)
            self.missing, self.infinite = np.asarray(missing), np.asarray(infinite)

    def counted(self, kind: str) -> Iterator[tuple[str, int]]:
        """The name of the column (or of each of its entries) and its count, where that is positive."""
        counts: np.ndarray = getattr(self, kind)
        for index in np.argwhere(counts > 0):
            place = f"[:, {', '.join(map(str, index))}]" if self.column.shape else ""
            yield f"{self.column.name}{place}", int(counts[tuple(index)])


@jit
def _count_on_device(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Counts of a 32-bit type suffice: an array on a device has fewer than 2^31 rows.
    return jnp.isnan(array).sum(axis=0), jnp.isinf(array).sum(axis=0)


def shapes_of(columns: Sequence[Column]) -> list[jax.ShapeDtypeStruct]:
    """One row of these columns, without its values."""
    return [jax.ShapeDtypeStruct((1, *column.shape), column.dtype) for column in columns]


def cast_sample(columns: Sequence[Column], entries: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Some rows in the device's types, without the unusable ones if any others are left.

    The model is tried on these rows before all rows are read. Unusable rows are reported when all are read.
    """
    cast = [ColumnCheck(column).cast(entry) for column, entry in zip(columns, entries, strict=True)]
    usable = np.ones(len(cast[0]), dtype=bool)
    for array in (*entries, *cast):
        usable &= np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return [array[usable] for array in cast] if usable.any() else cast


def raise_unusable(checks: Sequence[ColumnCheck]) -> None:
    """Raise one error that names the columns with unusable entries, if there are any."""
    for check in checks:
        if check.too_large is not None:
            raise DataError(
                f"Column {check.column.name!r} holds {check.too_large}, outside the range of {check.column.dtype}; "
                "rescale the column, or enable 64 bits in JAX (JAX_ENABLE_X64=1)."
            )
    for kind in ("missing", "infinite"):
        bad = [check for check in checks if getattr(check, kind).any()]
        if bad:
            raise DataError(_sentence(bad, kind))


def _sentence(bad: Sequence[ColumnCheck], kind: str) -> str:
    what = "infinite" if kind == "infinite" else "missing" if bad[0].column.from_table else "NaN"
    found = [pair for check in bad for pair in check.counted(kind)]
    if len(found) == 1:
        name, count = found[0]
        text = f"Column {name!r} has {count} {what} value{'s' if count > 1 else ''}"
    else:
        names = ", ".join(f"{name!r} ({count})" for name, count in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        text = f"{len(found)} columns have {what} values: {names}{more}"
    advice = "Drop or impute those rows first: shardmc does not guess."
    if any(check.column.implied for check in bad):
        advice += (
            " If the model does not use it, name the columns that it does use: as_source(data, columns=...)."
        )
    return f"{text}. {advice}"
