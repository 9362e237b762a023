"""How large an input may be: every limit has a name, by which `shardmc.limits` raises it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import final

from shardmc.errors import OptionError, OutOfMemoryError, ShardmcError, unknown


@final
@dataclass(frozen=True)
class InputLimits:
    """The limits, with their defaults. Ordinary input stays far below them; input made to exhaust a machine does not.

    Examples
    --------
    >>> InputLimits().depth
    64
    """

    terms: int = 5_000
    """Terms of a formula while its products and powers are expanded."""
    coefficients: int = 2_000
    """Columns of a design matrix."""
    basis: int = 200
    """Columns of one poly(...) or spline."""
    columns: int = 20_000
    """Columns of a table."""
    unpacking: int = 200
    """How many times its own size a compressed file may unpack to, if that is more than 64 MB."""
    depth: int = 64
    """Levels of groups within groups in a netCDF file."""
    objects: int = 100_000
    """Groups and variables in a netCDF file."""


_current: ContextVar[InputLimits] = ContextVar("limits", default=InputLimits())  # noqa: B039 - it is frozen


@contextmanager
def limits(**raised: int) -> Iterator[InputLimits]:
    """Use other limits within a block, for input that you trust.

    Parameters
    ----------
    **raised
        Name -> number: `terms`, `coefficients`, `basis`, `columns`, `unpacking`, `depth`, `objects`. The message about
        an input that is too large names the one to raise.

    Examples
    --------
    >>> import shardmc
    >>> with shardmc.limits(terms=50_000) as current:
    ...     current.terms
    50000
    """
    names = [each.name for each in fields(InputLimits)]
    for name, value in raised.items():
        if name not in names:
            raise unknown("limit", name, names)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"The limit {name} must be a whole number of at least 1, not {value!r}.")
    token = _current.set(replace(_current.get(), **raised))
    try:
        yield _current.get()
    finally:
        _current.reset(token)


def limit(name: str) -> int:
    """The limit of this name that holds now.

    >>> limit("basis")
    200
    """
    return getattr(_current.get(), name)


def refuse_above(
    name: str, found: float, sentence: str, kind: type[ShardmcError] = ShardmcError, unit: str = ""
) -> None:
    """Raise an error if `found` is above the limit of this name. It says how to raise the limit.

    >>> refuse_above("basis", 300, "poly(x, 300) makes 300 columns")
    Traceback (most recent call last):
    shardmc.errors.ShardmcError: poly(x, 300) makes 300 columns; the limit is 200. If that is what you want, raise it: \
with shardmc.limits(basis=300), or shardmc --limit basis=300 ... on the command line.
    """
    if found > limit(name):
        wanted = f"{name}={int(min(found, 1e18))}"
        raise kind(
            f"{sentence}; the limit is {limit(name):,}{unit}. If that is what you want, raise it: with "
            f"shardmc.limits({wanted}), or shardmc --limit {wanted} ... on the command line."
        )


_UNITS = {"": 1, "bytes": 1, **{f"{u}iB": 2 ** (10 * k) for k, u in enumerate("KMGTP", 1)}}
_ASKED = re.compile(r"(?:allocat\w*|of size) ([\d.]*\d) ?(bytes|[KMGTP]iB)?")


def needed_memory(error: BaseException) -> float | None:
    """The bytes that NumPy, Arrow or XLA could not get; 0 if they do not say, None if the error is another one.

    >>> needed_memory(MemoryError("Unable to allocate 2.00 KiB for an array"))
    2048.0
    """
    if not (isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED")):
        return None
    found = _ASKED.search(str(error))
    return 0.0 if found is None else float(found[1]) * _UNITS[found[2] or ""]


@contextmanager
def memory_explained(what: str, advice: str) -> Iterator[None]:
    """Turn the errors of NumPy, Arrow and XLA about memory into a sentence with the size, and what to change."""
    try:
        yield
    except Exception as error:
        needed = needed_memory(error)
        if needed is None or isinstance(error, ShardmcError):
            raise
        size = (
            f"{_size(needed)} of memory at once, more than there is"
            if needed
            else "more memory than there is"
        )
        raise OutOfMemoryError(f"{what} needs {size}. {advice}") from error


def _size(count: float) -> str:
    """Bytes in a unit that fits.

    >>> _size(8e9), _size(2_500)
    ('8.0 GB', '2.5 kB')
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,.0f} bytes"
