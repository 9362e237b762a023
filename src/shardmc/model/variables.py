"""The variables of a result: draws by name as arrays whose axes have names and labels, as in ArviZ and PyMC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self, final

import numpy as np

from shardmc.errors import ModelError, unknown
from shardmc.names import axis_names, shown, stored, stored_axis

Label = str | int | float


@final
@dataclass(frozen=True)
class Variable:
    """A variable whose axes have names of their own.

    Its array is that of the draws with its name, or is made of the draws of several parameters, one for each entry.
    """

    name: str
    dims: tuple[str, ...]
    """Names of its axes after chain and draw."""
    coords: Mapping[str, tuple[Label, ...]] = field(default_factory=dict)
    """Name of an axis -> labels along it; 0, 1, ... for an axis without labels."""
    entries: tuple[str, ...] = ()
    """Names of the parameters that it is made of, last axis fastest; none if it is a parameter itself."""

    def stacked(self, draws: Mapping[str, np.ndarray]) -> np.ndarray:
        """Its array (draw, ...) from the draws of its entries."""
        shape = [len(self.coords[dim]) for dim in self.dims]
        return np.stack([draws[entry] for entry in self.entries], axis=1).reshape(-1, *shape)

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        coords = {dim: tuple(labels) for dim, labels in record["coords"].items()}
        return cls(record["name"], tuple(record["dims"]), coords, tuple(record["entries"]))


@final
@dataclass(frozen=True)
class NamedArray:
    """An array of draws (draw, ...) as a variable of a file: names of its other axes, and their labels."""

    values: np.ndarray
    dims: tuple[str, ...]
    coords: Mapping[str, Sequence[Label]]


def named_arrays(draws: Mapping[str, np.ndarray], variables: Sequence[Variable]) -> dict[str, NamedArray]:
    """The variables of a file, by their names there, from draws (draw, ...) by name.

    >>> draws = {"a[x]": np.zeros(5), "a[y]": np.ones(5), "b": np.zeros((5, 3))}
    >>> found = named_arrays(draws, [Variable("a", ("a_dim",), {"a_dim": ("x", "y")}, ("a[x]", "a[y]"))])
    >>> {name: (each.values.shape, each.dims) for name, each in found.items()}
    {'a': ((5, 2), ('a_dim',)), 'b': ((5, 3), ('b_dim',))}
    """
    home = {entry: variable for variable in variables for entry in variable.entries}
    own = {variable.name: variable for variable in variables if not variable.entries}
    chosen: dict[str, tuple[np.ndarray, Variable | None]] = {}
    for name, values in draws.items():
        variable = home.get(name, own.get(name))
        if variable is None:
            chosen[name] = values, None
        elif not variable.entries:
            chosen[name] = values, variable
        elif variable.name not in chosen:
            chosen[variable.name] = variable.stacked(draws), variable
    taken: dict[str, tuple[Label, ...] | None] = {"chain": None, "draw": None}
    taken |= {stored(name): None for name in chosen}
    return {stored(name): _named(name, *each, taken) for name, each in chosen.items()}


def _named(
    name: str, values: np.ndarray, variable: Variable | None, taken: dict[str, tuple[Label, ...] | None]
) -> NamedArray:
    """One variable. `taken` has the names in use: those of other variables, and of axes with their labels."""
    asked = () if variable is None else variable.dims
    axes = (*asked, *axis_names(name, values.ndim - 1)[len(asked) :])
    found: dict[str, tuple[Label, ...]] = {}
    for k, size in enumerate(values.shape[1:]):
        dim = stored_axis(axes[k])
        labels: tuple[Label, ...] = tuple(range(size))
        if variable is not None and k < len(asked):
            given = variable.coords.get(asked[k], labels)
            if len(given) == size:  # those of a derived quantity may not fit it
                labels = tuple(shown(label) if isinstance(label, str) else label for label in given)
        while dim in found or taken.setdefault(dim, labels) != labels:
            dim += "_"
        found[dim] = labels
    return NamedArray(values, tuple(found), found)


def unstacked(
    arrays: Mapping[str, np.ndarray], variables: Sequence[Variable], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """The draws with these names, from a file's variables (draw, ...) by their names there."""
    place = {entry: (v.name, k) for v in variables for k, entry in enumerate(v.entries)}
    found = {}
    for name in names:
        home, k = place.get(name, (name, None))
        values = arrays[stored(home)]
        found[name] = values if k is None else np.ascontiguousarray(values.reshape(len(values), -1)[:, k])
    return found


