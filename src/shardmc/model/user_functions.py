"""Functions that a user wrote: which entries they read, and their errors in one sentence that names the function."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, final

import jax

from shardmc.errors import ModelError, ShardmcError

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
class WatchedDict(dict[str, Any]):
    """A dict of columns or parameters that reports each entry a user's function reads.

    >>> read = []
    >>> watched = WatchedDict.of({"x": 1, "y": 2}, "column", read.append)
    >>> watched["y"], read
    (2, ['y'])
    """

    kind: str
    on_read: Callable[[str], None]

    @staticmethod
    def of(entries: dict[str, Any], kind: str, on_read: Callable[[str], None]) -> WatchedDict:
        watched = WatchedDict(entries)
        watched.kind, watched.on_read = kind, on_read
        return watched

    def __getitem__(self, name: str) -> Any:
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


def _flatten(watched: WatchedDict) -> tuple[list[Any], tuple[tuple[str, ...], str, Callable[[str], None]]]:
    names = tuple(sorted(watched.keys()))
    return [watched[name] for name in names], (names, watched.kind, watched.on_read)


def _unflatten(
    auxiliary: tuple[tuple[str, ...], str, Callable[[str], None]], leaves: Iterable[Any]
) -> WatchedDict:
    names, kind, on_read = auxiliary
    return WatchedDict.of(dict(zip(names, leaves, strict=True)), kind, on_read)


jax.tree_util.register_pytree_node(WatchedDict, _flatten, _unflatten)
