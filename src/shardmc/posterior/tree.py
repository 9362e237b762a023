"""A posterior as an xarray.DataTree in ArviZ's layout, and back.

Every field of `Posterior`, `ShardTable` and `GroupMoments` says in its metadata how it is stored. For an array, or a
mapping of arrays, these are the names of the axes; for any other value, the function that reads it from JSON. A new
field needs no change here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from shardmc.errors import RunError
from shardmc.model.variables import named_arrays, unstacked
from shardmc.names import shown
from shardmc.types import plain

if TYPE_CHECKING:
    import xarray as xr

    from shardmc.model.variables import Label
    from shardmc.posterior.records import GroupMoments, ShardTable
    from shardmc.posterior.result import Result

R = TypeVar("R", bound="Result")
J = TypeVar("J")

Stored: TypeAlias = "Result | ShardTable | GroupMoments"
"""What has a group of arrays in a tree."""

_LAYOUT = 2
_ADVICE = "It is damaged, or another program or version wrote it: take a copy, or repeat the fit."
_ATTRIBUTE = "shardmc"


def axes(*names: str) -> dict[str, tuple[str, ...]]:
    """Metadata of a field that is stored as an array with these axes; None is not stored."""
    return {"axes": names}


def columns(*axes: str) -> dict[str, tuple[str, ...]]:
    """Metadata of a mapping from names to arrays, stored as arrays with the first of these axes."""
    return {"columns": axes}


def read_by(function: Callable[[J], object]) -> dict[str, Callable[[J], object]]:
    """Metadata of a field that is stored as JSON, with the function that reads its value; None stays None."""
    return {"read": function}


def to_tree(posterior: Result) -> xr.DataTree:
    """The groups posterior, unconstrained, sample_stats and shards."""
    import xarray as xr

    layout = posterior.chains
    theta = ("chain", "draw", "coordinate"), posterior.theta.reshape(*layout, -1)
    # Names as they were given are in the record: an array of text loses a NUL at its end.
    coordinate = {"coordinate": [shown(name) for name in posterior.names]}
    tree = xr.DataTree.from_dict(
        {
            "posterior": _natural(posterior, layout),
            "unconstrained": xr.Dataset({"theta": theta, **_arrays(posterior)}, coords=coordinate),
            "sample_stats": xr.Dataset(
                {name: (("chain", "draw"), v.reshape(layout)) for name, v in _stats(posterior).items()},
                coords=_draw_coords(layout),
            ),
            "shards": xr.Dataset(_arrays(posterior.shards), coords=coordinate),
        }
    )
    if posterior.groups is not None:
        tree["groups"] = xr.DataTree(xr.Dataset(_arrays(posterior.groups)))
    record = {name: _plain(getattr(posterior, name)) for name in _readers(type(posterior))}
    tree.attrs[_ATTRIBUTE] = json.dumps(
        {"layout": _LAYOUT, "names": list(posterior.names), "draws": list(posterior.draws), **record}
    )
    return tree


def from_tree(tree: xr.DataTree, kind: type[R]) -> R:
    """The posterior that a tree was made from."""
    if _ATTRIBUTE not in tree.attrs:
        raise RunError("The file holds no posterior of shardmc: its attribute 'shardmc' is missing.")
    try:
        record = json.loads(tree.attrs[_ATTRIBUTE])
    except (TypeError, ValueError, RecursionError) as error:
        raise RunError(f"The file's record, its attribute 'shardmc', is not JSON. {_ADVICE}") from error
    if not isinstance(record, dict) or record.get("layout") != _LAYOUT:
        raise RunError(f"The file's record is not of layout {_LAYOUT}, which this version reads. {_ADVICE}")
    try:
        return _posterior(tree, record, kind)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"The file lacks something, or its record does not fit it: {error}. {_ADVICE}"
        ) from error


def _posterior(tree: xr.DataTree, record: dict[str, Any], kind: type[R]) -> R:
    from shardmc.posterior.records import GroupMoments, ShardTable

    groups = ("posterior", "unconstrained", "sample_stats", "shards")
    natural, unconstrained, stats, shards = (tree[group].to_dataset() for group in groups)
    values: dict[str, Any] = {
        name: None if record.get(name) is None else read(record[name])
        for name, read in _readers(kind).items()
    }
    return kind(
        draws=unstacked(
            {str(name): _flat(v.values) for name, v in natural.data_vars.items()},
            values["variables"] or (),
            record["draws"],
        ),
        theta=_flat(unconstrained["theta"].values),
        names=tuple(record["names"]),
        shard=_flat(stats["shard"].values) if "shard" in stats else None,
        shards=ShardTable(**_read_arrays(ShardTable, shards)),
        groups=(
            GroupMoments(**_read_arrays(GroupMoments, tree["groups"].to_dataset()))
            if "groups" in tree
            else None
        ),
        **_read_arrays(kind, unconstrained),
        **values,
    )


def _arrays(record: Stored) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Name in the tree -> the axes and the array."""
    found = {}
    for each in fields(record):
        values = getattr(record, each.name)
        if "axes" in each.metadata and values is not None:
            text = isinstance(values, tuple)
            found[each.name] = each.metadata["axes"], np.array(values, dtype=object) if text else values
        for name, column in getattr(record, each.name).items() if "columns" in each.metadata else ():
            found[f"{each.name}.{name}"] = each.metadata["columns"][: np.ndim(column)], np.asarray(column)
    return found


