"""The steps of a traced program: those that its results need, and running them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

_CALLS = ("jit", "pjit")
"""How JAX names a call of a compiled function inside a program, in newer and older versions."""
_FEW = 8
"""Steps of a function that is not worth a call."""


def needed(program: Jaxpr) -> list[JaxprEqn]:
    """The steps that the results depend on, in their order."""
    wanted = {id(atom) for atom in program.outvars}
    steps = []
    for step in reversed(program.eqns):
        if step.effects or any(id(variable) in wanted for variable in step.outvars):
            steps.append(step)
            wanted.update(id(atom) for atom in step.invars)
    return steps[::-1]


def run_step(step: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    """The results of one step of a traced program."""
    bound = step.primitive.get_bind_params(step.params)
    # Older versions of JAX return the functions that a primitive calls separately.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    result = step.primitive.bind(*functions, *values, **params)
    return result if step.primitive.multiple_results else [result]


def run_open(step: JaxprEqn, values: Sequence[Any]) -> Sequence[Any]:
    """The same; a call of a compiled function of a few steps, such as `jnp.where`, is replaced by these steps.

    XLA does that anyway. JAX differentiates, batches and writes down every call as a program of its own, which takes
    longer than the steps do.
    """
    inner = _short(step)
    if inner is None:
        return run_step(step, values)
    known: dict[Any, Any] = dict(zip(inner.invars, values, strict=True))

    def read(atoms: Sequence[Any]) -> list[Any]:
        return [atom.val if isinstance(atom, Literal) else known[atom] for atom in atoms]

    for each in inner.eqns:
        known.update(zip(each.outvars, run_open(each, read(each.invars)), strict=True))
    return read(inner.outvars)


def _short(step: JaxprEqn) -> Jaxpr | None:
    """The program of a call, if it has a few steps, no arrays and no device of its own."""
    inner = step.params.get("jaxpr")
    if step.primitive.name not in _CALLS or not isinstance(inner, ClosedJaxpr) or inner.consts:
        return None
    placed = (*step.params.get("in_shardings", ()), *step.params.get("out_shardings", ()))
    if any(isinstance(place, jax.sharding.Sharding) for place in placed):
        return None
    return inner.jaxpr if len(inner.jaxpr.eqns) <= _FEW else None
