"""User's functions that hold NumPy arrays, made callable in single and in double precision in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun


@final
class Captured:
    """A function whose NumPy arrays of 64 bits are read anew each time it is traced.

    JAX remembers, as long as some program needs it, into which type of the present precision it has turned an array of
    64 bits that a function holds, and would take that also in the other precision. So such a function is traced apart,
    and fresh copies of its arrays go into the program. A function that holds none, as the first call finds, is
    simply called.

    >>> import jax.numpy as jnp
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

    def __call__(self, *args: Any) -> Any:
        if self.holds_arrays is False:
            return self.function(*args)
        # Another function each time: what is traced for one is remembered as long as it lives.
        closed, shape = jax.make_jaxpr(lambda *args: self.function(*args), return_shape=True)(*args)
        if self.holds_arrays is None:
            self.holds_arrays = any(map(_is_array, (*closed.consts, *_literals(closed.jaxpr))))
            if not self.holds_arrays:
                return self.function(*args)
        fresh = ClosedJaxpr(_with_fresh_literals(closed.jaxpr), [_fresh(c) for c in closed.consts])
        results = jaxpr_as_fun(fresh)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _fresh(value: Any) -> Any:
    return np.array(value) if _is_array(value) else value


def _literals(jaxpr: Jaxpr) -> list[Any]:
    """Arrays of no dimension, which are written into the equations."""
    return [atom.val for equation in jaxpr.eqns for atom in equation.invars if isinstance(atom, Literal)]


def _with_fresh_literals(jaxpr: Jaxpr) -> Jaxpr:
    def fresh(atom: Any) -> Any:
        held = isinstance(atom, Literal) and _is_array(atom.val)
        return Literal(_fresh(atom.val), atom.aval) if held else atom

    equations = [
        equation.replace(invars=[fresh(atom) for atom in equation.invars]) for equation in jaxpr.eqns
    ]
    return jaxpr.replace(eqns=equations)
