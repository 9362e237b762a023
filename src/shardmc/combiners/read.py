"""Draws of the shards from arrays, tables, data trees, and netCDF or CSV files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmc.combiners.named import RENAMED, Layout, from_columns
from shardmc.errors import OptionError, RunError
from shardmc.names import clash

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_NETCDF = (".nc", ".nc4", ".netcdf", ".h5", ".hdf5")
_CSV = (".csv", ".csv.gz", ".csv.zip", ".csv.bz2", ".csv.xz")


def read_shards(draws: Any, names: Sequence[str] | None = None) -> tuple[list[np.ndarray], Layout]:
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


def read_draws(entry: Any, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Draws of one posterior by name, (draw, ...) each: one entry of what `read_shards` takes.

    Examples
    --------
    >>> read_draws(np.zeros((5, 2)))["theta"].shape
    (5, 2)
    """
    return _named(entry, names, "The reference")


def _named(entry: Any, names: Sequence[str] | None, label: str) -> dict[str, np.ndarray]:
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
    first = next(iter(entry), None) if isinstance(entry, (list, tuple)) else None
    if isinstance(first, (str, Path, Mapping, pd.DataFrame, xr.DataTree, xr.Dataset)):
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
    if not path.is_file():
        raise RunError(f"There is no file {str(path)!r}.")
    if name.endswith(_CSV):
        return _from_csv(path)
    if not name.endswith(_NETCDF):
        raise RunError(f"{str(path)!r} is neither netCDF ({', '.join(_NETCDF)}) nor CSV ({', '.join(_CSV)}).")
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
        table = pd.read_csv(path, comment="#", skip_blank_lines=True)
        # CmdStan's settings come before its header.
        top = pd.read_csv(path, sep="\x01", header=None, names=["line"], dtype=str, quoting=3, nrows=500)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
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
    record = tree.attrs.get("shardmc")  # of a posterior that `fit` made
    renamed = json.loads(record).get("renamed", {}) if record else {}
    return _from_dataset(node.to_dataset(), label, renamed)


def _from_dataset(
    dataset: xr.Dataset, label: str, renamed: Mapping[str, str] | None = None
) -> dict[str, np.ndarray]:
    """Variables with a draw dimension. Chains are joined."""
    result = {}
    own = renamed or json.loads(dataset.attrs.get(RENAMED, "{}"))
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
