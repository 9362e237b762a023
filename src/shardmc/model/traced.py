"""A hash of what a function computes: its traced program with all constants, the same in every session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from shardmc.model.fingerprint import fingerprint, without_addresses
from shardmc.model.precision import double_precision
from shardmc.model.steps import needed
from shardmc.types import Rows

_ROWS = 4
_WIDE = {"f": np.float64, "i": np.int64, "u": np.int64}


def traced_fingerprint(function: Callable[..., Any], *args: Any) -> str:
    """Hash of the program that a function becomes for arguments of these shapes.

    The program has every number that the function uses, wherever it comes from: a literal, a closure, a module, a
    class. It is traced in double precision, so that no digit of a constant is lost, or in single precision if the
    function cannot compute in double. Nothing is compiled.

    Parameters
    ----------
    function
        A function that JAX can trace.
    *args
        Pytrees of arrays or of `jax.ShapeDtypeStruct`. Only their structure, shapes and kinds of types count.

    Examples
    --------
    >>> scale = 2.0
    >>> before = traced_fingerprint(lambda x: scale * x, np.zeros(3))
    >>> before == traced_fingerprint(lambda y: 2.0 * y, np.ones(3))
    True
    >>> scale = 3.0
    >>> before == traced_fingerprint(lambda x: scale * x, np.zeros(3))
    False
    """
    try:
        closed, shape = _trace(function, args, double=True)
    except Exception:
        closed, shape = _trace(function, args, double=False)
    structures = f"{jax.tree.structure(args)} -> {jax.tree.structure(shape)}"
    program = hash_program(closed)
    return hashlib.sha256(f"{without_addresses(structures)} {program}".encode()).hexdigest()[:32]


def few_rows(rows: Rows) -> Rows:
    """Shapes and types of a few rows of this structure.

    >>> few_rows(np.zeros((100, 2), np.float32))
    ShapeDtypeStruct(shape=(4, 2), dtype=float32)
    """
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((_ROWS, *leaf.shape[1:]), leaf.dtype), rows)


def hash_program(program: ClosedJaxpr) -> str:
    """Hash of a traced program: its steps and its constants, not the names of its functions and variables."""
    return _Programs().closed(program)


def _trace(function: Callable[..., Any], args: Any, *, double: bool) -> tuple[ClosedJaxpr, Any]:
    with double_precision(double):
        abstract = jax.tree.map(lambda leaf: _abstract(leaf, double), args)
        # A new function, because JAX keeps what it traced for a function as long as the function lives.
        return jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*abstract)


def _abstract(leaf: Any, double: bool) -> jax.ShapeDtypeStruct:
    kind = np.dtype(leaf.dtype)
    return jax.ShapeDtypeStruct(leaf.shape, _WIDE.get(kind.kind, kind) if double else kind)


@final
class _Programs:
    """Hashes of programs and of those inside them. Each is hashed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, Any]] = {}

    def closed(self, program: ClosedJaxpr) -> str:
        return self._once(program, lambda: self._hash(program.jaxpr, program.consts))

    def _once(self, program: Any, compute: Callable[[], str]) -> str:
        if id(program) not in self._known:
            # Keep the program, because Python reuses the id of an object that is gone.
            self._known[id(program)] = (compute(), program)
        return self._known[id(program)][0]

    def _hash(self, program: Jaxpr, consts: Sequence[Any]) -> str:
        digest = hashlib.sha256()
        constants = dict(zip(program.constvars, consts, strict=False))
        numbers: dict[Any, int] = {variable: number for number, variable in enumerate(program.invars)}

        def read(atoms: Iterable[Any]) -> str:
            """The inputs of a step: variables by number, in order of their first use, constants by content."""
            words = []
            for atom in atoms:
                if isinstance(atom, Literal):
                    words.append(self._text(atom.val))
                    continue
                if atom not in numbers and atom in constants:
                    words.append(self._text(constants[atom]))
                words.append(str(numbers.setdefault(atom, len(numbers))))
            return " ".join(words)

        digest.update(" ".join(str(variable.aval) for variable in program.invars).encode())
        for step in needed(program):
            params = {name: value for name, value in sorted(step.params.items()) if name != "name"}
            line = f"{step.primitive.name} {read(step.invars)} {self._of(step, params)} "
            numbers.update((variable, len(numbers) + k) for k, variable in enumerate(step.outvars))
            digest.update((line + " ".join(str(variable.aval) for variable in step.outvars)).encode())
        digest.update(read(program.outvars).encode())
        return digest.hexdigest()

    def _of(self, step: JaxprEqn, params: dict[str, Any]) -> str:
        if "callback" in step.primitive.name:
            return fingerprint(params)  # Python code that no program shows
        return self._text(params)

    def _text(self, value: Any) -> str:
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self._once(value, lambda: self._hash(value, ()))
        if isinstance(value, dict):
            return "{" + " ".join(f"{name}={self._text(inner)}" for name, inner in value.items()) + "}"
        if isinstance(value, tuple | list) and type(value) in (tuple, list):
            return "(" + " ".join(map(self._text, value)) + ")"
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return fingerprint(value)
        if callable(value) and not isinstance(value, type):
            return "function"  # the rule of a derivative: the program itself says what is computed
        return without_addresses(repr(value))
