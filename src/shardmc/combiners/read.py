"""Draws of the shards from arrays, tables, data trees, and netCDF or CSV files, as flat vectors with names."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from shardmc.errors import OptionError, RunError
from shardmc.guards.files import verify_checksum
from shardmc.guards.limits import refuse_above
from shardmc.guards.untrusted import refuse_special, refuse_unsafe_netcdf, unpacked
from shardmc.model.variables import Variable, unstacked
from shardmc.names import clash

if TYPE_CHECKING:
    import jax
    import pandas as pd
    import xarray as xr

_Array: TypeAlias = "np.ndarray | jax.Array | Sequence[float] | Sequence[Sequence[float]]"
_Named: TypeAlias = "str | Path | Mapping[str, ArrayLike] | pd.DataFrame | xr.DataTree | xr.Dataset"
GivenDraws: TypeAlias = "_Array | _Named | Sequence[_Named]"
"""Draws of one shard, or of a posterior, as a user gives them: see `read_shards`."""
GivenShards: TypeAlias = "np.ndarray | jax.Array | Iterable[GivenDraws]"
"""Draws of every shard as a user gives them: see `read_shards`."""

RENAMED = "shardmc_names"
"""The attribute of a netCDF file with the original names of variables that had to be renamed."""

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
    axes = list(zip(*indices, strict=True))
    low = [min(axis) for axis in axes]
    shape = tuple(max(axis) - first + 1 for axis, first in zip(axes, low, strict=True))
    regular = all(first in (0, 1) for first in low) and len(indices) == prod(shape)
    return shape if regular else None


_NETCDF = (".nc", ".nc4", ".netcdf", ".h5", ".hdf5")
_HEADER = 1 << 22  # bytes in which the header of a CSV file is looked for
_CSV = (".csv", ".csv.gz", ".csv.zip", ".csv.bz2", ".csv.xz")


def read_shards(draws: GivenShards, names: Sequence[str] | None = None) -> tuple[list[np.ndarray], Layout]:
    """Draws of every shard as (draw, dim) arrays, and what their columns are.

    Parameters
    ----------
    draws
        An array (shard, draw, dim), or (shard, draw) for one parameter; or a sequence with an entry per
        shard: an array (draw, dim) or (draw,), a mapping from names to arrays (draw, ...), a pandas table, an
        xarray.DataTree or Dataset in ArviZ's layout, the path of such a netCDF file or of a CSV file, or a
        list of any of these named ones that are chains of the same shard.
    names
        Names of the columns of arrays.

    Examples
    --------
    >>> shards, layout = read_shards(np.zeros((3, 100, 2)), names=["alpha", "beta"])
    >>> len(shards), shards[0].shape, layout.names
    (3, (100, 2), ('alpha', 'beta'))
    """
    if isinstance(draws, np.ndarray) or hasattr(draws, "__array__"):
        array = np.asarray(draws)
        if array.ndim not in (2, 3):
            raise OptionError(
                f"An array of draws must be (shard, draw, dim) or (shard, draw); {array.shape} was given."
            )
        draws = list(array)
    elif isinstance(draws, (str, Path, Mapping)):
        raise OptionError("One shard was given; draws must be a list with one entry per shard.")
    shards = [_named(entry, names, f"Shard {i}") for i, entry in enumerate(draws)]
    if not shards:
        raise OptionError("There are no shards to combine.")
    layout = Layout.of(shards[0])
    alike = clash(dict(layout.shapes))
    if alike:
        raise OptionError(
            f"Parameters {alike[0]!r} and {alike[1]!r} cannot be told apart: both have an entry called {alike[1]!r}. "
            "Rename one of them."
        )
    for i, shard in enumerate(shards):
        _same_layout(layout, shard, i)
    return [layout.flatten(shard) for shard in shards], layout


def read_draws(entry: object, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Draws of one posterior by name, (draw, ...) each: one entry of what `read_shards` takes.

    Examples
    --------
    >>> read_draws(np.zeros((5, 2)))["theta"].shape
    (5, 2)
    """
    return _named(entry, names, "The reference")


def _named(entry: object, names: Sequence[str] | None, label: str) -> dict[str, np.ndarray]:
    import pandas as pd
    import xarray as xr

    if isinstance(entry, (str, Path)):
        return _from_file(Path(entry))
    if isinstance(entry, Mapping) and not isinstance(entry, (xr.DataTree, xr.Dataset)):
        return {str(name): np.asarray(values) for name, values in entry.items()}
    if isinstance(entry, pd.DataFrame):
        return _from_table(entry)
    if isinstance(entry, xr.DataTree):
        return _from_tree(entry, label)
    if isinstance(entry, xr.Dataset):
        return _from_dataset(entry, label)
    named = (str, Path, Mapping, pd.DataFrame, xr.DataTree, xr.Dataset)
    if isinstance(entry, (list, tuple)) and isinstance(next(iter(entry), None), named):
        parts = [_named(part, names, f"{label}, chain {i}") for i, part in enumerate(entry)]
        missing = [name for part in parts for name in parts[0].keys() ^ part.keys()]
        if missing:
            raise OptionError(f"{label} has chains with different parameters: {sorted(set(missing))}.")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return _from_array(np.asarray(entry), names, label)


def _from_array(array: np.ndarray, names: Sequence[str] | None, label: str) -> dict[str, np.ndarray]:
    if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.number):
        given = f"shape {array.shape} and type {array.dtype}"
        raise OptionError(f"{label} has draws of {given}; they must be numbers of shape (draw, dim).")
    if names is None:
        return {"theta": array}
    if len(set(names)) < len(names):
        repeated = next(name for name in names if list(names).count(name) > 1)
        raise OptionError(f"Names of columns must differ, but {repeated!r} was given more than once.")
    columns = array.reshape(len(array), -1)
    if len(names) != columns.shape[1]:
        raise OptionError(f"{len(names)} names were given for {columns.shape[1]} columns.")
    return from_columns(list(names), columns)


