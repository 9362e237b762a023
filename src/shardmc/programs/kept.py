"""Compiled programs in files, for the next process: it neither traces nor compiles what this one did.

A file is found by a hash of all that a program depends on. What cannot be reduced to its content is not kept.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol, final, runtime_checkable

import jax
import numpy as np

from shardmc.programs.cache import folder_in_use, processor, read_program, write_program
from shardmc.programs.process import installed_version

_PACKAGE = "shardmc"
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "blackjax", "numpyro", "optax")
_NOT_TRACED = ("cache", "log", "dump", "traceback", "pprint", "timeout", "pgle")
"""Words in the names of JAX's options that change no program."""
_LAPACK = re.compile(rb"lapack_[a-z]+_ffi")
"""How a program on a CPU names its calls of LAPACK."""


class Unkept(Exception):
    """The exact content of something is not known, so a program that depends on it is not kept."""


@runtime_checkable
class Traced(Protocol):
    """A function whose content is what it computes, for arguments of some shapes."""

    def kept_content(self) -> str:
        """What it computes for arguments of a typical shape."""
        ...

    def kept_form(self, args: Any) -> str:
        """What it computes for arguments of these shapes."""
        ...


_watching = threading.local()


@contextmanager
def watching() -> Iterator[list[tuple[Traced, Hashable]]]:
    """The traced functions, and the shapes of their arguments, that a program calls while it is traced here."""
    before, seen = getattr(_watching, "seen", None), []
    _watching.seen = seen
    try:
        yield seen
    finally:
        _watching.seen = before


def watched(function: Traced, args: Hashable) -> None:
    """Say that a traced function is called with arguments of these shapes."""
    seen = getattr(_watching, "seen", None)
    if seen is not None:
        seen.append((function, args))


def content(value: object, functions: list[Traced]) -> str:
    """All that a value is, in words. Traced functions in it are appended to `functions`.

    >>> content((1, 2.5, "a"), [])
    "(int:1,float:2.5,str:'a')"
    """
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return "(" + ",".join(content(each, functions) for each in value) + ")"
    if isinstance(value, dict) and type(value) is dict:
        return "{" + ",".join(content(pair, functions) for pair in value.items()) + "}"
    if isinstance(value, np.dtype):
        return f"dtype:{value!r}"
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array:{value.dtype}{np.shape(value)}{digest}"
    if isinstance(value, type | FunctionType) and _is_own(value):
        return f"name:{value.__module__}.{value.__qualname__}"
    if not _is_own(type(value)):
        raise Unkept(f"{type(value)} is not one of this package")
    if isinstance(value, Traced):
        functions.append(value)
        return f"traced:{value.kept_content()}"
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Enum):
        return f"{name}.{value.name}"
    if not dataclasses.is_dataclass(value):
        raise Unkept(f"{name} may hold anything")
    fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return name + content(fields, functions)


def _is_own(named: type | FunctionType) -> bool:
    """Whether a class or function is found in this package by its name, so that the package's files say what it is."""
    if not named.__module__.startswith(f"{_PACKAGE}."):
        return False
    return getattr(sys.modules.get(named.__module__), named.__qualname__, None) is named


@final
@dataclass(frozen=True)
class Entry:
    """A program's place in the folder: by what it depends on."""

    folder: Path
    name: str
    functions: list[Traced]
    in_tree: Hashable

    @staticmethod
    def of(
        function: Callable[..., object],
        known: tuple[object, ...],
        rest: tuple[object, ...],
        options: Mapping[str, object],
    ) -> Entry | None:
        """The entry of a function compiled for `known`, and for arguments like `rest`; None if it is not kept."""
        folder = folder_in_use()
        if folder is None or _jax_keeps_programs():
            return None
        functions: list[Traced] = []
        leaves, tree = jax.tree.flatten((rest, {}))
        try:
            name = f"{function.__module__}.{function.__qualname__}"
            if not name.startswith(f"{_PACKAGE}."):
                return None
            words = [name, content(known, functions), content(dict(options), functions), _structure(tree)]
            words += [repr(kind(leaf)) for leaf in leaves]
            words += [_environment(), _configuration()]
        except Exception:  # whatever is wrong with a model is reported when it is compiled
            return None
        digest = hashlib.sha256("\n".join(words).encode()).hexdigest()
        return Entry(folder.path, f"{digest}.program", functions, tree)

    def load(self) -> jax.stages.Compiled | None:
        """The program; None if there is none, or none that is intact and computes the same."""
        from jax.experimental.serialize_executable import deserialize_and_load

        data = read_program(self.folder / self.name)
        if data is None:
            return None
        try:
            forms, out_tree, program = pickle.loads(data)  # of this user's own folder, with its checksum
            if any(self.functions[place].kept_form(args) != form for place, args, form in forms):
                return None
            return deserialize_and_load(program, self.in_tree, out_tree)
        except Exception:  # it was written by something else
            return None

    def save(self, program: jax.stages.Compiled, seen: list[tuple[Traced, Hashable]]) -> None:
        """Keep a program that called these functions when it was traced. A failure only means that it is not kept."""
        from jax.experimental.serialize_executable import serialize

        try:
            places = {id(function): place for place, function in enumerate(self.functions)}
            if self.functions and not seen:
                return  # JAX remembered what it traced earlier
            forms = [(places[id(function)], args, function.kept_form(args)) for function, args in seen]
            serialized, _, out_tree = serialize(program)
            if _LAPACK.search(serialized):
                return  # JAX connects it to SciPy's when it traces; a process that only loads the program would crash
            data = io.BytesIO()
            pickle.dump((forms, out_tree, serialized), data)
            write_program(self.folder, self.name, data.getvalue())
        except Exception:  # a callback, an output that cannot be pickled, a device that cannot do it
            return


def _jax_keeps_programs() -> bool:
    """Whether JAX has a cache of its own. XLA cannot save again what was loaded from there."""
    options = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    return all(getattr(jax.config, option) for option in options)


def kind(leaf: object) -> tuple[Hashable, ...]:
    """Type and shape of an argument: what a program is compiled for."""
    return getattr(leaf, "dtype", type(leaf)), getattr(leaf, "shape", ()), getattr(leaf, "weak_type", False)


def _structure(tree: Hashable) -> str:
    """A tree in words: of containers of Python's, and of classes of this package."""
    return hashlib.sha256(pickle.dumps(tree)).hexdigest() + str(tree)


@cache
def _environment() -> str:
    """What every program depends on: this package's files, versions, processor and device."""
    root = Path(__file__).parents[1]
    files = sorted(root.rglob("*.py"))
    if not files:
        raise Unkept("the package's files cannot be read")
    source = hashlib.sha256()
    for file in files:
        source.update(f"{file.relative_to(root)}\n{file.stat().st_size}\n".encode() + file.read_bytes())
    device = jax.devices()[0]
    words = [source.hexdigest(), sys.version, sys.platform, processor(), str(_cores())]
    words += [device.platform, device.device_kind, device.client.platform_version, str(jax.device_count())]
    words += [f"{name} {installed_version(name)}" for name in _LIBRARIES]
    words += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith("XLA_")]
    return "\n".join(words)


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _configuration() -> str:
    """JAX's options, as they are in this thread."""
    names = [name for name in jax.config.values if not any(word in name for word in _NOT_TRACED)]
    return " ".join(f"{name}={getattr(jax.config, name, None)!r}" for name in sorted(names))
