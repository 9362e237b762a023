"""A user's functions made safe to compile: in both precisions, with the right derivatives, and without LAPACK."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, primitives

from shardmc.model.linear_algebra import cholesky, solve


@final
class Rewritten:
    """A function that is traced apart, and rewritten, where it would not compile to what it says.

    NumPy arrays of 64 bits: as long as some program needs it, JAX remembers into which type of the present precision it
    has turned such an array, and would take that also in the other precision. So fresh copies go into the program.

    The smaller or larger of two numbers: JAX takes its derivative from which of them equals the result. XLA may
    compute a number twice, and not to the last bit the same; then neither equals it, and the derivative is lost. So it
    is written as a choice between the two. (`jax.scipy.special.betaln`, and with it NumPyro's Beta and beta-binomial,
    need this.)

    Triangular solves and Cholesky factors: see `linear_algebra`.

    A function that has none of these, as the first call finds, is simply called.

    Examples
    --------
    >>> from shardmc.model.precision import double_precision
    >>> steps = np.arange(3.0)
    >>> function = Rewritten(lambda x: steps * x)
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
        self._has_replacements = False

    def __call__(self, *args: Any) -> Any:
        if self.holds_arrays is False and not self._has_replacements:
            return self.function(*args)
        # Another function each time: what is traced for one is remembered as long as it lives.
        closed, shape = jax.make_jaxpr(lambda *args: self.function(*args), return_shape=True)(*args)
        if self.holds_arrays is None:
            self.holds_arrays = any(map(_is_array, closed.consts))
            self._has_replacements = _has_replacement(closed.jaxpr)
            if not self.holds_arrays and not self._has_replacements:
                return self.function(*args)
        results = _replay(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)


def _replay(jaxpr: Jaxpr, consts: Iterable[Any], args: Iterable[Any]) -> list[Any]:
    """What was traced, computed step by step, with fresh copies of its arrays and with the replacements."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_fresh, consts), strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atoms: Iterable[Any]) -> list[Any]:
        return [_fresh(atom.val) if isinstance(atom, Literal) else values[atom] for atom in atoms]

    for equation in jaxpr.eqns:
        values.update(zip(equation.outvars, _results(equation, read(equation.invars)), strict=True))
    return read(jaxpr.outvars)


def _replay_closed(closed: ClosedJaxpr, *values: Any) -> list[Any]:
    return _replay(closed.jaxpr, closed.consts, values)


def _results(equation: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    replacement = _replacement(equation)
    if replacement is not None:
        return [replacement(*values)]
    if any(map(_has_replacement, _called(equation))):
        return _call(equation, values)
    return _as_it_is(equation, values)


def _as_it_is(equation: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    bound = equation.primitive.get_bind_params(equation.params)
    # Older versions of JAX give the functions that a primitive calls apart from its parameters.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    result = equation.primitive.bind(*functions, *values, **params)
    return result if equation.primitive.multiple_results else [result]


def _call(equation: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    """A step that calls a program in which something is replaced."""
    params = equation.params
    if equation.primitive is primitives.scan_p:
        consts, carried = params["num_consts"], params["num_carry"]
        body, fixed = params["jaxpr"], values[:consts]

        def step(carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            out = _replay_closed(body, *fixed, *carry, *x)
            return out[:carried], out[carried:]

        start, xs = list(values[consts : consts + carried]), list(values[consts + carried :])
        end, ys = lax.scan(step, start, xs, length=params["length"], reverse=params["reverse"])
        return [*end, *ys]
    if equation.primitive is primitives.cond_p:
        branches = [partial(_replay_closed, branch) for branch in params["branches"]]
        return list(lax.switch(values[0], branches, *values[1:]))
    inner = [value for value in params.values() if isinstance(value, ClosedJaxpr)]
    if len(inner) == 1 and len(inner[0].jaxpr.invars) == len(values):
        return _replay_closed(
            inner[0], *values
        )  # a call: of a compiled function, or one with its own derivative
    return _as_it_is(equation, values)  # a loop without a fixed length


def _has_replacement(jaxpr: Jaxpr) -> bool:
    """Whether a program has a step that is to be replaced, at any depth."""
    return any(_replacement(eqn) or any(map(_has_replacement, _called(eqn))) for eqn in jaxpr.eqns)


def _called(equation: JaxprEqn) -> list[Jaxpr]:
    """The programs that a step calls, but for functions with a derivative of their own: those stay as they are."""
    own_derivative = (primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)
    found = []
    for value in equation.params.values():
        for each in value if isinstance(value, tuple) else (value,):
            jaxpr = each.jaxpr if isinstance(each, ClosedJaxpr) else each
            if isinstance(jaxpr, Jaxpr) and (
                equation.primitive not in own_derivative or _calls_lapack(jaxpr)
            ):
                found.append(jaxpr)
    return found


def _calls_lapack(jaxpr: Jaxpr) -> bool:
    return any(_linear_algebra(eqn) or any(map(_calls_lapack, _called(eqn))) for eqn in jaxpr.eqns)


def _replacement(equation: JaxprEqn) -> Callable[..., jax.Array] | None:
    """What computes the same as a step of a program, if that step is not safe."""
    if not equation.outvars or not jnp.issubdtype(_type_of(equation.outvars[0]), jnp.floating):
        return None
    is_constant = any(isinstance(atom, Literal) for atom in equation.invars)
    if equation.primitive.name in ("min", "max") and not is_constant:
        return _smaller if equation.primitive.name == "min" else _larger
    return _linear_algebra(equation)


def _linear_algebra(equation: JaxprEqn) -> Callable[..., jax.Array] | None:
    if equation.primitive is primitives.cholesky_p:
        return cholesky
    if equation.primitive is primitives.triangular_solve_p:
        options = ("left_side", "lower", "transpose_a", "unit_diagonal")
        return partial(solve, **{name: equation.params[name] for name in options})
    return None


def _smaller(one: jax.Array, two: jax.Array) -> jax.Array:
    return jnp.where((one <= two) | jnp.isnan(one), one, two)


def _larger(one: jax.Array, two: jax.Array) -> jax.Array:
    return jnp.where((one >= two) | jnp.isnan(one), one, two)


def _type_of(variable: Any) -> Any:
    return getattr(variable.aval, "dtype", np.dtype(bool))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _fresh(value: Any) -> Any:
    return np.array(value) if _is_array(value) else value
