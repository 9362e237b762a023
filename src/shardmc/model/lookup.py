"""A dict that remembers which entries were read, and says what there is when one is missing."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax

from shardmc.errors import ModelError


class NotThere(KeyError):
    """A column or parameter that a user's function asked for and that does not exist."""

    def as_model_error(self, function: str) -> ModelError:
        kind, name, names = self.args
        return ModelError(missing(function, kind, name, names))


def missing(function: str, kind: str, name: object, names: Iterable[str]) -> str:
    """The sentence for a name that does not exist: it lists those that do, the nearest first.

    >>> missing("log_likelihood", "column", "agge", ["income", "age"])
    "log_likelihood reads column 'agge', which does not exist. There are: age, income."
    """
    wanted = str(name).lower()
    nearest = sorted(names, key=lambda valid: -difflib.SequenceMatcher(None, wanted, valid.lower()).ratio())
    return (
        f"{function} reads {kind} {name!r}, which does not exist. There are: {', '.join(nearest) or 'none'}."
    )


@final
class Lookup(dict[str, Any]):
    """A dict of columns or parameters as a user's function sees it while it is tried."""

    kind: str
    on_read: Callable[[str], None]

    @staticmethod
    def of(entries: dict[str, Any], kind: str, on_read: Callable[[str], None]) -> Lookup:
        lookup = Lookup(entries)
        lookup.kind, lookup.on_read = kind, on_read
        return lookup

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise NotThere(self.kind, name, tuple(self.keys()))
        self.on_read(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            return self[name]  # not super().get, which would not be seen
        return default

    def __iter__(self) -> Iterator[str]:
        # Overridden so that `**rows` and `dict(rows)` come through __getitem__ too.
        return super().__iter__()

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


def _flatten(lookup: Lookup) -> tuple[list[Any], tuple[tuple[str, ...], str, Callable[[str], None]]]:
    names = tuple(sorted(lookup.keys()))
    return [lookup[name] for name in names], (names, lookup.kind, lookup.on_read)


def _unflatten(
    auxiliary: tuple[tuple[str, ...], str, Callable[[str], None]], leaves: Iterable[Any]
) -> Lookup:
    names, kind, on_read = auxiliary
    return Lookup.of(dict(zip(names, leaves, strict=True)), kind, on_read)


jax.tree_util.register_pytree_node(Lookup, _flatten, _unflatten)
