"""What a column becomes on the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError


def float_type() -> np.dtype:
    """The floating-point type of rows and weights on the device: that of the user's JAX configuration."""
    return np.dtype(jnp.result_type(float))


def is_numeric(dtype: np.dtype) -> bool:
    """Whether entries of a type are truth values, whole or floating-point numbers."""
    # bfloat16 and its like are floating-point numbers that NumPy's own kinds do not know.
    return dtype.kind in "biuf" or jnp.issubdtype(dtype, jnp.floating)


def device_type(name: str, dtype: np.dtype) -> np.dtype:
    """The type a column has on the device: 64 bits become 32 unless JAX is in x64, everything smaller stays."""
    if not is_numeric(dtype):
        raise not_numbers(name, dtype)
    if dtype.kind in "iu":
        return dtype if dtype.itemsize < 8 else np.dtype(jnp.result_type(int))
    if dtype.kind == "b":
        return dtype
    return np.dtype(np.float32) if dtype.itemsize <= 4 else float_type()


def not_numbers(name: str, dtype: np.dtype) -> DataError:
    """The error for a column of text, dates or anything else that is not numbers."""
    what, advice = _KINDS.get(
        dtype.kind, ("values", "make it numbers first, or leave it out of the columns used.")
    )
    return DataError(f"Column {name!r} holds {what} ({dtype}); {advice}")


_CODES = "give its levels as whole-number codes first, or leave it out of the columns used."
_KINDS = {
    "U": ("text", _CODES),
    "S": ("text", _CODES),
    "T": ("text", _CODES),
    "O": ("Python objects", "give it a numeric type first, or leave it out of the columns used."),
    "M": ("dates", "turn it into numbers first, such as days since some date."),
    "m": ("durations", "turn it into numbers first, such as seconds."),
    "c": ("complex numbers", "give its real and imaginary parts as two columns."),
}


def leaf_name(path: tuple[Any, ...]) -> str:
    """A leaf's name: the key of a dictionary as it is, anything else as one would index it."""
    if not path:
        return "data"
    first = path[0]
    if isinstance(first, jax.tree_util.DictKey):
        return str(first.key) + jax.tree_util.keystr(path[1:])
    return jax.tree_util.keystr(path)


def refuse_repeated(names: Sequence[str]) -> None:
    """Refuse names that stand for two columns each: 1 and "1" in pandas, or arrays inside others."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"Column names must differ, but {count} columns are called {name!r}; rename them.")


@dataclass(frozen=True)
class Own:
    """The key of a column that is not the user's: row numbers, weights given as an array, what a formula computes.

    A user's column is read by its name, which is text, or by its place in a tree of arrays. An `Own` equals neither,
    so that no name a user may choose can stand for one of these columns.
    """

    what: str
    number: int = 0


@dataclass(frozen=True)
class Column:
    """One array of the rows: its name, and its type and shape on the device."""

    name: str  # for messages; columns are told apart by their keys
    dtype: np.dtype
    shape: tuple[int, ...] = ()  # of one row's entry
    from_table: bool = False
    implied: bool = False  # used only because the user named no columns
    own_key: Hashable = None

    @property
    def key(self) -> Hashable:
        """What the column is read by: its name unless it says otherwise."""
        return self.name if self.own_key is None else self.own_key

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape))
