"""A named parameter: its shape, its support, the bijection to the real numbers, and its free entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import jax.numpy as jnp
import numpy as np

from shardmc.errors import ModelError, unknown
from shardmc.names import clash

if TYPE_CHECKING:
    from numpyro.distributions.constraints import Constraint
    from numpyro.distributions.transforms import Transform

Kind = Literal["all", "simplex", "zero_sum", "symmetric", "lower", "correlation", "corr_cholesky", "opaque"]
"""How the entries of a value depend on each other."""

Support: TypeAlias = "str | tuple[Any, ...] | Constraint"
"""A name, a name with its bounds, or a constraint of NumPyro."""

ParameterLike: TypeAlias = "Parameter | Support | int | Sequence[int]"
"""A parameter, or one of the short forms: its support if it is a number, or its shape if it is real."""

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
"""Name of a support -> NumPyro's name of the constraint, and how many bounds it takes."""


@final
@dataclass(frozen=True, eq=False, init=False)
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

    shape: tuple[int, ...]
    support: Support

    def __init__(self, shape: int | Sequence[int] = (), support: Support = "real") -> None:
        object.__setattr__(self, "shape", _shape(shape))
        object.__setattr__(self, "support", support)
        if not self.is_real:
            _ = self.unconstrained_shape  # refuses a shape that does not fit the support

    @property
    def is_real(self) -> bool:
        """Whether the support is all real numbers, so that nothing is transformed."""
        return isinstance(self.support, str) and self.support == "real"

    @cached_property
    def constraint(self) -> Constraint:
        """The NumPyro constraint that describes the support."""
        return _constraint(self.support)

    @cached_property
    def bijection(self) -> Transform:
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
        """Shape of this parameter's part of theta."""
        if self.is_real:
            return self.shape
        self._check_event()
        return tuple(self.bijection.inverse_shape(self.shape))

    @property
    def size(self) -> int:
        """Number of its coordinates in theta."""
        return math.prod(self.unconstrained_shape)

    @cached_property
    def free(self) -> FreeEntries:
        """The entries of the natural value that determine all others, in the order of theta where the two match."""
        constraint = None if self.is_real else self.constraint
        return FreeEntries.of(constraint, self.shape, self.unconstrained_shape)

    def describe(self) -> str:
        """Shape and support as text that is the same in every session.

        >>> Parameter(2, ("interval", 0, 5)).describe()
        "shape (2,), support ('interval', 0, 5)"
        """
        return f"shape {self.shape}, support {_describe_support(self.support)}"

    def _check_event(self) -> None:
        """Refuse a shape whose last axes cannot hold a value of the support."""
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


@final
@dataclass(frozen=True, eq=False)
class FreeEntries:
    """The entries of a value that determine the others: a simplex without its last entry, a matrix's lower triangle.

    There are as many as unconstrained coordinates, so that their covariance can be inverted. Where the structure of
    a support is not known ("opaque"), all entries are taken.
    """

    kind: Kind
    shape: tuple[int, ...]  # of the natural value
    event: tuple[int, ...]  # its last axes, which the structure covers
    positions: np.ndarray  # (free,) in the flattened event

    @staticmethod
    def of(
        constraint: Constraint | None, shape: tuple[int, ...], unconstrained_shape: tuple[int, ...]
    ) -> FreeEntries:
        """The free entries of values of that shape under a NumPyro constraint (None: real)."""
        if constraint is None:
            return FreeEntries("all", shape, (), _positions("all", ()))
        from shardmc.model.numpyro.adapter import structure

        found, event_dim = structure(constraint)
        kind: Kind = found
        if found == "all" and math.prod(shape) != math.prod(unconstrained_shape):
            kind = "opaque"
        event = shape[len(shape) - event_dim :]
        return FreeEntries(kind, shape, event, _positions(kind, event))

    @property
    def batch(self) -> tuple[int, ...]:
        return self.shape[: len(self.shape) - len(self.event)]

    @property
    def size(self) -> int:
        """How many entries are free."""
        return math.prod(self.batch) * len(self.positions)

    def take(self, values: np.ndarray) -> np.ndarray:
        """Free entries (draw, free) of natural values (draw, *shape)."""
        flat = values.reshape(len(values), math.prod(self.batch), math.prod(self.event))
        return flat[:, :, self.positions].reshape(len(values), self.size)

    def complete(self, free: np.ndarray) -> np.ndarray:
        """Natural values (draw, *shape) from their free entries; NaN where no value has these entries."""
        draws, batch = len(free), math.prod(self.batch)
        free = free.reshape(draws, batch, len(self.positions))
        flat = np.zeros((draws, batch, math.prod(self.event)))
        flat[:, :, self.positions] = free
        values = flat.reshape(draws, batch, *self.event)
        match self.kind:
            case "simplex":
                values[..., -1] = 1 - values[..., :-1].sum(-1)
            case "zero_sum":
                for axis in range(2, values.ndim):
                    rest = values.sum(axis=axis)
                    np.moveaxis(values, axis, -1)[..., -1] = -rest
            case "symmetric" | "correlation":
                diagonal = np.arange(self.event[-1])
                values += np.swapaxes(np.tril(values, -1), -1, -2)
                if self.kind == "correlation":
                    values[..., diagonal, diagonal] = 1
            case "corr_cholesky":
                diagonal = np.arange(self.event[-1])
                with np.errstate(invalid="ignore"):
                    values[..., diagonal, diagonal] = np.sqrt(1 - (values**2).sum(-1))
            case "all" | "opaque" | "lower":
                pass
        return values.reshape(draws, *self.shape)

    def labels(self, name: str) -> list[str]:
        """Names of the free entries: "sigma", "beta[0]", "cov[1,0]"."""
        if not self.shape:
            return [name]
        batches = list(np.ndindex(*self.batch)) if self.batch else [()]
        within = [np.unravel_index(p, self.event) if self.event else () for p in self.positions]
        return [f"{name}[{','.join(str(int(i)) for i in (*b, *w))}]" for b in batches for w in within]


