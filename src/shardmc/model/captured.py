"""User's functions made safe to compile: in single and in double precision, and with the right derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal

_CALLS = ("pjit", "jit", "closed_call")
"""Primitives that are a function called as it is; the first name is that of older versions of JAX."""


@final
class Captured:
    """A function that is traced apart, and rewritten, where it would not compile to what it says.

    NumPy arrays of 64 bits: as long as some program needs it, JAX remembers into which type of the present precision it
    has turned such an array, and would take that also in the other precision. So fresh copies go into the program.

    The smaller or larger of two numbers: JAX takes its derivative from which of them equals the result. XLA may
    compute a number twice, and not to the last bit the same; then neither equals it, and the derivative is lost. So it
    is written as a choice between the two. (`jax.scipy.special.betaln`, and with it NumPyro's Beta and beta-binomial,
    need this.)

    A function that has neither, as the first call finds, is simply called.

    >>> from shardmc.model.precision import double_precision
    >>> steps = np.arange(3.0)
    >>> function = Captured(lambda x: steps * x)
    >>> for double in (False, True, False):
    ...     with double_precision(double):
    ...         print(jax.jit(lambda x: function(x))(jnp.ones(())).dtype)
    float32
    float64
    float32
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.holds_arrays: bool | None = None  # not known before the first call
        self._has_choices = False

    def __call__(self, *args: Any) -> Any:
        if self.holds_arrays is False and not self._has_choices:
            return self.function(*args)
        # Another function each time: what is traced for one is remembered as long as it lives.
        closed, shape = jax.make_jaxpr(lambda *args: self.function(*args), return_shape=True)(*args)
        if self.holds_arrays is None:
            self.holds_arrays = any(map(_is_array, (*closed.consts, *_literals(closed.jaxpr))))
            self._has_choices = any(map(_has_choice, closed.jaxpr.eqns))
            if not self.holds_arrays and not self._has_choices:
                return self.function(*args)
        results = _replay(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)


def _replay(jaxpr: Jaxpr, consts: Iterable[Any], args: Iterable[Any]) -> list[Any]:
    """What was traced, computed with fresh copies of its arrays, and choices in the place of minima and maxima."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_fresh, consts), strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atoms: Iterable[Any]) -> list[Any]:
        return [_fresh(atom.val) if isinstance(atom, Literal) else values[atom] for atom in atoms]

    for equation in jaxpr.eqns:
        values.update(zip(equation.outvars, _results(equation, read(equation.invars)), strict=True))
    return read(jaxpr.outvars)


def _results(equation: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    if _is_choice(equation):
        one, two = values
        first = one <= two if equation.primitive.name == "min" else one >= two
        return [jnp.where(first | jnp.isnan(one), one, two)]
    if _has_choice(equation):
        inner = equation.params["jaxpr"]
        return _replay(inner.jaxpr, inner.consts, values)
    bound = equation.primitive.get_bind_params(equation.params)
    # Older versions of JAX give the functions that a primitive calls apart from its parameters.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    result = equation.primitive.bind(*functions, *values, **params)
    return result if equation.primitive.multiple_results else [result]


def _is_choice(equation: JaxprEqn) -> bool:
    """The smaller or larger of two numbers neither of which is a constant."""
    return (
        equation.primitive.name in ("min", "max")
        and jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating)  # pyright: ignore - every array has a type
        and not any(isinstance(atom, Literal) for atom in equation.invars)
    )


def _has_choice(equation: JaxprEqn) -> bool:
    if equation.primitive.name in _CALLS:
        return any(map(_has_choice, equation.params["jaxpr"].jaxpr.eqns))
    return _is_choice(equation)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _fresh(value: Any) -> Any:
    return np.array(value) if _is_array(value) else value


def _literals(jaxpr: Jaxpr) -> list[Any]:
    """Arrays of no dimension, which are written into the equations."""
    return [atom.val for equation in jaxpr.eqns for atom in equation.invars if isinstance(atom, Literal)]
