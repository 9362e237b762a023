"""Models that differ only in their numbers share compiled programs, which take the numbers as arguments."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike

from shardmc.model.faster import logarithms, products
from shardmc.model.model import Density, Model
from shardmc.model.precision import type_of
from shardmc.model.steps import Atom, RunStep, form, needed, no_other, run_open, without_calls
from shardmc.model.traced import exact_hash
from shardmc.programs.compiled import fuses_on_cpu
from shardmc.programs.kept import Unkept, watched
from shardmc.programs.process import TRACING
from shardmc.types import Rows, Tree

T = TypeVar("T")

_ROWS = 64
"""The number of rows for which functions are compared before any program needs them.

As many as are checked first, and as a group of the measurement of rounding has, so that these trace nothing again.
"""

_MOST_TRACED = 8
"""Shapes for which a traced function is kept."""
_MOST_SHAPES = 32
"""Shapes at which another model is compared with it: at least as many as an engine keeps programs for."""

Numbers: TypeAlias = tuple[np.ndarray | jax.Array, tuple[ArrayLike, ...]]
"""The single numbers of a function, and its arrays."""


_ORDERS = 3
"""Derivatives that programs take."""


class Unshared(Exception):
    """A function's steps are not known exactly, or its numbers depend on the number of rows."""


@final
class SharedFunction:
    """A traced function without its numbers, which are arguments. Functions of equal steps are the same object.

    The numbers are arrays that the function holds, and those of its single numbers that meet no row: the scale of a
    prior, for example. Numbers that are combined with rows stay part of the program, which is faster.
    """

    _all: ClassVar[weakref.WeakValueDictionary[str, SharedFunction]] = weakref.WeakValueDictionary()
    _lock: ClassVar = threading.Lock()

    def __init__(self, model: Model, name: str, numbers: Numbers, example: _Shape) -> None:
        self._model, self._name, self._numbers, self._example = model, name, numbers, example
        self._traced: OrderedDict[_Shape, _Form] = OrderedDict()  # the last ones used last
        self._hashes: OrderedDict[_Shape, str] = OrderedDict()
        self._others: weakref.WeakKeyDictionary[Model, Numbers] = weakref.WeakKeyDictionary()

    @classmethod
    def of(cls, model: Model, name: str, *args: Tree) -> tuple[SharedFunction, Numbers]:
        """The shared form of a model's `log_prior` or `log_likelihood`, and its numbers. `args` are abstract."""
        form, example = _Form.of(getattr(model, name), args, _ORDERS), _Shape.of(args)
        numbers = _numbers(form.closed)
        with cls._lock:
            shared = cls._all.get(form.hash)
            if shared is None:
                shared = cls._all[form.hash] = cls(model, name, numbers, example)
                shared._keep(example, form)
                return shared, numbers
            known = [seen for seen in shared._hashes.items() if seen[0] != example]
            # From now on it is also compared at shapes that come later.
            shared._others[model] = numbers
        # Programs exist for some numbers of rows. There, too, both functions must have the same steps.
        for seen, expected in known:
            if not _computes(getattr(model, name), seen, expected, numbers):
                shared._others.pop(model, None)
                raise Unshared
        return shared, numbers

    def __call__(self, numbers: Numbers, *args: Tree) -> jax.Array:
        """The value of the function with these numbers."""
        (result,) = fill(self._at(_Shape.of(args)).closed, numbers, jax.tree.leaves(args))
        return result

    def program(self, *args: Tree) -> ClosedJaxpr:
        """The function traced for arguments of these shapes, with numbers of its own."""
        return self._at(_Shape.of(args)).closed

    def kept_content(self) -> str:
        """What the function computes for a few rows, without its numbers."""
        return self.kept_form(self._example)

    def kept_form(self, args: _Shape) -> str:
        """What the function and its derivatives compute for arguments of these shapes, without its numbers."""
        return f"{args} {self._at(args).hash}"

    def _at(self, shape: _Shape) -> _Form:
        """The function traced for arguments of this shape, with the numbers that it has for a few rows."""
        watched(self, shape)
        known = self._traced.get(shape)
        if known is None:
            known = _Form.of(
                getattr(self._model, self._name), shape.abstract(), _ORDERS if shape == self._example else 1
            )
            if not _equal(_numbers(known.closed), self._numbers):
                raise Unshared
            if shape != self._example:
                self._compare(shape, known)
        with self._lock:
            self._keep(shape, known)
        return known

    def _compare(self, shape: _Shape, form: _Form) -> None:
        """Compare all models at a new shape: a branch on the number of rows may separate those that agreed until now.

        It is not known which of them has the program that is being traced. So none uses it, if one differs.
        """
        differ = False
        for model, numbers in list(self._others.items()):
            if not _computes(getattr(model, self._name), shape, form.hash, numbers):
                self._others.pop(model, None)
                model.numbers_are_fixed = differ = True
        if differ:
            raise Unshared

    def _keep(self, shape: _Shape, form: _Form) -> None:
        self._traced[shape], self._hashes[shape] = form, form.hash
        for kept, most in ((self._traced, _MOST_TRACED), (self._hashes, _MOST_SHAPES)):
            kept.move_to_end(shape)
            while len(kept) > most:
                kept.popitem(last=False)


