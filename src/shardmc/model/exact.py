"""A hash of what a function and its derivatives compute, or a refusal where a traced program does not show it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from shardmc.model.traced import hash_program
from shardmc.programs.kept import Unkept

_RULE = "jvp_jaxpr_fun"
"""The parameter of a step with a derivative of its own. The traced derivative shows what it is."""


def exact_hash(function: Callable[..., jax.Array], orders: int, numbers: Any, theta: Any, *rows: Any) -> str:
    """Hash of the program of a function of (numbers, theta, *rows), and of its derivatives where it has its own.

    `orders` is the number of derivatives: programs take up to three.

    Raises `Unkept` if programs that differ could have the same hash: with Python functions that no program shows.
    """
    program = jax.make_jaxpr(function)(numbers, theta, *rows)
    hashes = [hash_program(program)]
    if _has_own_derivative(program.jaxpr):
        derivative: Callable[..., Any] = lambda theta, numbers, *rows: function(numbers, theta, *rows)  # noqa: E731
        for order in range(orders):
            derivative = _along(derivative)
            directions = [theta] * (order + 1)
            program = jax.make_jaxpr(derivative)(theta, *directions, numbers, *rows)
            _has_own_derivative(program.jaxpr)
            hashes.append(hash_program(program))
    return " ".join(hashes)


def _along(function: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative of function(theta, ...) along a direction: a function of (theta, direction, ...)."""

    def derivative(theta: Any, direction: Any, *rest: Any) -> Any:
        return jax.jvp(lambda theta: function(theta, *rest), (theta,), (direction,))[1]

    return derivative


def _has_own_derivative(program: Jaxpr) -> bool:
    """Whether a step has a derivative of its own. Refuses steps that a hash does not cover."""
    found = False
    for step in program.eqns:
        if step.effects or "callback" in step.primitive.name or step.primitive.name.startswith("custom_vjp"):
            raise Unkept(f"{step.primitive.name} calls Python")
        for name, value in step.params.items():
            if name == _RULE:
                found = True
                continue
            for inner in _programs_in(value):
                found |= _has_own_derivative(inner)
    return found


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
