"""Triangular solves and Cholesky factors of a model without LAPACK, so that shards can run side by side.

On a CPU, XLA runs a batch of LAPACK calls on its pool of threads and lets the calling thread wait for them. That thread
is one of the pool's: as soon as every thread of the pool waits, nothing is left to do the work, and the program stops
for ever. Independent solves in one program are enough, and so are two programs at a time. The matrices of a model are
small (a covariance of a few responses), so plain arithmetic is as quick, and it differentiates like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.extend.core import primitives

_UNROLLED = 12
"""Rows of a matrix up to which the loop over them is written out."""


@final
class WithoutLapack:
    """A function, with its triangular solves and Cholesky factors computed by plain arithmetic.

    A function that has none is called as it is, and looked at only once.

    Examples
    --------
    >>> a = jnp.array([[4.0, 2.0], [2.0, 5.0]])
    >>> WithoutLapack(jnp.linalg.cholesky)(a).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._is_clean = False

    def __call__(self, *args: Any) -> Any:
        if self._is_clean:
            return self.function(*args)
        shapes: list[Any] = []

        def flat(*args: Any) -> list[Any]:
            leaves, tree = jax.tree.flatten(self.function(*args))
            shapes.append(tree)
            return leaves

        traced = jax.make_jaxpr(flat)(*args)
        if not _calls_lapack(traced.jaxpr):
            self._is_clean = True
            return self.function(*args)
        values = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(shapes[0], values)


def _calls_lapack(jaxpr: Any) -> bool:
    """Whether a program has a solve or a factor that is to be replaced, at any depth."""
    return any(_replacement(eqn) or any(map(_calls_lapack, _inner(eqn))) for eqn in jaxpr.eqns)


def _inner(eqn: Any) -> list[Any]:
    """The programs that a step of a program calls."""
    values = [v for value in eqn.params.values() for v in (value if isinstance(value, tuple) else (value,))]
    closed = [v.jaxpr if isinstance(v, core.ClosedJaxpr) else v for v in values]
    return [v for v in closed if isinstance(v, core.Jaxpr)]


def _evaluate(jaxpr: Any, consts: list[Any], args: list[Any]) -> list[Any]:
    """Run a program step by step, with the replacements."""
    known: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else known[variable]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        replacement = _replacement(eqn)
        if replacement is not None:
            results = [replacement(*values)]
        elif any(map(_calls_lapack, _inner(eqn))):
            results = _call(eqn, values)
        else:
            results = _bind(eqn, values)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _call(eqn: Any, values: list[Any]) -> list[Any]:
    """A step that calls a program in which something is to be replaced."""
    params = eqn.params
    if eqn.primitive is primitives.scan_p:
        consts, carried = params["num_consts"], params["num_carry"]
        body, fixed = params["jaxpr"], values[:consts]

        def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
            out = _evaluate(body.jaxpr, body.consts, [*fixed, *carry, *x])
            return out[:carried], out[carried:]

        start, xs = values[consts : consts + carried], values[consts + carried :]
        end, ys = lax.scan(step, start, xs, length=params["length"], reverse=params["reverse"])
        return [*end, *ys]
    if eqn.primitive is primitives.cond_p:
        branches = [partial(_evaluate_closed, branch) for branch in params["branches"]]
        return list(lax.switch(values[0], branches, *values[1:]))
    inner = [v for v in params.values() if isinstance(v, core.ClosedJaxpr)]
    if len(inner) == 1 and len(inner[0].jaxpr.invars) == len(values):
        return _evaluate_closed(
            inner[0], *values
        )  # a call: of a compiled function, or one with its own derivative
    return _bind(eqn, values)  # a loop without a fixed length: left as it is


def _bind(eqn: Any, values: list[Any]) -> list[Any]:
    """A step of a program as it is."""
    given = eqn.primitive.get_bind_params(eqn.params)
    functions, params = ((), given) if isinstance(given, dict) else given  # JAX before 0.10 has both
    results = eqn.primitive.bind(*functions, *values, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


def _evaluate_closed(closed: Any, *values: Any) -> list[Any]:
    return _evaluate(closed.jaxpr, closed.consts, list(values))


def _replacement(eqn: Any) -> Callable[..., jax.Array] | None:
    """Plain arithmetic for a step of a program, if it is a solve or a factor of real matrices."""
    if eqn.primitive is primitives.cholesky_p:
        return cholesky if jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating) else None
    if eqn.primitive is primitives.triangular_solve_p:
        options = {k: eqn.params[k] for k in ("left_side", "lower", "transpose_a", "unit_diagonal")}
        return partial(solve, **options) if jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating) else None
    return None


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
    if not lower:  # the same from the last row up
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
    """The lower triangular factor of symmetric matrices (..., n, n); NaN for one that is not positive definite.

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
    """Column j of a factor, from what the columns before it leave of the matrix's."""
    pivot = jnp.take(rest, j, axis=-1)[..., None]
    return jnp.where(jnp.arange(count) >= j, rest / jnp.sqrt(pivot), 0)
