"""A named parameter: its shape, its support, and the bijection between the support and the real numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError, unknown
from shardmc.model.free import FreeEntries
from shardmc.names import clash

SUPPORTS: dict[str, tuple[str, int]] = {
    "real": ("real", 0),
    "positive": ("positive", 0),
    "unit_interval": ("unit_interval", 0),
    "interval": ("interval", 2),
    "greater_than": ("greater_than", 1),
    "less_than": ("less_than", 1),
    "simplex": ("simplex", 0),
    "ordered": ("ordered_vector", 0),
    "positive_ordered": ("positive_ordered_vector", 0),
    "positive_definite": ("positive_definite", 0),
    "lower_cholesky": ("lower_cholesky", 0),
    "corr_cholesky": ("corr_cholesky", 0),
    "correlation": ("corr_matrix", 0),
}
"""Our name of a support -> the name of the constraint in NumPyro, and how many bounds it takes."""


@final
@dataclass(frozen=True, eq=False)
class Parameter:
    """Shape and support of one parameter.

    Parameters
    ----------
    shape : int or tuple of int
        Shape on the natural scale; () is a number, 3 is a vector.
    support : str, tuple or numpyro constraint
        A name ("real", "positive", "unit_interval", "simplex", "ordered", "positive_ordered",
        "positive_definite", "lower_cholesky", "corr_cholesky", "correlation"), a name with its bounds
        (("interval", low, high), ("greater_than", low), ("less_than", high)), or any constraint of
        `numpyro.distributions.constraints` that has a bijection.

    Examples
    --------
    >>> Parameter(3, "simplex").unconstrained_shape
    (2,)
    """

    shape: Any = ()
    support: Any = "real"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _shape(self.shape))
        if not self.is_real:
            _ = self.unconstrained_shape  # a shape that does not fit the support is refused here

    @property
    def is_real(self) -> bool:
        """Whether there is nothing to transform."""
        return isinstance(self.support, str) and self.support == "real"

    @cached_property
    def constraint(self) -> Any:
        """The NumPyro constraint that describes the support."""
        return _constraint(self.support)

    @cached_property
    def bijection(self) -> Any:
        """NumPyro's bijection from the real numbers to the support."""
        from numpyro.distributions import biject_to

        try:
            return biject_to(self.constraint)
        except NotImplementedError:
            raise ModelError(
                f"Support {self.constraint!r} has no bijection to the real numbers in NumPyro. Write the parameter "
                f"as a function of one with a support among {', '.join(sorted(SUPPORTS))}."
            ) from None

    @cached_property
    def unconstrained_shape(self) -> tuple[int, ...]:
        """Shape of the part of theta that stands for this parameter."""
        if self.is_real:
            return self.shape
        self._check_event()
        return tuple(self.bijection.inverse_shape(self.shape))

    @property
    def size(self) -> int:
        """How many coordinates of theta it takes."""
        return math.prod(self.unconstrained_shape)

    @cached_property
    def free(self) -> FreeEntries:
        """The entries of the natural value that determine all others, in the order of theta where they match."""
        constraint = None if self.is_real else self.constraint
        return FreeEntries.of(constraint, self.shape, self.unconstrained_shape)

    def describe(self) -> str:
        """Shape and support in words that are the same in every session.

        >>> Parameter(2, ("interval", 0, 5)).describe()
        "shape (2,), support ('interval', 0, 5)"
        """
        return f"shape {self.shape}, support {_describe_support(self.support)}"

    def _check_event(self) -> None:
        """Refuse a shape whose last axes are not a value of the support."""
        event_dim = int(self.constraint.event_dim)
        if len(self.shape) < event_dim:
            kind = "a vector" if event_dim == 1 else "a matrix"
            raise ModelError(
                f"Support {_describe_support(self.support)} is for {kind}, but the parameter has shape {self.shape}. "
                f"Give its shape: Parameter({(3,) * event_dim}, {_describe_support(self.support)})."
            )
        if event_dim == 2 and self.shape[-1] != self.shape[-2]:
            raise ModelError(
                f"Support {_describe_support(self.support)} is for square matrices, but the parameter has shape "
                f"{self.shape}."
            )


