"""Entries that cannot be used, counted per column while rows are read, and told in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.data.columns import Column, is_numeric, not_numbers
from shardmc.errors import DataError

_NAMED = 5  # columns that a sentence lists


@final
class Tally:
    """Turns a column's entries into the device's type and counts those that cannot be used."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.missing = np.zeros(column.shape, dtype=np.int64)
        self.infinite = np.zeros(column.shape, dtype=np.int64)
        self.too_large: float | None = None  # the first value beyond the range of the device's type

    def cast(self, entries: np.ndarray) -> np.ndarray:
        """These entries (row, ...) in the device's type; what is wrong with them is counted, not raised."""
        target = self.column.dtype
        if not is_numeric(entries.dtype):
            raise not_numbers(self.column.name, entries.dtype)
        if entries.shape[1:] != self.column.shape:
            raise DataError(
                f"Column {self.column.name!r} has shape {self.column.shape} in some rows and {entries.shape[1:]} "
                "in others; every row needs the same."
            )
        if entries.dtype.kind == "f" and target.kind != "f":
            entries = self._whole(entries)
        if entries.dtype.kind in "iuf" and target.kind in "iu" and entries.dtype != target:
            self._check_range(entries)
        with np.errstate(over="ignore", invalid="ignore"):
            cast = entries.astype(target, copy=False)
        # min and max carry NaN and infinity, and unlike isfinite make no array.
        if target.kind == "f" and cast.size and not np.isfinite([cast.min(), cast.max()]).all():
            self._count(entries, cast)
        return cast

    def _whole(self, entries: np.ndarray) -> np.ndarray:
        """Whole numbers that came as floating-point ones, as a reader gives them where some are missing."""
        missing = np.isnan(entries)
        self.missing += missing.sum(axis=0)
        if (entries != np.rint(entries))[~missing].any():
            raise DataError(
                f"Column {self.column.name!r} holds whole numbers in its first rows and fractions in others; "
                "make it floating-point numbers."
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

    def look(self, array: jax.Array) -> None:
        """Count what is wrong with an array on a device, there."""
        if array.dtype != self.column.dtype and jnp.issubdtype(array.dtype, jnp.integer):
            self._check_range(np.asarray([array.min(), array.max()]))
        elif jnp.issubdtype(array.dtype, jnp.floating):
            missing, infinite = _count_on_device(array)
            self.missing, self.infinite = np.asarray(missing), np.asarray(infinite)

    def counted(self, kind: str) -> Iterator[tuple[str, int]]:
        """The column's name, or the names of its entries, where there is something to count."""
        counts: np.ndarray = getattr(self, kind)
        for index in np.argwhere(counts > 0):
            place = f"[:, {', '.join(map(str, index))}]" if self.column.shape else ""
            yield f"{self.column.name}{place}", int(counts[tuple(index)])


@jax.jit
def _count_on_device(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    # Counts of a 32-bit type suffice: an array on a device has fewer than 2^31 rows.
    return jnp.isnan(array).sum(axis=0), jnp.isinf(array).sum(axis=0)


def cast_sample(columns: Sequence[Column], entries: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Some rows in the device's types, without those that cannot be used where others can.

    A model is tried on them before all rows are read; those that cannot be used are told when that is done.
    """
    cast = [Tally(column).cast(entry) for column, entry in zip(columns, entries, strict=True)]
    usable = np.ones(len(cast[0]), dtype=bool)
    for array in (*entries, *cast):
        usable &= np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return [array[usable] for array in cast] if usable.any() else cast


def raise_faults(tallies: Sequence[Tally]) -> None:
    """Raise one sentence about the entries that cannot be used, if there are any."""
    for tally in tallies:
        if tally.too_large is not None:
            raise DataError(
                f"Column {tally.column.name!r} holds {tally.too_large}, beyond the range of {tally.column.dtype}; "
                "rescale the column, or run JAX in x64 (JAX_ENABLE_X64=1)."
            )
    for kind in ("missing", "infinite"):
        bad = [tally for tally in tallies if getattr(tally, kind).any()]
        if bad:
            raise DataError(_sentence(bad, kind))


def _sentence(bad: Sequence[Tally], kind: str) -> str:
    what = "infinite" if kind == "infinite" else "missing" if bad[0].column.from_table else "NaN"
    found = [pair for tally in bad for pair in tally.counted(kind)]
    if len(found) == 1:
        name, count = found[0]
        text = f"Column {name!r} has {count} {what} value{'s' if count > 1 else ''}"
    else:
        names = ", ".join(f"{name!r} ({count})" for name, count in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        text = f"{len(found)} columns have {what} values: {names}{more}"
    advice = "Drop or impute those rows first: shardmc does not guess."
    if any(tally.column.implied for tally in bad):
        advice += " A column that the model does not use can be left out: name those that it uses."
    return f"{text}. {advice}"
