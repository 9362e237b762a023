"""The one small file that leaves a site: draws, mode and curvature of a shard whose rows stay where they are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np
import xarray as xr

from shardmc.errors import RunError
from shardmc.locate.expansion import Expansion
from shardmc.model import Model, Parameter
from shardmc.names import shown
from shardmc.sample import ShardChains
from shardmc.store.files import load_tree, save_tree
from shardmc.types import Params, Rows

_ATTRIBUTE = "shardmc_site"
_LAYOUT = 1
_TOGETHER = (
    ("mode", "curvature"),
    ("reference", "reference_gradient"),
    ("reference", "reference_curvature"),
)
_KEYS = {"layout", "shard", "share", "rows", "parameters", "model", "sampler", "precision"}

PlainSupport = str | list[str | int | float] | None
"""A support in words that a file can hold; None where it has none."""

Supports = Mapping[str, tuple[tuple[int, ...], PlainSupport]]
"""Parameter -> (shape, support)."""


@final
@dataclass(frozen=True)
class Site:
    """The results of one site, without its rows."""

    shard: int
    share: float
    rows: int
    names: tuple[str, ...]  # of the coordinates
    supports: Supports
    model: str  # fingerprint
    chains: ShardChains
    precision: str  # "single" or "double"
    mode: np.ndarray | None  # (dim,) of the site's rescaled subposterior
    curvature: np.ndarray | None  # (dim, dim) minus the Hessian there
    reference: Expansion | None = None
    """The site's rescaled log posterior at the point that all sites were given."""
    noise: float = 0.0
    """How many times the change that one row makes was added as noise."""

    @property
    def dim(self) -> int:
        return len(self.names)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the site's file (netCDF). It is complete or absent."""
        coordinate, square = ("coordinate",), ("coordinate", "other_coordinate")
        variables: dict[str, tuple[tuple[str, ...], np.ndarray | float | None]] = {
            "draws": (("chain", "draw", "coordinate"), self.chains.theta),
            "acceptance": ((), self.chains.acceptance),
            "divergences": ((), self.chains.divergences),
        }
        if self.mode is not None:
            variables |= {"mode": (coordinate, self.mode), "curvature": (square, self.curvature)}
        if self.reference is not None:
            variables |= {
                "reference": (coordinate, self.reference.center),
                "reference_gradient": (coordinate, self.reference.gradient),
                "reference_curvature": (square, self.reference.curvature),
            }
        record = {
            "layout": _LAYOUT,
            "shard": self.shard,
            "share": self.share,
            "rows": self.rows,
            "parameters": {name: [list(shape), support] for name, (shape, support) in self.supports.items()},
            "model": self.model,
            "sampler": self.chains.sampler,
            "precision": self.precision,
            "names": list(self.names),
            "noise": self.noise,
        }
        dataset = xr.Dataset(variables, coords={"coordinate": [shown(name) for name in self.names]})
        tree = xr.DataTree.from_dict({"shard": dataset})
        tree.attrs[_ATTRIBUTE] = json.dumps(record)
        save_tree(tree, path)


def plain_supports(model: Model) -> Supports:
    """Shapes and supports of a model's parameters in words that a file can hold.

    >>> model = Model(lambda p, rows: -((rows - p["mu"]) ** 2), None, {"mu": (), "p": ("interval", 0, 2)})
    >>> plain_supports(model)
    {'mu': ((), 'real'), 'p': ((), ['interval', 0, 2])}
    """
    return {name: (p.shape, _plain(p.support)) for name, p in model.parameters.items()}


def model_of(supports: Supports) -> Model:
    """A model that knows its parameters and nothing else, enough to express draws on the natural scale."""
    parameters = {}
    for name, (shape, support) in supports.items():
        if support is None:
            raise RunError(
                f"Parameter {name!r} has a support that a file cannot describe; give the model to combine the sites."
            )
        parameters[name] = Parameter(shape, support if isinstance(support, str) else tuple(support))
    return Model(_elsewhere, None, parameters)


def is_site_file(path: str | os.PathLike[str]) -> bool:
    """Whether this is a file that a site has written."""
    try:
        return _ATTRIBUTE in load_tree(path).attrs
    except RunError:
        return False


def read_site(path: str | os.PathLike[str]) -> Site:
    """Read a site from its file. Nothing in the file is executed or unpickled."""
    tree = load_tree(path)
    if _ATTRIBUTE not in tree.attrs or "shard" not in tree.children:
        raise RunError(f"{os.fspath(path)} is not a site's file: sample_shard did not write it.")
    try:
        return _site(json.loads(tree.attrs[_ATTRIBUTE]), tree["shard"].to_dataset())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{os.fspath(path)} is not a site's file that this version of shardmc can read: {error}."
        ) from error


def _site(record: dict[str, Any], data: xr.Dataset) -> Site:
    if not isinstance(record, dict) or not record.keys() >= _KEYS or record["layout"] != _LAYOUT:
        raise ValueError(f"its description is not of layout {_LAYOUT}")
    draws = np.asarray(data["draws"].values, np.float64)
    dim = draws.shape[-1]
    arrays = {name: np.asarray(data[name].values, np.float64) for name in data.data_vars}
    shapes = {"mode": (dim,), "curvature": (dim, dim), "reference": (dim,), "reference_gradient": (dim,)}
    shapes["reference_curvature"] = (dim, dim)
    if draws.ndim != 3 or any(arrays[name].shape != shapes[name] for name in shapes if name in arrays):
        raise ValueError("its arrays do not have the shapes of draws, mode and curvature")
    if not all(np.isfinite(array).all() for name, array in arrays.items() if name != "acceptance"):
        raise ValueError("it holds values that are not finite")
    for first, second in _TOGETHER:
        if (first in arrays) != (second in arrays):
            has, lacks = (first, second) if first in arrays else (second, first)
            raise ValueError(f"it has a {has} without a {lacks}")
    share, shard, rows = float(record["share"]), int(record["shard"]), int(record["rows"])
    if not 0 < share <= 1 or shard < 0 or rows < 1:
        raise ValueError(f"its share is {share}, its number {shard}, its number of rows {rows}")
    chains = ShardChains(
        draws, float(arrays["acceptance"]), int(arrays["divergences"]), str(record["sampler"])
    )
    reference = None
    if "reference" in arrays:
        reference = Expansion(
            arrays["reference"], arrays["reference_gradient"], arrays["reference_curvature"]
        )
    return Site(
        shard=shard,
        share=share,
        rows=rows,
        names=tuple(map(str, record.get("names", data["coordinate"].values))),
        supports={name: (tuple(shape), support) for name, (shape, support) in record["parameters"].items()},
        model=str(record["model"]),
        chains=chains,
        precision=str(record["precision"]),
        mode=arrays.get("mode"),
        curvature=arrays.get("curvature"),
        reference=reference,
        noise=float(record.get("noise", 0.0)),
    )


def _plain(support: object) -> PlainSupport:
    """A support as text or a list of text and numbers; None where it is an object of its own."""
    if isinstance(support, str):
        return support
    if isinstance(support, tuple) and all(isinstance(each, str | int | float) for each in support):
        return list(support)
    return None


def _elsewhere(params: Params, rows: Rows) -> NoReturn:
    raise RunError("The rows, and the model of them, are at the sites.")