def _from_file(path: Path) -> dict[str, np.ndarray]:
    import xarray as xr

    name = path.name.lower()
    if not path.exists():
        raise RunError(f"There is no file {str(path)!r}.")
    refuse_special(path)
    if name.endswith(_CSV):
        return _from_csv(path)
    if not name.endswith(_NETCDF):
        raise RunError(f"{str(path)!r} is neither netCDF ({', '.join(_NETCDF)}) nor CSV ({', '.join(_CSV)}).")
    refuse_unsafe_netcdf(path)
    verify_checksum(path, required=False)
    try:
        tree = xr.open_datatree(path, engine="h5netcdf")
    except (OSError, ValueError) as error:
        raise RunError(f"{str(path)!r} cannot be read as a netCDF-4 file: {error}") from error
    with tree:
        return _from_tree(tree, repr(str(path)))


def _from_csv(path: Path) -> dict[str, np.ndarray]:
    """A table with a header. Lines that start with # are comments, in which CmdStan records its settings."""
    import pandas as pd

    try:
        with unpacked(path) as file:
            first = file.read(_HEADER).splitlines()
        header = next((line for line in first if line.strip() and not line.startswith(b"#")), b"")
        columns = header.count(b",") + 1
        refuse_above("columns", columns, f"{path} has {columns:,} columns", RunError)
        with unpacked(path) as file:
            table = pd.read_csv(file, comment="#", skip_blank_lines=True)
        # CmdStan's settings come before its header.
        with unpacked(path) as file:
            top = pd.read_csv(file, sep="\x01", header=None, names=["line"], dtype=str, quoting=3, nrows=500)
    except (
        OSError,
        EOFError,
        lzma.LZMAError,
        pd.errors.ParserError,
        pd.errors.EmptyDataError,
        UnicodeDecodeError,
    ) as error:
        raise RunError(f"{str(path)!r} cannot be read as CSV: {error}") from error
    remarks = "\n".join(top["line"][top["line"].str.startswith("#")])
    settings = dict(re.findall(r"^#\s*(\w+)\s*=\s*(\w+)", remarks, re.MULTILINE))
    if settings.get("save_warmup", "0") in ("1", "true"):
        # Warm-up draws come first in the file and are not draws of the posterior.
        table = table.iloc[-(-int(settings["num_warmup"]) // int(settings.get("thin", 1))) :]
    if len(table) == 0:
        raise RunError(f"{str(path)!r} holds no draws.")
    return _from_table(table, repr(str(path)))


def _from_table(table: pd.DataFrame, label: str = "A table of draws") -> dict[str, np.ndarray]:
    """Columns of a table, without samplers' own (`lp__`), R's bookkeeping (`.chain`) and row numbers."""
    names = [str(name) for name in table.columns]
    bookkeeping = {".chain", ".iteration", ".draw"}
    if {"chain", "draw"} <= set(names):
        bookkeeping |= {"chain", "draw"}
    kept = [
        (i, name)
        for i, name in enumerate(names)
        if not (name.endswith("__") or name in bookkeeping or name.startswith("Unnamed: "))
    ]
    for i, name in kept:
        if not np.issubdtype(np.asarray(table.iloc[:, i]).dtype, np.number):
            raise RunError(f"{label} has a column {name!r} that is not numeric.")
    if not kept:
        raise RunError(f"{label} has no columns of parameters.")
    return from_columns([name for _, name in kept], table.iloc[:, [i for i, _ in kept]].to_numpy(np.float64))


def _from_tree(tree: xr.DataTree, label: str) -> dict[str, np.ndarray]:
    node = tree["posterior"] if "posterior" in tree.children else tree
    found = _from_dataset(node.to_dataset(), label)
    if "shardmc" not in tree.attrs:
        return found
    try:
        record = json.loads(tree.attrs["shardmc"])  # of a posterior that `fit` made
        return unstacked(found, [Variable.from_dict(each) for each in record["variables"]], record["draws"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{label} has a record of shardmc that does not fit it: {error}.") from error


def _from_dataset(dataset: xr.Dataset, label: str) -> dict[str, np.ndarray]:
    """Variables with a draw dimension. Chains are joined."""
    result = {}
    own = json.loads(dataset.attrs.get(RENAMED, "{}"))
    for name, variable in dataset.data_vars.items():
        if "draw" not in variable.dims:
            continue
        chained = variable if "chain" in variable.dims else variable.expand_dims("chain")
        values = chained.transpose("chain", "draw", ...).to_numpy()
        result[own.get(str(name), str(name))] = values.reshape(-1, *values.shape[2:])
    if not result:
        raise RunError(f"{label} has no group 'posterior' with variables over chain and draw.")
    return result


def _same_layout(layout: Layout, shard: Mapping[str, np.ndarray], i: int) -> None:
    expected, given = dict(layout.shapes), dict(Layout.of(shard).shapes)
    lengths = {np.shape(values)[0] for values in shard.values()}
    if len(lengths) > 1:
        raise OptionError(f"Parameters of shard {i} have different numbers of draws: {sorted(lengths)}.")
    if expected.keys() != given.keys():
        raise OptionError(
            f"Shard {i} and shard 0 have different parameters: {sorted(expected.keys() ^ given.keys())} "
            f"are in only one of them."
        )
    for name, shape in expected.items():
        if given[name] != shape:
            raise OptionError(
                f"Parameter {name!r} has shape {given[name]} in shard {i} and {shape} in shard 0."
            )
