"""A hash of what a function and its derivatives compute: its traced program, the same in every session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.typing import ArrayLike

from shardmc.model.fingerprint import fingerprint, without_addresses
from shardmc.model.precision import double_precision
from shardmc.model.steps import Atom, needed
from shardmc.programs.kept import Unkept
from shardmc.types import Rows, Tree

_ROWS = 4
_WIDE = {"f": np.float64, "i": np.int64, "u": np.int64}


def traced_fingerprint(function: Callable[..., Tree], *args: Tree) -> str:
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


def _trace(function: Callable[..., Tree], args: Tree, *, double: bool) -> tuple[ClosedJaxpr, Tree]:
    with double_precision(double):
        abstract = jax.tree.map(lambda leaf: _abstract(leaf, double), args)
        # A new function, because JAX keeps what it traced for a function as long as the function lives.
        return jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*abstract)


def _abstract(leaf: jax.ShapeDtypeStruct, double: bool) -> jax.ShapeDtypeStruct:
    kind = np.dtype(leaf.dtype)
    return jax.ShapeDtypeStruct(leaf.shape, _WIDE.get(kind.kind, kind) if double else kind)


@final
class _Programs:
    """Hashes of programs and of those inside them. Each is hashed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, object]] = {}

    def closed(self, program: ClosedJaxpr) -> str:
        return self._once(program, lambda: self._hash(program.jaxpr, program.consts))

    def _once(self, program: object, compute: Callable[[], str]) -> str:
        if id(program) not in self._known:
            # Keep the program, because Python reuses the id of an object that is gone.
            self._known[id(program)] = (compute(), program)
        return self._known[id(program)][0]

    def _hash(self, program: Jaxpr, consts: Sequence[ArrayLike]) -> str:
        digest = hashlib.sha256()
        constants = dict(zip(program.constvars, consts, strict=False))
        numbers: dict[Var, int] = {variable: number for number, variable in enumerate(program.invars)}

        def read(atoms: Iterable[Atom]) -> str:
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
            first = len(numbers)
            numbers.update({variable: first + k for k, variable in enumerate(step.outvars)})
            digest.update((line + " ".join(str(variable.aval) for variable in step.outvars)).encode())
        digest.update(read(program.outvars).encode())
        return digest.hexdigest()

    def _of(self, step: JaxprEqn, params: Mapping[str, object]) -> str:
        if "callback" in step.primitive.name:
            return fingerprint(params)  # Python code that no program shows
        return self._text(params)

    def _text(self, value: object) -> str:
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


RULE = "jvp_jaxpr_fun"
"""The parameter of a step with a derivative of its own. The traced derivative shows what it is."""
_OF_JAX = Path(jax.__file__).parent
_OF_PACKAGE = Path(__file__).parents[1]
_MADE_FROM_OTHERS = _OF_JAX / "_src" / "custom_derivatives.py"


def exact_hash(program: ClosedJaxpr, place: int, orders: int) -> str:
    """Hash of a traced function, and of its derivatives where it has its own.

    `place` is that of the argument of the derivatives, and `orders` their number: programs take up to three.

    Raises `Unkept` if programs that differ could have the same hash: with Python functions that no program shows.

    >>> exact_hash(jax.make_jaxpr(lambda x: x**2)(1.0), 0, 1) == exact_hash(jax.make_jaxpr(lambda y: y**2)(2.0), 0, 1)
    True
    """
    rules = [_known_rule(rule) for rule in _rules(program.jaxpr)]
    if None not in rules:
        return " ".join([hash_program(program), *map(str, rules)])
    hashes = [hash_program(program)]
    first: Callable[..., Tree] = jaxpr_as_fun(program)
    derivative: Callable[..., Tree] = lambda theta, *rest: first(*rest[:place], theta, *rest[place:])[0]  # noqa: E731
    theta, *rest = (program.in_avals[place], *program.in_avals[:place], *program.in_avals[place + 1 :])
    for order in range(orders):
        derivative = _along(derivative)
        traced = jax.make_jaxpr(derivative)(*[theta] * (order + 2), *rest)
        list(_rules(traced.jaxpr))  # refuses what no hash covers
        hashes.append(hash_program(traced))
    return " ".join(hashes)


def _along(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The derivative of function(theta, ...) along a direction: a function of (theta, direction, ...)."""

    def derivative(theta: ArrayLike, direction: ArrayLike, *rest: ArrayLike) -> jax.Array:
        return jax.jvp(lambda theta: function(theta, *rest), (theta,), (direction,))[1]

    return derivative


def _rules(program: Jaxpr) -> Iterator[object]:
    """The derivatives of steps that have their own. Refuses steps that a hash does not cover."""
    for step in program.eqns:
        if step.effects or "callback" in step.primitive.name or step.primitive.name.startswith("custom_vjp"):
            raise Unkept(f"{step.primitive.name} calls Python")
        for name, value in step.params.items():
            if name == RULE:
                yield value
                continue
            for inner in _programs_in(value):
                yield from _rules(inner)


def _known_rule(rule: object) -> str | None:
    """Name of a derivative that JAX or this package has for a function of its own; None for others'.

    The version of JAX and the files of this package say what these are, and the program itself has all that they use.
    Tracing them takes long. The name and the file are those that JAX reports, so a function that claims to be one of
    JAX's, by `functools.wraps`, is believed.
    """
    name, file, line = _source(rule)
    known = is_of_jax(rule) or file.is_relative_to(_OF_PACKAGE)
    return f"{name} at {file.name}:{line}" if known else None


def is_of_jax(rule: object) -> bool:
    """Whether a derivative is one that JAX has for a function of its own."""
    file = _source(rule)[1]
    # Whole folders: those of other packages may begin with the same letters.
    return file.is_relative_to(_OF_JAX) and file != _MADE_FROM_OTHERS


def _source(rule: object) -> tuple[str, Path, str]:
    """The name, the file and the line of a derivative."""
    name, _, where = str(getattr(getattr(rule, "debug_info", None), "func_src_info", "")).partition(" at ")
    file, _, line = where.rpartition(":")
    return name, Path(file), line


def _programs_in(value: object) -> list[Jaxpr]:
    """The programs in a parameter of a step. Refuses values that `hash_program` does not reduce to their content."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return [program for each in value for program in _programs_in(each)]
    if isinstance(value, dict) and type(value) is dict:
        return [program for each in value.values() for program in _programs_in(each)]
    if isinstance(value, np.ndarray | np.generic | jax.Array | np.dtype | Enum):
        return []
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return []
    if isinstance(value, tuple) and not _holds_arrays(value) and not any(map(_programs_in, value)):
        return []  # a named tuple of simple values, which its repr shows
    if isinstance(value, jax.sharding.Mesh) and value.empty:
        return []
    of_jax = type(value).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy")
    if of_jax and not callable(value) and "0x" not in repr(value):
        return []
    raise Unkept(f"a parameter of type {type(value)}")


def _holds_arrays(values: tuple[object, ...]) -> bool:
    return any(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(values))
