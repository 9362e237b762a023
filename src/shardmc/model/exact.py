"""A hash of what a function and its derivatives compute, or a refusal where a traced program does not show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from shardmc.model.traced import hash_program
from shardmc.programs.kept import Unkept

_RULE = "jvp_jaxpr_fun"
"""The parameter of a step with a derivative of its own. The traced derivative shows what it is."""
_OF_JAX = str(Path(jax.__file__).parent)
_OF_PRODUCTS = str(Path(__file__).with_name("shared.py"))
_MADE_FROM_OTHERS = str(Path(_OF_JAX, "_src", "custom_derivatives.py"))


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
    first: Callable[..., Any] = jaxpr_as_fun(program)
    derivative: Callable[..., Any] = lambda theta, *rest: first(*rest[:place], theta, *rest[place:])[0]  # noqa: E731
    theta, *rest = (program.in_avals[place], *program.in_avals[:place], *program.in_avals[place + 1 :])
    for order in range(orders):
        derivative = _along(derivative)
        traced = jax.make_jaxpr(derivative)(*[theta] * (order + 2), *rest)
        list(_rules(traced.jaxpr))  # refuses what no hash covers
        hashes.append(hash_program(traced))
    return " ".join(hashes)


def _along(function: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative of function(theta, ...) along a direction: a function of (theta, direction, ...)."""

    def derivative(theta: Any, direction: Any, *rest: Any) -> Any:
        return jax.jvp(lambda theta: function(theta, *rest), (theta,), (direction,))[1]

    return derivative


def _rules(program: Jaxpr) -> Iterator[Any]:
    """The derivatives of steps that have their own. Refuses steps that a hash does not cover."""
    for step in program.eqns:
        if step.effects or "callback" in step.primitive.name or step.primitive.name.startswith("custom_vjp"):
            raise Unkept(f"{step.primitive.name} calls Python")
        for name, value in step.params.items():
            if name == _RULE:
                yield value
                continue
            for inner in _programs_in(value):
                yield from _rules(inner)


def _known_rule(rule: Any) -> str | None:
    """Name of a derivative that JAX has for a function of its own, or that of a product; None for others'.

    The version of JAX and the files of this package say what these are. Tracing them takes long. The name and the file
    are those that JAX reports, so a function that claims to be one of JAX's, by `functools.wraps`, is believed.
    """
    name, _, where = str(getattr(getattr(rule, "debug_info", None), "func_src_info", "")).partition(" at ")
    file = where.rpartition(":")[0]
    of_jax = file.startswith(_OF_JAX) and file != _MADE_FROM_OTHERS
    return name if of_jax or file == _OF_PRODUCTS else None


def _programs_in(value: Any) -> list[Jaxpr]:
    """The programs in a parameter of a step. Refuses values that `hash_program` does not reduce to their content."""
    if isinstance(value, ClosedJaxpr):
        return [value.jaxpr]
    if isinstance(value, Jaxpr):
        return [value]
    if type(value) in (tuple, list):
        return [program for each in value for program in _programs_in(each)]
    if type(value) is dict:
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


def _holds_arrays(values: tuple[Any, ...]) -> bool:
    return any(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(values))