def partly_named(name: str, dims: Sequence[str | None]) -> tuple[str, ...]:
    """Names of all axes of a parameter, of which some have one.

    >>> partly_named("beta", ["group", None])
    ('group', 'beta_dim_1')
    """
    others = axis_names(name, len(dims))
    return tuple(dim or other for dim, other in zip(dims, others, strict=True))


def named_axes(
    dims: Mapping[str, Sequence[str] | str] | None,
    coords: Mapping[str, Sequence[object]] | None,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    others: bool = False,
) -> tuple[Variable, ...]:
    """The variables of a model's parameters from the names and labels of axes that a user gave.

    Parameters
    ----------
    dims
        Name of a parameter -> the names of its axes.
    coords
        Name of an axis -> the labels along it.
    shapes
        Name of a parameter -> its shape.
    others
        Whether there are other names, such as those of derived quantities, whose shapes are not known here.

    Examples
    --------
    >>> named_axes({"beta": ["predictor"]}, {"predictor": ["age", "income"]}, {"beta": (2,), "sigma": ()})
    (Variable(name='beta', dims=('predictor',), coords={'predictor': ('age', 'income')}, entries=()),)
    """
    labels = {dim: as_labels(given) for dim, given in (coords or {}).items()}
    for dim, each in labels.items():
        if len(set(each)) < len(each):
            twice = next(label for label in each if each.count(label) > 1)
            raise ModelError(
                f"coords[{dim!r}] has the label {twice!r} twice; labels along an axis must differ."
            )
    lengths = {dim: len(given) for dim, given in labels.items()}
    found = []
    for name, given in (dims or {}).items():
        axes = (given,) if isinstance(given, str) else tuple(given)
        if name not in shapes and not others:
            raise ModelError(str(unknown("parameter in dims", name, shapes)))
        _check_axes(name, axes, shapes, lengths)
        found.append(Variable(name, axes, {dim: labels[dim] for dim in axes if dim in labels}))
    unused = set(labels) - {dim for variable in found for dim in variable.dims}
    if unused:
        raise ModelError(
            f"coords has labels of {min(unused)!r}, but no parameter has an axis of that name: name it in dims, as in "
            f'dims={{"beta": ["{min(unused)}"]}}.'
        )
    return tuple(found)


def as_labels(given: object) -> tuple[Label, ...]:
    """Labels along an axis: numbers if all of them are, otherwise text."""
    values = np.asarray(given, dtype=object).ravel().tolist()
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    return tuple(values) if numbers else tuple(map(str, values))


def _check_axes(
    name: str, axes: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]], lengths: dict[str, int]
) -> None:
    """Refuse names of axes that do not fit the parameters; add the lengths of new ones."""
    for dim in axes:
        if not isinstance(dim, str) or not dim or dim in ("chain", "draw") or dim in shapes:
            raise ModelError(
                f"dims[{name!r}] names an axis {dim!r}: the name must be text, and not 'chain', 'draw' or the name "
                "of a parameter."
            )
    shape = shapes.get(name)
    if shape is None:
        return
    if len(axes) != len(shape):
        raise ModelError(f"dims[{name!r}] names {len(axes)} axes, but {name!r} has shape {shape}.")
    for dim, size in zip(axes, shape, strict=True):
        if lengths.setdefault(dim, size) != size:
            raise ModelError(
                f"The axis {dim!r} has {lengths[dim]} entries, but {size} in parameter {name!r} of shape {shape}."
            )
