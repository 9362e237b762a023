"""A hash of values and functions by content, the same in every session: of options, and of code that is not traced."""

from __future__ import annotations

import functools
import hashlib
import re
import types
from collections.abc import Collection, Iterable, Mapping

import jax
import numpy as np


def fingerprint(*parts: object) -> str:
    """Hash of values and functions by content.

    The hash of a function covers its code (instructions, constants), its defaults, the values it closes over and the
    global names it reads: functions of the same package by their code, others by name. Arrays are hashed by content.
    An object with a `fingerprint` is hashed by that.

    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 1)
    True
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
    False
    """
    digest = _Digest()
    for part in parts:
        digest.add(part)
    return digest.hexdigest()


class _Digest:
    """A hash of values of any type. An object that comes again is hashed by the position of its first occurrence."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._met: dict[int, tuple[int, object]] = {}

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:32]

    def add(self, value: object) -> None:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            self._tag(type(value).__name__, repr(value))
        elif id(value) in self._met:
            self._tag("met", str(self._met[id(value)][0]))
        else:
            # Keep the value, because Python reuses the id of an object that is gone.
            self._met[id(value)] = (len(self._met), value)
            self._add_new(value)

    def _add_new(self, value: object) -> None:
        own = getattr(value, "fingerprint", None)
        if isinstance(own, str):
            self._tag("own", own)
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, types.ModuleType):
            self._tag("module", value.__name__)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            known = isinstance(getattr(value.__self__, "fingerprint", None), str)
            self._add_all("method", [value.__name__ if known else value.__func__, value.__self__])
        elif isinstance(value, functools.partial):
            self._add_all("partial", [value.func, value.args, value.keywords])
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self._add_array(np.asarray(value))
        elif isinstance(value, Mapping):
            self._add_all("mapping", [x for key in sorted(value, key=repr) for x in (key, value[key])])
        elif isinstance(value, set | frozenset):
            self._add_all("set", sorted(value, key=repr))
        elif isinstance(value, list | tuple):
            self._add_all("sequence", value)
        else:
            self._add_object(value)

    def _add_all(self, tag: str, values: Collection[object]) -> None:
        self._tag(tag, str(len(values)))
        for value in values:
            self.add(value)

    def _add_array(self, array: np.ndarray) -> None:
        self._tag("array", f"{array.dtype} {array.shape}")
        if array.dtype == object:
            self._add_all("objects", array.ravel().tolist())
        else:
            self._hash.update(np.ascontiguousarray(array).tobytes())

    def _add_code(self, code: types.CodeType) -> None:
        # Without file and line, so that moving a function does not change the hash.
        self._tag("code", code.co_code.hex())
        self._add_all("names", [code.co_names, code.co_varnames, code.co_freevars])
        self._add_all("constants", code.co_consts)

    def _add_function(self, function: types.FunctionType) -> None:
        wrapped = getattr(function, "__wrapped__", None)
        self._add_code(function.__code__)
        self._add_all("defaults", [function.__defaults__, function.__kwdefaults__, wrapped])
        self._add_all("closure", [_cell(cell) for cell in function.__closure__ or ()])
        package = (function.__module__ or "").partition(".")[0]
        for name in sorted(_names_read(function.__code__)):
            if name in function.__globals__:
                self._tag("global", name)
                self._add_global(function.__globals__[name], package)

    def _add_global(self, value: object, package: str) -> None:
        """Add a global: one of the function's own package by content, one of another package by name."""
        home = getattr(value, "__module__", None)
        if callable(value) and isinstance(home, str) and home.partition(".")[0] != package:
            self._tag("library", f"{home}.{getattr(value, '__qualname__', type(value).__qualname__)}")
        else:
            self.add(value)

    def _add_object(self, value: object) -> None:
        """Add anything else: a class by name, a pytree by its leaves, an object by its attributes, or by its repr."""
        if isinstance(value, type):
            self._tag("class", f"{value.__module__}.{value.__qualname__}")
            return
        self._tag("object", f"{type(value).__module__}.{type(value).__qualname__}")
        leaves, tree = jax.tree.flatten(value)
        wrapped = getattr(value, "__wrapped__", None)
        if not (len(leaves) == 1 and leaves[0] is value):
            self._add_all("leaves", leaves)
            self._tag("tree", without_addresses(str(tree)))
        elif wrapped is not None:
            self.add(wrapped)
        elif (attributes := _attributes(value)) is not None:
            call = getattr(type(value), "__call__", None)  # noqa: B004 - needed for its code
            self._add_all("attributes", [attributes, call if isinstance(call, types.FunctionType) else None])
        else:
            self._tag("repr", without_addresses(repr(value)))

    def _tag(self, tag: str, text: str) -> None:
        self._hash.update(f"{tag}:{len(text)}:{text};".encode())


def _attributes(value: object) -> dict[str, object] | None:
    """An object's attributes, also those in slots; None if it shows none."""
    slots = [name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    own = getattr(value, "__dict__", None)
    return {**found, **own} if isinstance(own, dict) else found or None


def _names(slots: str | Iterable[str]) -> list[str]:
    return [slots] if isinstance(slots, str) else [name for name in slots if not name.startswith("__")]


def _cell(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet, as in a function that calls itself
        return None


def _names_read(code: types.CodeType) -> set[str]:
    """Global names that a function and the functions defined inside it may read."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_read(constant)
    return names


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+", "0x", text)
