"""What shardmc needs of NumPyro beyond its documented names, in one place.

NumPyro's constraints are instances of private classes, so they are recognised by the type of the public instance.
Whether a distribution checks its values can be set when it is made, but not on one that a model has made already:
that takes the private attribute `_validate_args`.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

from numpyro.distributions import Distribution, Unit, constraints
from numpyro.distributions.constraints import Constraint

Structure = Literal["all", "simplex", "zero_sum", "symmetric", "lower", "correlation", "corr_cholesky"]
"""How the entries of a value depend on each other; "all": they do not."""

_STRUCTURES: dict[type, Structure] = {
    type(constraints.simplex): "simplex",
    constraints.zero_sum: "zero_sum",
    type(constraints.positive_definite): "symmetric",
    type(constraints.positive_semidefinite): "symmetric",
    type(constraints.lower_cholesky): "lower",
    type(constraints.softplus_lower_cholesky): "lower",
    type(constraints.scaled_unit_lower_cholesky): "lower",
    type(constraints.corr_matrix): "correlation",
    type(constraints.corr_cholesky): "corr_cholesky",
}


def structure(constraint: Constraint) -> tuple[Structure, int]:
    """How the entries of a constrained value depend on each other, and over how many of its last axes.

    >>> structure(constraints.independent(constraints.simplex, 1))
    ('simplex', 1)
    """
    base = _base(constraint)
    found = _STRUCTURES.get(type(base), "all")
    return found, 0 if found == "all" else int(base.event_dim)


def is_real(constraint: Constraint) -> bool:
    """Whether a constraint allows all real numbers, for a number or for every entry of an array.

    >>> is_real(constraints.real_vector), is_real(constraints.positive)
    (True, False)
    """
    return type(_base(constraint)) is type(constraints.real)


def _base(constraint: Constraint) -> Constraint:
    while (base := getattr(constraint, "base_constraint", None)) is not None:
        constraint = base
    return constraint


def is_factor(fn: Distribution) -> bool:
    """Whether a site's distribution comes from numpyro.factor, under any masks and plates."""
    while (base := getattr(fn, "base_dist", None)) is not None:
        fn = base
    return isinstance(fn, Unit)


def with_checks(fn: Distribution, *, enabled: bool) -> Distribution:
    """The same distribution. It gives -inf outside its support if `enabled`, unless the model forbids that.

    NumPyro's own default differs between versions.
    """
    copied: Any = copy.copy(fn)
    copied._validate_args = enabled and vars(fn).get("_validate_args", True)
    if hasattr(copied, "base_dist"):
        copied.base_dist = with_checks(copied.base_dist, enabled=enabled)
    return copied
