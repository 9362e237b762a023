"""Computing in either precision: JAX settings for a block of code, and a user's functions made safe to compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, primitives
from jax.typing import ArrayLike

from shardmc.model.steps import Atom, run_step
from shardmc.types import Tree


def double_precision(enabled: bool = True) -> AbstractContextManager[None]:
    """A context in which JAX computes in float64, or in float32.

    >>> with double_precision():
    ...     print(jnp.zeros(1).dtype)
    float64
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(enabled)
    from jax.experimental import enable_x64  # pyright: ignore - where JAX had it before 0.8

    return enable_x64(enabled)


@dataclass(frozen=True)
class Precision:
    """The JAX settings that change numbers, so that other threads and processes can use those of the caller.

    >>> with double_precision():
    ...     precision = Precision.here()
    >>> with precision.applied():
    ...     print(jnp.zeros(1).dtype)
    float64
    """

    double: bool
    matmul: str | None

    @staticmethod
    def here() -> Precision:
        """The settings of this thread."""
        return Precision(jnp.result_type(float) == jnp.float64, jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use them in this thread, inside the context."""
        with double_precision(self.double), jax.default_matmul_precision(self.matmul):
            yield


_UNROLLED = 12
"""Largest matrix size for which the loop over rows is unrolled."""


@final
class Rewritten:
    """A function that is traced once and rewritten if compiling it as it is could give a wrong result.

    It replaces three things:

    - NumPy arrays of 64 bits. While a program needs such an array, JAX keeps the type that it converted the array to,
      and would use it in the other precision too. So each program gets fresh copies.
    - The minimum or maximum of two numbers. JAX's derivative asks which of them equals the result. XLA may compute a
      number twice with different rounding, so that neither equals it and the derivative is lost. A choice by
      comparison does not have this problem. (`jax.scipy.special.betaln` needs this, and with it NumPyro's Beta and
      beta-binomial.)
    - Triangular solves and Cholesky factors: see `solve`.

    The first call looks for them. A function without any is called as it is.

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

    def __init__(self, function: Callable[..., Tree]) -> None:
        self.function = function
        self.holds_arrays: bool | None = None  # unknown before the first call
        self._has_replacements = False

    def __call__(self, *args: Tree) -> Tree:
        if self.holds_arrays is False and not self._has_replacements:
            return self.function(*args)
        # A new function each time, because JAX keeps what it traced for a function as long as the function lives.
        closed, shape = jax.make_jaxpr(lambda *args: self.function(*args), return_shape=True)(*args)
        if self.holds_arrays is None:
            self.holds_arrays = any(map(_is_array, closed.consts))
            self._has_replacements = _has_replacement(closed.jaxpr)
            if not self.holds_arrays and not self._has_replacements:
                return self.function(*args)
        results = _replay(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results)


def _replay(jaxpr: Jaxpr, consts: Iterable[ArrayLike], args: Iterable[ArrayLike]) -> list[ArrayLike]:
    """Compute a traced program step by step, with fresh copies of its arrays and with the replacements."""
    values: dict[Var, ArrayLike] = dict(zip(jaxpr.constvars, map(_fresh, consts), strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atoms: Iterable[Atom]) -> list[ArrayLike]:
        return [_fresh(atom.val) if isinstance(atom, Literal) else values[atom] for atom in atoms]

    for equation in jaxpr.eqns:
        values.update(zip(equation.outvars, _results(equation, read(equation.invars)), strict=True))
    return read(jaxpr.outvars)


def _replay_closed(closed: ClosedJaxpr, *values: ArrayLike) -> list[ArrayLike]:
    return _replay(closed.jaxpr, closed.consts, values)


def _results(equation: JaxprEqn, values: Sequence[ArrayLike]) -> Sequence[ArrayLike]:
    replacement = _replacement(equation)
    if replacement is not None:
        return [replacement(*values)]
    if any(map(_has_replacement, _called(equation))):
        return _call(equation, values)
    return run_step(equation, values)


def _call(equation: JaxprEqn, values: Sequence[ArrayLike]) -> Sequence[ArrayLike]:
    """Compute a step that calls a program with replacements inside."""
    params = equation.params
    if equation.primitive is primitives.scan_p:
        consts, carried = params["num_consts"], params["num_carry"]
        body, fixed = params["jaxpr"], values[:consts]

        def step(
            carry: Sequence[ArrayLike], x: Sequence[ArrayLike]
        ) -> tuple[list[ArrayLike], list[ArrayLike]]:
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
        # A call of a compiled function, or of one with its own derivative.
        return _replay_closed(inner[0], *values)
    return run_step(equation, values)  # a while loop


def _has_replacement(jaxpr: Jaxpr) -> bool:
    """Whether a program has a step to replace, at any depth."""
    return any(_replacement(eqn) or any(map(_has_replacement, _called(eqn))) for eqn in jaxpr.eqns)


def _called(equation: JaxprEqn) -> list[Jaxpr]:
    """The programs that a step calls, except functions with their own derivative that do not call LAPACK."""
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
    """A safe function in place of a step of a program; None if the step is safe."""
    if not equation.outvars or not jnp.issubdtype(type_of(equation.outvars[0]), jnp.floating):
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


def type_of(variable: Atom) -> np.dtype:
    return getattr(variable.aval, "dtype", np.dtype(bool))


def _is_array(value: ArrayLike) -> TypeGuard[np.ndarray]:
    return isinstance(value, np.ndarray)


def _fresh(value: ArrayLike) -> ArrayLike:
    return np.array(value) if _is_array(value) else value


# Linear algebra without LAPACK. On a CPU, XLA runs a batch of LAPACK calls on its thread pool, and the calling thread,
# which belongs to that pool, waits for them. Once all threads of the pool wait, the program hangs for ever. Independent
# solves in one program can cause this, and so can two programs at the same time. The matrices of a model are small, so
# plain arithmetic is as fast, and JAX can differentiate it.


def solve(
    a: jax.Array,
    b: jax.Array,
    *,
    left_side: bool = True,
    lower: bool = True,
    transpose_a: bool = False,
    unit_diagonal: bool = False,
) -> jax.Array:
    """The solution x of op(a) x = b, or of x op(a) = b, for triangular matrices a (..., n, n).

    >>> solve(jnp.array([[2.0, 0.0], [1.0, 1.0]]), jnp.array([[2.0], [3.0]])).ravel().tolist()
    [1.0, 2.0]
    """
    if not left_side:
        turned = solve(
            a,
            jnp.swapaxes(b, -1, -2),
            lower=lower,
            transpose_a=not transpose_a,
            unit_diagonal=unit_diagonal,
        )
        return jnp.swapaxes(turned, -1, -2)
    if transpose_a:
        a, lower = jnp.swapaxes(a, -1, -2), not lower
    if not lower:  # the same, from the last row up
        a, b = a[..., ::-1, ::-1], b[..., ::-1, :]
    count = a.shape[-1]
    diagonal = jnp.ones(a.shape[:-1], a.dtype) if unit_diagonal else jnp.diagonal(a, axis1=-2, axis2=-1)
    if count <= _UNROLLED:
        rows: list[jax.Array] = []
        for i in range(count):
            known = sum((a[..., i, j, None] * rows[j] for j in range(i)), jnp.zeros((), b.dtype))
            rows.append((b[..., i, :] - known) / diagonal[..., i, None])
        x = jnp.stack(rows, axis=-2)
    else:
        below = jnp.tril(a, -1)

        def step(x: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
            row = jnp.einsum("...j,...jk->...k", below[..., i, :], x)
            return x.at[..., i, :].set((b[..., i, :] - row) / diagonal[..., i, None]), None

        x, _ = lax.scan(step, jnp.zeros_like(b), jnp.arange(count))
    return x if lower else x[..., ::-1, :]


def cholesky(a: jax.Array) -> jax.Array:
    """The lower triangular factor of symmetric matrices (..., n, n), or NaN where one is not positive definite.

    >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    count = a.shape[-1]
    if count <= _UNROLLED:
        columns: list[jax.Array] = []
        for j in range(count):
            rest = a[..., :, j] - sum((c * c[..., j, None] for c in columns), jnp.zeros((), a.dtype))
            columns.append(_column(rest, j, count))
        factor = jnp.stack(columns, axis=-1)
    else:

        def step(factor: jax.Array, j: jax.Array) -> tuple[jax.Array, None]:
            rest = a[..., :, j] - jnp.einsum("...ij,...j->...i", factor, factor[..., j, :])
            return factor.at[..., :, j].set(_column(rest, j, count)), None

        factor, _ = lax.scan(step, jnp.zeros_like(a), jnp.arange(count))
    bad = jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1)).any(axis=-1)
    return jnp.where(bad[..., None, None], jnp.nan, factor)


def _column(rest: jax.Array, j: jax.Array | int, count: int) -> jax.Array:
    """Column j of a factor, from column j of the matrix less the contribution of earlier columns."""
    pivot = jnp.take(rest, j, axis=-1)[..., None]
    return jnp.where(jnp.arange(count) >= j, rest / jnp.sqrt(pivot), 0)