def _read_arrays(kind: type[Stored], data: xr.Dataset) -> dict[str, Any]:
    """The fields that `_arrays` stored."""
    found = {}
    for each in fields(kind):
        if "axes" in each.metadata and each.name in data:
            values = data[each.name].values
            found[each.name] = tuple(map(str, values)) if values.dtype.kind in "OUT" else values
        if "columns" in each.metadata:
            start = f"{each.name}."
            names = [str(name) for name in data.data_vars if str(name).startswith(start)]
            found[each.name] = {name.removeprefix(start): data[name].values for name in names}
    return found


def _readers(kind: type[Result]) -> dict[str, Callable[[object], object]]:
    """Field that is stored as JSON -> the function that reads it."""
    return {each.name: each.metadata["read"] for each in fields(kind) if "read" in each.metadata}


@runtime_checkable
class _WritesItself(Protocol):
    """A value that says how JSON holds it."""

    def to_dict(self) -> dict[str, object]: ...


def _plain(given: object) -> object:
    """A value as JSON can hold it."""
    if isinstance(given, _WritesItself):
        return given.to_dict()
    if isinstance(given, tuple):
        return [_plain(each) for each in given]
    return plain(asdict(given) if is_dataclass(given) and not isinstance(given, type) else given)


def _draw_coords(layout: tuple[int, int]) -> dict[str, np.ndarray]:
    return {"chain": np.arange(layout[0]), "draw": np.arange(layout[1])}


def _stats(posterior: Result) -> dict[str, np.ndarray]:
    """What is known of single draws, (draw,), under ArviZ's names.

    The acceptance rate is that of the shard that a draw came from. Which draws diverged is known if none did; the
    group shards has the number of divergences in each shard.
    """
    shard, shards = posterior.shard, posterior.shards
    if shard is None:
        return {}
    stats = {"shard": shard, "acceptance_rate": shards.acceptance[shard]}
    if not shards.divergences.any():
        stats["diverging"] = np.zeros(len(shard), bool)
    return stats


def _natural(posterior: Result, layout: tuple[int, int]) -> xr.Dataset:
    import xarray as xr

    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    coords: dict[str, np.ndarray | list[Label]] = {**_draw_coords(layout)}
    for name, each in named_arrays(posterior.draws, posterior.variables).items():
        chained = each.values.reshape(*layout, *each.values.shape[1:])
        variables[name] = ("chain", "draw", *each.dims), chained
        coords |= {dim: list(labels) for dim, labels in each.coords.items()}
    return xr.Dataset(variables, coords=coords)


def _flat(values: np.ndarray) -> np.ndarray:
    """(chain, draw, ...) -> (draw, ...)."""
    return values.reshape(-1, *values.shape[2:])