def _positions(kind: Kind, event: tuple[int, ...]) -> np.ndarray:
    """Positions of the free entries in the flattened event, in the order of NumPyro's unconstrained vectors."""
    if kind in ("all", "opaque"):
        return np.zeros(1, dtype=int)
    index = np.arange(math.prod(event)).reshape(event)
    if kind in ("simplex", "zero_sum"):
        return index[tuple(slice(n - 1) for n in event)].ravel()
    below = index[np.tril_indices(event[-1], -1)]
    return below if kind in ("correlation", "corr_cholesky") else np.concatenate([below, np.diagonal(index)])


def as_parameters(given: Mapping[str, ParameterLike]) -> dict[str, Parameter]:
    """The parameters of a model from the short forms that a user may write.

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
    """Refuse names that would be equal in a table, such as a number called `a[0]` and a vector `a`."""
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


def _shape(given: object) -> tuple[int, ...]:
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        given = (given,)
    if not isinstance(given, tuple | list) or not all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in given
    ):
        raise ModelError(f"A shape must be a positive integer or a tuple of them; {given!r} was given.")
    return tuple(int(n) for n in given)


def _constraint(support: Support) -> Constraint:
    from numpyro.distributions import constraints

    if isinstance(support, constraints.Constraint):
        if support.is_discrete:
            raise ModelError(f"Support {support!r} is discrete: sum the parameter out of the likelihood.")
        return support
    if not isinstance(support, str) and not (isinstance(support, tuple | list) and support):
        raise ModelError(
            "A support must be a name, a name with its bounds such as ('interval', 0, 1), or a constraint of "
            f"numpyro.distributions.constraints; {support!r} was given."
        )
    name, *bounds = (support,) if isinstance(support, str) else support
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
    # Arrays of bounds become JAX arrays, because NumPy arrays of 64 bits cannot be compiled in both precisions.
    numbers = [float(b) if np.ndim(b) == 0 else jnp.asarray(b, jnp.result_type(float)) for b in bounds]
    return constraint(*numbers) if num_bounds else constraint


def _example(name: str, num_bounds: int) -> str:
    return repr((name, *(float(i) for i in range(num_bounds)))) if num_bounds else repr(name)


def _describe_support(support: Support) -> str:
    """A support as text: names unchanged, constraints by type and content."""
    if isinstance(support, str | tuple):
        return repr(support)
    contents = ", ".join(
        f"{key}={np.asarray(value).tolist() if not hasattr(value, 'event_dim') else _describe_support(value)}"
        for key, value in sorted(vars(support).items())
        if not key.startswith("_")
    )
    return f"{type(support).__name__.lstrip('_')}({contents})"
