"""Functions that a user wrote: small samples of rows to try them on, the entries they read, and their errors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.errors import DataError, ModelError, ShardmcError
from shardmc.types import Rows


@dataclass(frozen=True)
class TwoSamples:
    """Two samples that share rows: what a row contributes must not depend on the rows around it."""

    first: Rows
    second: Rows  # every second row of the first, in reverse order
    index: np.ndarray  # positions of the second sample's rows in the first


def num_rows(rows: Rows) -> int:
    """Length of the common first axis.

    >>> num_rows({"x": np.zeros((4, 2)), "y": np.zeros(4)})
    4
    """
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(rows)}
    if len(lengths) != 1 or 0 in lengths:
        raise DataError("Rows must be arrays with a common first axis of at least one row.")
    return lengths.pop()


def take(rows: Rows, index: np.ndarray) -> Rows:
    """The rows at these positions.

    >>> take((np.arange(3), np.arange(3) * 2), np.array([2, 0]))
    (array([2, 0]), array([4, 0]))
    """
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], rows)


def two_samples(rows: Rows) -> TwoSamples:
    """Two samples of different size. A table of fewer than four rows is repeated until it has four.

    >>> two_samples(np.arange(5)).second
    array([4, 2, 0])
    """
    length = num_rows(rows)
    first = take(rows, np.resize(np.arange(length), max(length, 4)))
    index = np.arange(max(length, 4))[::-2]
    return TwoSamples(first, take(first, index), index)


def structure_key(rows: Rows) -> Hashable:
    """A key that is equal for rows that one model can serve: the tree, and each leaf's type and shape per row.

    >>> structure_key(np.zeros((3, 2))) == structure_key(np.ones((7, 2)))
    True
    """
    leaves, tree = jax.tree.flatten(rows)
    return tree, tuple((np.shape(leaf)[1:], np.asarray(leaf).dtype.str) for leaf in leaves)


def row_axis(
    what: str, first: tuple[int, ...], second: tuple[int, ...], lengths: tuple[int, int]
) -> int | None:
    """The axis whose size is the number of rows, given a log density's shapes for two numbers of rows.

    None if the shape does not depend on the number of rows.

    >>> row_axis("observed site 'y'", (2, 12), (2, 6), (12, 6))
    1
    """
    if first == second:
        return None
    changing = [axis for axis, sizes in enumerate(zip(first, second, strict=False)) if sizes == lengths]
    expected = len(first) == len(second) and sum(a != b for a, b in zip(first, second, strict=False)) == 1
    if len(changing) == 1 and expected:
        return changing[0]
    if len(changing) > 1:
        raise ModelError(
            f"The log density of {what} has shape {first} for {lengths[0]} rows, more than one axis of rows: what is "
            "observed and its distribution have shapes such as (n,) and (n, 1), which broadcast to (n, n)."
        )
    raise ModelError(
        f"The log density of {what} has shape {first} for {lengths[0]} rows and {second} for {lengths[1]}: it must "
        "have one axis with one value per row."
    )


def sum_to_rows(density: jax.Array, axis: int) -> jax.Array:
    """One number per row: the sum over all axes except that of the rows.

    >>> sum_to_rows(jnp.ones((2, 3)), 1).tolist()
    [2.0, 2.0, 2.0]
    """
    others = tuple(i for i in range(density.ndim) if i != axis)
    return jnp.sum(density, axis=others) if others else density


_ADVICE: tuple[tuple[type[Exception], str], ...] = (
    (
        jax.errors.TracerArrayConversionError,
        "calls NumPy or SciPy on JAX arrays: use jax.numpy and jax.scipy instead",
    ),
    (
        jax.errors.TracerBoolConversionError,
        "uses `if` on values of rows or parameters: use jax.numpy.where instead",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "selects rows by a condition: use jax.numpy.where instead, because every row must give a number",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "needs values of rows or parameters for a shape or a loop: compute that number beforehand and give it to "
        "the model as a constant",
    ),
)


@contextmanager
def calling(function: str) -> Iterator[None]:
    """Turn any error inside into a ModelError that names the function.

    >>> with calling("log_prior"):
    ...     {}["scale"]
    Traceback (most recent call last):
    shardmc.errors.ModelError: log_prior raised KeyError: 'scale'
    """
    try:
        yield
    except ShardmcError:
        raise
    except MissingEntry as error:
        raise ModelError(missing(function, *error.args)) from None
    except Exception as error:
        for kind, advice in _ADVICE:
            if isinstance(error, kind):
                raise ModelError(f"{function} {advice} ({type(error).__name__}).") from error
        lines = str(error).strip().splitlines() or [""]
        raise ModelError(f"{function} raised {type(error).__name__}: {lines[0]}") from error


class MissingEntry(KeyError):
    """A column or parameter that a user's function reads and that does not exist: (kind, name, existing names)."""


def missing(function: str, kind: str, name: object, names: Iterable[str]) -> str:
    """The message about a name that does not exist. It lists the existing ones, the most similar first.

    >>> missing("log_likelihood", "column", "agge", ["income", "age"])
    "log_likelihood reads column 'agge', which does not exist. There are: age, income."
    """
    wanted = str(name).lower()
    nearest = sorted(names, key=lambda valid: -difflib.SequenceMatcher(None, wanted, valid.lower()).ratio())
    return (
        f"{function} reads {kind} {name!r}, which does not exist. There are: {', '.join(nearest) or 'none'}."
    )


@final
class WatchedDict(dict[str, Rows]):
    """A dict of columns or parameters that reports each entry a user's function reads.

    >>> read = []
    >>> watched = WatchedDict.of({"x": 1, "y": 2}, "column", read.append)
    >>> watched["y"], read
    (2, ['y'])
    """

    kind: str
    on_read: Callable[[str], None]

    @staticmethod
    def of(entries: Mapping[str, Rows], kind: str, on_read: Callable[[str], None]) -> WatchedDict:
        watched = WatchedDict(entries)
        watched.kind, watched.on_read = kind, on_read
        return watched

    def __getitem__(self, name: str) -> Rows:
        if name not in self:
            raise MissingEntry(self.kind, name, tuple(self.keys()))
        self.on_read(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            return self[name]  # super().get would not report the read
        return default

    def __iter__(self) -> Iterator[str]:
        # With an __iter__ of its own, `**rows` and `dict(rows)` go through __getitem__ too.
        return super().__iter__()

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


def _flatten(watched: WatchedDict) -> tuple[list[Rows], tuple[tuple[str, ...], str, Callable[[str], None]]]:
    names = tuple(sorted(watched.keys()))
    return [watched[name] for name in names], (names, watched.kind, watched.on_read)


def _unflatten(
    auxiliary: tuple[tuple[str, ...], str, Callable[[str], None]], leaves: Iterable[Rows]
) -> WatchedDict:
    names, kind, on_read = auxiliary
    return WatchedDict.of(dict(zip(names, leaves, strict=True)), kind, on_read)


jax.tree_util.register_pytree_node(WatchedDict, _flatten, _unflatten)