def _computes(function: Callable[..., jax.Array], shape: _Shape, expected: str, numbers: Numbers) -> bool:
    """Whether a function has the steps with this hash for arguments of a shape, and the same numbers as elsewhere."""
    form = _Form.of(function, shape.abstract())
    return form.hash == expected and _equal(_numbers(form.closed), numbers)


@final
@dataclass(frozen=True)
class SharedDensity:
    """A model as programs see it: steps that are part of the program, and numbers that are its arguments."""

    prior: SharedFunction
    likelihood: SharedFunction | None
    dim: int
    numbers: tuple[Numbers, Numbers | None] | None = field(default=None, compare=False)

    def log_prior(self, theta: jax.Array) -> jax.Array:
        assert self.numbers is not None
        return self.prior(self.numbers[0], theta)

    def log_likelihood(self, theta: jax.Array, rows: Rows) -> jax.Array:
        assert self.numbers is not None
        assert self.likelihood is not None
        assert self.numbers[1] is not None
        return self.likelihood(self.numbers[1], theta, rows)


def split(model: Density, rows: Rows | None) -> tuple[Density, Tree]:
    """What of a model is part of a program, and the numbers that are its arguments.

    Parameters
    ----------
    model
        The model.
    rows
        Rows of the structure that it will read; None if only the prior is needed.
    """
    if not isinstance(model, Model) or model.numbers_are_fixed:
        return model, None
    key = (_structure(rows), jnp.result_type(float))
    if key not in model.shared_forms:
        try:
            model.shared_forms[key] = _shared(model, rows)
        except Exception:  # a mistake in the model is reported where the model is used
            model.numbers_are_fixed = True
            return model, None
    return model.shared_forms[key]


def joined(kind: Density, numbers: Tree) -> Density:
    """The density that `split` took apart, inside a program."""
    return replace(kind, numbers=numbers) if isinstance(kind, SharedDensity) else kind


def with_shared(function: Callable[..., T], model: Density, rows: Rows | None, *args: Tree) -> T:
    """function(kind, numbers, *args) of a compiled function that joins the two to a density."""
    kind, numbers = split(model, rows)
    try:
        return function(kind, numbers, *args)
    except Unshared:
        assert isinstance(model, Model)
        model.numbers_are_fixed = True
        return function(model, None, *args)


def _shared(model: Model, rows: Rows | None) -> tuple[SharedDensity, tuple[Numbers, Numbers | None]]:
    real = jnp.result_type(float)
    theta = jax.ShapeDtypeStruct((model.dim,), real)
    prior, numbers = SharedFunction.of(model, "log_prior", theta)
    if rows is None:
        return SharedDensity(prior, None, model.dim), (numbers, None)

    def few(leaf: jax.Array | np.ndarray) -> jax.ShapeDtypeStruct:
        # As `data.source.wide` gives them to programs.
        is_real = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.ShapeDtypeStruct((_ROWS, *leaf.shape[1:]), real if is_real else leaf.dtype)

    likelihood, more = SharedFunction.of(model, "log_likelihood", theta, jax.tree.map(few, rows))
    return SharedDensity(prior, likelihood, model.dim), (numbers, more)


def _structure(rows: Rows | None) -> Hashable:
    leaves, tree = jax.tree.flatten(rows)
    return tree, tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)


@dataclass(frozen=True)
class _Shape:
    """Structure, shapes and types of arguments."""

    tree: Hashable
    leaves: tuple[tuple[tuple[int, ...], np.dtype], ...]

    @staticmethod
    def of(args: Tree) -> _Shape:
        leaves, tree = jax.tree.flatten(args)
        return _Shape(tree, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))

    def abstract(self) -> Tree:
        return jax.tree.unflatten(self.tree, [jax.ShapeDtypeStruct(*leaf) for leaf in self.leaves])


