"""The steps of a traced program: those that its results need, and running them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.typing import ArrayLike

Atom: TypeAlias = Var | Literal
"""What a step of a program reads: a variable or a constant."""
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


def primitives(step: JaxprEqn) -> Iterator[str]:
    """The name of a step, and those of the steps of the functions that it calls."""
    yield step.primitive.name
    for inner in jax.tree.leaves(tuple(step.params.values()), is_leaf=lambda value: isinstance(value, Jaxpr)):
        program = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        for other in program.eqns if isinstance(program, Jaxpr) else ():
            yield from primitives(other)


def form(atom: Atom) -> jax.ShapeDtypeStruct:
    """Shape and type of what a step reads or writes."""
    return cast("jax.ShapeDtypeStruct", atom.aval)


def run_step(step: JaxprEqn, values: Sequence[ArrayLike]) -> Sequence[jax.Array]:
    """The results of one step of a traced program."""
    bound = step.primitive.get_bind_params(step.params)
    # Older versions of JAX return the functions that a primitive calls separately.
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    result = step.primitive.bind(*functions, *values, **params)
    return result if step.primitive.multiple_results else [result]


RunStep: TypeAlias = Callable[[JaxprEqn, Sequence[ArrayLike]], Sequence[ArrayLike]]
"""run(step, values): the results of a step."""
Ways: TypeAlias = Callable[[Jaxpr], Mapping[int, RunStep]]
"""ways(program): other ways to run some of its steps, by their places."""


def no_other(program: Jaxpr) -> Mapping[int, RunStep]:
    return {}


def run_open(step: JaxprEqn, values: Sequence[ArrayLike], ways: Ways = no_other) -> Sequence[ArrayLike]:
    """The same; a call of a compiled function of a few steps, such as `jnp.where`, is replaced by these steps.

    XLA does that anyway. JAX differentiates, batches and writes down every call as a program of its own, which takes
    longer than the steps do.
    """
    inner = _short(step)
    return run_step(step, values) if inner is None else run_program(inner, values, ways)


def run_program(program: Jaxpr, values: Sequence[ArrayLike], ways: Ways = no_other) -> list[ArrayLike]:
    """The results of a program, step by step. The values of its own arrays come before those of its inputs."""
    known: dict[Var, ArrayLike] = dict(zip([*program.constvars, *program.invars], values, strict=True))
    other = ways(program)

    def read(atoms: Sequence[Atom]) -> list[ArrayLike]:
        return [atom.val if isinstance(atom, Literal) else known[atom] for atom in atoms]

    for place, step in enumerate(program.eqns):
        run = other.get(place, partial(run_open, ways=ways))
        known.update(zip(step.outvars, run(step, read(step.invars)), strict=True))
    return read(program.outvars)


def without_calls(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with the steps of its calls of compiled functions, such as a whole likelihood, in their place.

    So what is found among the steps of a program is found there, too. If all calls are of a few steps without products,
    the program is returned as it is: these are opened when they are run.
    """
    called = [inner for step in closed.jaxpr.eqns if (inner := _callee(step)) is not None]
    if all(len(c.eqns) <= _FEW and all(s.primitive.name != "dot_general" for s in c.eqns) for c in called):
        return closed

    def run(*args: ArrayLike) -> list[ArrayLike]:
        return run_program(closed.jaxpr, [*closed.consts, *args], _openings)

    return without_calls(jax.make_jaxpr(run)(*closed.in_avals))


def _openings(program: Jaxpr) -> Mapping[int, RunStep]:
    """How to open all calls of a program, whatever their length."""
    callees = {place: _callee(step) for place, step in enumerate(program.eqns)}
    return {
        place: lambda step, values, inner=inner: run_program(inner, values)
        for place, inner in callees.items()
        if inner is not None
    }


def _short(step: JaxprEqn) -> Jaxpr | None:
    """The program of a call, if it has a few steps."""
    inner = _callee(step)
    return inner if inner is not None and len(inner.eqns) <= _FEW else None


def _callee(step: JaxprEqn) -> Jaxpr | None:
    """The program of a call, if it has no arrays and no device of its own."""
    inner = step.params.get("jaxpr")
    if step.primitive.name not in _CALLS or not isinstance(inner, ClosedJaxpr) or inner.consts:
        return None
    placed = (*step.params.get("in_shardings", ()), *step.params.get("out_shardings", ()))
    if any(isinstance(place, jax.sharding.Sharding) for place in placed):
        return None
    return inner.jaxpr
