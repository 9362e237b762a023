"""What a column becomes on the device, and what about its entries makes it unusable."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError

NO_GUESS = "Drop or impute those rows first: shardmc does not guess."


def float_type() -> np.dtype:
    """The floating-point type of rows and weights on the device: that of the user's JAX configuration."""
    return np.dtype(np.float64 if jax.config.jax_enable_x64 else np.float32)


def device_type(name: str, dtype: np.dtype) -> np.dtype:
    """The type a column has on the device: 64 bits become 32 unless JAX is in x64, everything smaller stays."""
    if dtype.kind == "b":
        return dtype
    if dtype.kind in "iu":
        if dtype.itemsize < 8:
            return dtype
        return np.dtype(np.int64 if jax.config.jax_enable_x64 else np.int32)
    if jnp.issubdtype(dtype, jnp.floating):  # also bfloat16, which NumPy's own kinds do not know
        return np.dtype(np.float32) if dtype.itemsize <= 4 else float_type()
    raise DataError(f"Column {name!r} holds {_what(dtype)}; {_advice(dtype)}")


def _what(dtype: np.dtype) -> str:
    kinds = {
        "U": "text",
        "S": "text",
        "T": "text",
        "O": "Python objects",
        "M": "dates",
        "m": "durations",
        "c": "complex numbers",
    }
    return f"{kinds.get(dtype.kind, 'values')} ({dtype})"


def _advice(dtype: np.dtype) -> str:
    advice = {
        "M": "turn it into numbers first, such as days since some date.",
        "m": "turn it into numbers first, such as seconds.",
        "c": "give its real and imaginary parts as two columns.",
        "O": "give it a numeric type first, or leave it out of the columns used.",
    }
    return advice.get(
        dtype.kind, "give its levels as whole-number codes first, or leave it out of the columns used."
    )


@dataclass
class Column:
    """One array of the rows: its name, its type on the device, and the unusable entries seen so far."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...] = ()  # of one row's entry
    from_table: bool = False
    missing: np.ndarray = field(init=False)
    infinite: np.ndarray = field(init=False)
    too_large: object = field(default=None, init=False)  # the first value beyond the range of the device type

    def __post_init__(self) -> None:
        self.missing = np.zeros(self.shape, dtype=np.int64)
        self.infinite = np.zeros(self.shape, dtype=np.int64)

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape))

    def cast(self, entries: np.ndarray) -> np.ndarray:
        """These entries (row, ...) in the device type; what is wrong with them is counted, not raised."""
        if entries.dtype == self.dtype:
            cast = entries
        elif self.dtype.kind == "f":
            with np.errstate(over="ignore"):
                cast = entries.astype(self.dtype)
        else:
            self._check_range(entries)
            cast = entries.astype(self.dtype)
        # min and max carry NaN and infinity, and unlike isfinite make no array.
        if self.dtype.kind == "f" and len(cast) and not np.isfinite([cast.min(), cast.max()]).all():
            self._count(entries, cast)
        return cast

    def _check_range(self, entries: np.ndarray) -> None:
        if self.too_large is not None or not len(entries):
            return
        limits = np.iinfo(self.dtype)
        for extreme in (entries.min(), entries.max()):
            if not limits.min <= int(extreme) <= limits.max:
                self.too_large = int(extreme)

    def _count(self, entries: np.ndarray, cast: np.ndarray) -> None:
        self.missing += np.isnan(cast).sum(axis=0)
        self.infinite += np.isinf(entries).sum(axis=0)
        large = np.isinf(cast) & np.isfinite(entries)
        if self.too_large is None and large.any():
            self.too_large = float(entries[large][0])

    def entry(self, counts: np.ndarray) -> str:
        """The column's name, or that of the first entry of an array column with something to count."""
        if not self.shape:
            return repr(self.name)
        index = ", ".join(str(i) for i in np.unravel_index(int((counts > 0).argmax()), self.shape))
        return f"{index} of {self.name!r}"


def raise_faults(columns: list[Column]) -> None:
    """Raise one sentence about the entries that cannot be used, if there are any."""
    for column in columns:
        if column.too_large is not None:
            raise DataError(
                f"Column {column.name!r} holds {column.too_large}, beyond the range of {column.dtype}; "
                "rescale the column, or run JAX in x64 (JAX_ENABLE_X64=1)."
            )
    for kind in ("missing", "infinite"):
        bad = [column for column in columns if getattr(column, kind).any()]
        if bad:
            raise DataError(_sentence(bad, kind))


def _sentence(bad: list[Column], kind: str) -> str:
    what = "infinite" if kind == "infinite" else "missing" if bad[0].from_table else "NaN"
    first, counts = bad[0], getattr(bad[0], kind)
    text = f"Column {first.entry(counts)} has {int(counts[counts > 0].flat[0])} {what} values"
    others = [f"{c.name!r} ({int(getattr(c, kind).sum())})" for c in bad[1:5]]
    entries = int((counts > 0).sum())
    if entries > 1:
        text += f", as have {entries - 1} more columns of {first.name!r} ({int(counts.sum())} in all)"
    if others:
        text += f"; so have {', '.join(others)}" + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
    return f"{text}. {NO_GUESS}"