@dataclass(frozen=True)
class _Form:
    """A function traced for arguments of some shapes."""

    closed: ClosedJaxpr
    """With its numbers."""
    open: ClosedJaxpr
    """With its numbers as arguments before the others."""
    hash: str
    """Of its steps and derivatives, without its numbers."""

    @staticmethod
    def of(function: Callable[..., jax.Array], args: Tree, orders: int = 1) -> _Form:
        """The function of theta (and rows) for arguments like these, which are abstract.

        Where it has derivatives of its own, so many of them are part of the hash.
        """
        # In the precision in which programs are traced. A new function, because JAX keeps what it traced for a function
        # as long as the function lives.
        with TRACING, jax.default_matmul_precision("highest"):
            closed = without_calls(jax.make_jaxpr(lambda *args: function(*args))(*args))
        opened = jax.make_jaxpr(lambda numbers, args: fill(closed, numbers, args))(
            _numbers(closed), jax.tree.leaves(args)
        )
        theta = len(jax.tree.leaves(_numbers(closed)))
        try:
            found = exact_hash(opened, theta, orders)
        except Unkept as error:
            raise Unshared from error
        return _Form(closed, opened, f"{jax.tree.structure(args)} {found}")


def _steps(closed: ClosedJaxpr) -> list[tuple[int, JaxprEqn]]:
    """The steps that the result needs, each with its place."""
    kept = set(map(id, needed(closed.jaxpr)))
    return [(number, step) for number, step in enumerate(closed.jaxpr.eqns) if id(step) in kept]


def _arrays(closed: ClosedJaxpr) -> list[tuple[Var, ArrayLike]]:
    """The arrays that the result needs: variables and values."""
    read = {id(atom) for _, step in _steps(closed) for atom in step.invars} | set(
        map(id, closed.jaxpr.outvars)
    )
    pairs = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    return [(variable, value) for variable, value in pairs if id(variable) in read]


def _numbers(closed: ClosedJaxpr) -> Numbers:
    single = [closed.jaxpr.eqns[step].invars[place].val for step, place in _holes(closed)]
    arrays = tuple(np.asarray(value).astype(form(variable).dtype) for variable, value in _arrays(closed))
    return np.array(single, jnp.result_type(float)), arrays


def _holes(closed: ClosedJaxpr) -> Iterator[tuple[int, int]]:
    """The single numbers that are taken out, by step and place: real ones, in steps that no row takes part in."""
    real = jnp.result_type(float)
    met = set(closed.jaxpr.invars[1:])  # all but theta
    for number, step in _steps(closed):
        inputs = [atom for atom in step.invars if not isinstance(atom, Literal)]
        if any(atom in met for atom in inputs):
            met.update(step.outvars)
        elif step.primitive.name != "pow":  # x**2 is faster than x**a
            for place, atom in enumerate(step.invars):
                if isinstance(atom, Literal) and jnp.shape(atom.val) == () and type_of(atom) == real:
                    yield number, place


def fill(
    closed: ClosedJaxpr,
    numbers: Numbers,
    args: Sequence[ArrayLike],
    given: Mapping[int, RunStep] = MappingProxyType({}),
    until: int | None = None,
) -> list[Any]:
    """Compute a traced function step by step, with other numbers.

    Parameters
    ----------
    given
        Other ways to compute some of its steps, by their places.
    until
        The place of a step whose inputs are wanted, instead of the function's value.
    """
    single, arrays = numbers
    holes = {hole: number for number, hole in enumerate(_holes(closed))}
    values: dict[Var, ArrayLike] = {
        variable: array for (variable, _), array in zip(_arrays(closed), arrays, strict=True)
    }
    values.update(zip(closed.jaxpr.invars, args, strict=True))

    def read(atoms: Sequence[Atom], number: int = -1) -> list[ArrayLike]:
        return [
            single[holes[number, place]]
            if (number, place) in holes
            else atom.val
            if isinstance(atom, Literal)
            else values[atom]
            for place, atom in enumerate(atoms)
        ]

    on_cpu = jax.default_backend() == "cpu"
    ways = logarithms if on_cpu and not fuses_on_cpu() else no_other
    other = {**(products(closed.jaxpr) if on_cpu else {}), **ways(closed.jaxpr), **given}
    for number, step in _steps(closed):
        if number == until:
            return read(step.invars, number)
        run = other.get(number, partial(run_open, ways=ways))
        values.update(zip(step.outvars, run(step, read(step.invars, number)), strict=True))
    return read(closed.jaxpr.outvars)


def _equal(one: Numbers, two: Numbers) -> bool:
    leaves = [jax.tree.leaves(numbers) for numbers in (one, two)]
    return len(leaves[0]) == len(leaves[1]) and all(
        a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)
        for a, b in zip(*leaves, strict=True)
    )
