"""Files of a run and files of results: never read through a link, never with pickled objects."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from shardmc.errors import RunError
from shardmc.guards.files import is_temporary, not_written, replacing, verify_checksum, write_netcdf
from shardmc.guards.untrusted import refuse_unsafe_netcdf

if TYPE_CHECKING:
    import xarray as xr

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_ZARR_METADATA = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}


def inside(folder: Path, name: object) -> Path:
    """The path of a file or folder named `name` directly in `folder`, or a RunError.

    Only plain names are allowed, so that a name in a file cannot lead outside the folder:

    >>> inside(Path("run"), "report.html").as_posix()
    'run/report.html'
    >>> inside(Path("run"), "../report.html")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    shardmc.errors.RunError: '../report.html' is not a valid name for a file in a run folder: ...
    """
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        raise RunError(
            f"{name!r} is not a valid name for a file in a run folder: use letters, digits, '_', '-' and '.', "
            "not starting with '.' or '-' and without a folder."
        )
    path = folder / name
    if path.is_symlink():
        raise RunError(f"{path} is a link, and files of a run are never links. Remove it and try again.")
    return path


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process had not finished writing. Only the holder of the run's lock may do this."""
    for entry in folder.iterdir():
        if is_temporary(entry.name):
            with contextlib.suppress(OSError):
                entry.unlink()


def make_folder(path: Path) -> None:
    """Make a folder if it does not exist."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from error


def save_tree(tree: xr.DataTree, path: str | os.PathLike[str]) -> None:
    """Write a tree as netCDF (.nc), which replaces an existing file once complete, or as a new Zarr folder (.zarr).

    >>> import tempfile
    >>> import xarray as xr
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
        write_netcdf(tree, target)


def load_tree(path: str | os.PathLike[str], *, checksum: bool = False) -> xr.DataTree:
    """Read a tree that `save_tree`, ArviZ or another netCDF or Zarr writer has written, into memory.

    The checksum that `save_tree` adds to a netCDF file is verified. `checksum=True` refuses files without one.
    """
    import xarray as xr

    source = Path(path)
    if not source.exists():
        raise RunError(f"There is no file or folder {str(source)!r}.")
    zarr = _is_zarr(source)
    if zarr:
        _refuse_pickles(source)
    else:
        refuse_unsafe_netcdf(source)
        verify_checksum(source, required=checksum)
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


def _names_pickle(metadata: object) -> bool:
    if isinstance(metadata, dict):
        names = (metadata.get("id"), metadata.get("name"))
        if any(isinstance(name, str) and name.lower().rpartition(".")[2] == "pickle" for name in names):
            return True
        metadata = list(metadata.values())
    return isinstance(metadata, list) and any(map(_names_pickle, metadata))
