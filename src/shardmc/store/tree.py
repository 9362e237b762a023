"""A tree of results on disk as netCDF or Zarr: complete or absent, and never with pickled objects."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

import xarray as xr

from shardmc.errors import RunError
from shardmc.store.files import replacing, write_file

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZARR_METADATA = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}


def save_tree(tree: xr.DataTree, path: str | os.PathLike[str]) -> None:
    """Write a tree as netCDF (.nc) or Zarr (.zarr); what has that name is replaced once the new one is complete.

    >>> import tempfile
    >>> tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"beta": ("draw", [1.0, 2.0])})})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_tree(tree, Path(folder) / "posterior.nc")
    ...     load_tree(Path(folder) / "posterior.nc")["posterior/beta"].values.tolist()
    [1.0, 2.0]
    """
    target = Path(path)
    if _is_zarr(target):
        _save_zarr(tree, target)
    else:
        # In memory first: HDF5 may crash the process when the disk is full.
        write_file(target, bytes(tree.to_netcdf(engine="h5netcdf")))


def load_tree(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a tree that `save_tree`, ArviZ or another netCDF or Zarr writer has written, into memory."""
    source = Path(path)
    if not source.exists():
        raise RunError(f"There is no file or folder {str(source)!r}.")
    zarr = _is_zarr(source)
    if zarr:
        _refuse_pickles(source)
    else:
        _refuse_other_formats(source)
    try:
        with xr.open_datatree(source, engine="zarr" if zarr else "h5netcdf") as tree:
            return tree.load()
    except Exception as error:  # HDF5, Zarr and xarray have many for a damaged file
        raise RunError(f"{source} cannot be read; it is damaged or holds something else: {error}") from error


def _is_zarr(path: Path) -> bool:
    if path.suffix not in (".nc", ".zarr"):
        raise RunError(
            f"{path} has the suffix {path.suffix!r}; results are kept as '.nc' (netCDF) or '.zarr'."
        )
    if path.suffix == ".zarr" and importlib.util.find_spec("zarr") is None:
        raise RunError(f"{path} needs the package 'zarr', which is not installed. Install it, or use '.nc'.")
    return path.suffix == ".zarr"


def _save_zarr(tree: xr.DataTree, target: Path) -> None:
    # A folder cannot take another's place in one step, as a file can.
    if target.exists():
        raise RunError(f"{target} exists, and Zarr folders are not replaced. Remove it, or use another name.")
    with replacing(target) as temporary:
        try:
            tree.to_zarr(temporary, mode="w-")
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def _refuse_other_formats(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_HDF5))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    if start != _HDF5:
        kind = "netCDF-3" if start.startswith(b"CDF") else "something else"
        raise RunError(f"{path} is {kind}, not a netCDF-4 file; shardmc reads only netCDF-4.")


def _refuse_pickles(folder: Path) -> None:
    """Refuse a Zarr folder that contains links, or uses the codec that unpickles."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise RunError(f"{path} is a link, and results are not read through links.")
        if path.name not in _ZARR_METADATA:
            continue
        try:
            pickled = _names_pickle(json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path} cannot be read as Zarr metadata: {error}.") from error
        if pickled:
            raise RunError(
                f"{path} holds pickled objects, which shardmc never reads: they could run any code."
            )


def _names_pickle(metadata: Any) -> bool:
    if isinstance(metadata, dict):
        names = (metadata.get("id"), metadata.get("name"))
        if any(isinstance(name, str) and name.lower().rpartition(".")[2] == "pickle" for name in names):
            return True
        metadata = list(metadata.values())
    return isinstance(metadata, list) and any(map(_names_pickle, metadata))