def as_parameters(given: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters of a model from the short forms a user may write.

    >>> {name: p.describe() for name, p in as_parameters({"beta": 3, "sigma": "positive"}).items()}
    {'beta': "shape (3,), support 'real'", 'sigma': "shape (), support 'positive'"}
    """
    if not isinstance(given, Mapping):
        raise ModelError(
            f"parameters must be a dict from names to shapes or supports, such as {{'beta': 3, 'sigma': 'positive'}}; "
            f"{type(given).__name__} was given."
        )
    if not given:
        raise ModelError("The model has no parameters: name at least one, such as {'beta': 3}.")
    parameters = {_name(name): _as_parameter(name, value) for name, value in given.items()}
    refuse_alike(parameters)
    return parameters


def refuse_alike(
    parameters: Mapping[str, Parameter], derived: Mapping[str, tuple[int, ...]] | None = None
) -> None:
    """Refuse names that tables could not tell apart: a number called `a[0]` beside a vector `a`."""
    opaque = {name: p.size for name, p in parameters.items() if not p.is_real and p.free.kind == "opaque"}
    found = clash({name: p.shape for name, p in parameters.items()} | dict(derived or {}), opaque)
    if found:
        raise ModelError(
            f"Parameters {found[0]!r} and {found[1]!r} cannot be told apart: both have an entry called {found[1]!r}. "
            "Rename one of them."
        )


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ModelError(f"Parameter names must be text that is not empty; {name!r} was given.")
    return name


def _as_parameter(name: str, value: Any) -> Parameter:
    try:
        if isinstance(value, Parameter):
            return value
        if isinstance(value, str) or hasattr(value, "event_dim"):
            return Parameter((), value)
        if isinstance(value, tuple) and value and isinstance(value[0], str):
            return Parameter((), value)
        return Parameter(value)
    except (ModelError, ValueError) as error:
        raise ModelError(f"Parameter {name!r}: {error}") from None


def _shape(given: Any) -> tuple[int, ...]:
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        given = (given,)
    if not isinstance(given, tuple | list) or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in given
    ):
        raise ModelError(f"A shape must be a positive integer or a tuple of them; {given!r} was given.")
    return tuple(int(n) for n in given)


def _constraint(support: Any) -> Any:
    from numpyro.distributions import constraints

    if isinstance(support, constraints.Constraint):
        if support.is_discrete:
            raise ModelError(f"Support {support!r} is discrete: sum the parameter out of the likelihood.")
        return support
    name, *bounds = (support,) if isinstance(support, str) else tuple(support)
    if name not in SUPPORTS:
        raise ModelError(str(unknown("support", name, SUPPORTS)))
    constraint_name, num_bounds = SUPPORTS[name]
    if len(bounds) != num_bounds or not np.isfinite(np.asarray(bounds, dtype=float)).all():
        raise ModelError(
            f"Support {name!r} takes {num_bounds} finite bounds, as in {_example(name, num_bounds)}; "
            f"{tuple(bounds)} was given."
        )
    if num_bounds == 2 and not np.all(np.asarray(bounds[0]) < np.asarray(bounds[1])):
        raise ModelError(f"Support 'interval' needs low < high; {tuple(bounds)} was given.")
    constraint = getattr(constraints, constraint_name)
    # Arrays of bounds as JAX arrays: NumPy's of 64 bits cannot be compiled in both precisions.
    numbers = [float(b) if np.ndim(b) == 0 else jnp.asarray(b, jnp.result_type(float)) for b in bounds]
    return constraint(*numbers) if num_bounds else constraint


def _example(name: str, num_bounds: int) -> str:
    return repr((name, *(float(i) for i in range(num_bounds)))) if num_bounds else repr(name)


def _describe_support(support: Any) -> str:
    """A support in words: names as they are, constraints by type and content."""
    if isinstance(support, str | tuple):
        return repr(support)
    contents = ", ".join(
        f"{key}={np.asarray(value).tolist() if not hasattr(value, 'event_dim') else _describe_support(value)}"
        for key, value in sorted(vars(support).items())
        if not key.startswith("_")
    )
    return f"{type(support).__name__.lstrip('_')}({contents})"
