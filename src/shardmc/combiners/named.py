"""Named parameters, the flat vectors that the combiners work on, and combined draws under their names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardmc.errors import RunError
from shardmc.names import shown, stored

_INDEXED = re.compile(r"^(?P<name>.+?)(?:(?P<dots>(?:\.\d+)+)|\[(?P<list>\d+(?:\s*,\s*\d+)*)\])$")


@dataclass(frozen=True)
class Layout:
    """Names and shapes of parameters, in the order of a flat vector."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def dim(self) -> int:
        return sum(prod(shape) for _, shape in self.shapes)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every coordinate.

        >>> Layout((("alpha", ()), ("beta", (2,)))).names
        ('alpha', 'beta[0]', 'beta[1]')
        """
        return tuple(
            f"{name}[{','.join(map(str, index))}]" if index else name
            for name, shape in self.shapes
            for index in np.ndindex(shape)
        )

    @staticmethod
    def of(named: Mapping[str, np.ndarray]) -> Layout:
        """The layout of arrays (draw, ...)."""
        return Layout(tuple((name, np.shape(array)[1:]) for name, array in named.items()))

    def flatten(self, named: Mapping[str, np.ndarray]) -> np.ndarray:
        """Arrays (draw, ...) by name as one array (draw, dim)."""
        parts = [np.asarray(named[name], dtype=np.float64) for name, _ in self.shapes]
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    def unflatten(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """An array (draw, dim) as arrays (draw, ...) by name.

        >>> draws = Layout((("alpha", ()), ("beta", (2,)))).unflatten(np.array([[1.0, 2.0, 3.0]]))
        >>> draws["beta"]
        array([[2., 3.]])
        """
        ends = np.cumsum([prod(shape) for _, shape in self.shapes])
        parts = np.split(values, ends[:-1], axis=1)
        return {
            name: part.reshape(len(values), *shape)
            for (name, shape), part in zip(self.shapes, parts, strict=True)
        }


def from_columns(names: Sequence[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """Columns (draw, column) as arrays by name: `beta.1`, `beta.2` or `beta[0]`, `beta[1]` become one `beta`.

    Columns whose indices do not fill a rectangle that starts at 0 or 1 stay separate.

    >>> sorted(from_columns(["alpha", "beta.1", "beta.2"], np.ones((5, 3))))
    ['alpha', 'beta']
    """
    groups: dict[str, list[tuple[tuple[int, ...], int]]] = {}
    for column, name in enumerate(names):
        found = _INDEXED.match(name)
        base, index = (found["name"], _index(found)) if found else (name, ())
        groups.setdefault(base, []).append((index, column))
    result = {}
    for base, places in groups.items():
        indices = [index for index, _ in places]
        # `beta.1` and `beta[1]` would be the same entry.
        shape = _rectangle(indices) if len(set(indices)) == len(indices) else None
        if shape is None:
            result |= {names[column]: values[:, column] for _, column in places}
        else:
            # Sorted indices are in C order, as in a NumPy array.
            order = [column for _, column in sorted(places)]
            result[base] = values[:, order].reshape(len(values), *shape)
    return result


def _index(found: re.Match[str]) -> tuple[int, ...]:
    digits = found["dots"][1:].split(".") if found["dots"] else found["list"].split(",")
    return tuple(int(digit) for digit in digits)


def _rectangle(indices: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of an array with exactly these indices, counted from 0 or 1; None if there is none."""
    if len({len(index) for index in indices}) > 1:
        return None
    low = [min(axis) for axis in zip(*indices, strict=True)]
    shape = tuple(max(axis) - first + 1 for axis, first in zip(_axes(indices), low, strict=True))
    regular = all(first in (0, 1) for first in low) and len(indices) == prod(shape)
    return shape if regular else None


def _axes(indices: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    return zip(*indices, strict=True)


if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True)
class CombinedDraws:
    """Draws of the full posterior, by name and as one array, and the combiner's notes."""

    values: np.ndarray  # (draw, dim)
    layout: Layout
    shard: np.ndarray | None  # (draw,) the shard each draw came from, if it came from one
    notes: tuple[str, ...]
    method: str

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        notes = "".join(f"\n  {note}" for note in self.notes)
        return f"<CombinedDraws by {self.method}: {len(self)} draws of {', '.join(map(shown, self.draws))}>{notes}"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every column of `values`."""
        return self.layout.names

    @cached_property
    def draws(self) -> dict[str, np.ndarray]:
        """Arrays (draw, ...) by name."""
        return self.layout.unflatten(self.values)

    @cached_property
    def tree(self) -> xr.DataTree:
        """The draws in ArviZ's layout: group `posterior`, and `sample_stats` with the shard of each draw."""
        import arviz_base

        groups = {"posterior": {stored(name): values[None] for name, values in self.draws.items()}}
        if self.shard is not None:
            groups["sample_stats"] = {"shard": self.shard[None]}
        tree = arviz_base.from_dict(groups)
        tree["posterior"].attrs.update(method=self.method, notes="\n".join(self.notes))
        renamed = {stored(name): name for name in self.draws if stored(name) != name}
        if renamed:
            tree["posterior"].attrs[RENAMED] = json.dumps(renamed)
        return tree

    def to_pandas(self) -> pd.DataFrame:
        """One row per draw, one column per coordinate."""
        import pandas as pd

        return pd.DataFrame(self.values, columns=list(self.names))

    def save(self, path: str | Path) -> Path:
        """Write the tree as a netCDF file, which `combine`, ArviZ and xarray can read."""
        path = Path(path)
        if not path.parent.is_dir():
            raise RunError(f"There is no folder {str(path.parent)!r} to write {path.name!r} into.")
        try:
            self.tree.to_netcdf(path, engine="h5netcdf")
        except OSError as error:
            raise RunError(f"{path} could not be written: {error.strerror or error}.") from error
        return path


RENAMED = "shardmc_names"
"""The attribute of a netCDF file with the original names of variables that had to be renamed."""
