"""Files of a run and files of results: complete or absent, never read through a link, never with pickled objects."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmc.errors import RunError
from shardmc.guards.checksum import verify_checksum, with_checksum
from shardmc.guards.untrusted import refuse_unsafe_netcdf

if TYPE_CHECKING:
    import xarray as xr

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_ZARR_METADATA = {"zarr.json", ".zarray", ".zgroup", ".zmetadata"}
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


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


def read_file(path: Path) -> bytes:
    """The content of a regular file; an OSError for a link, a folder, a pipe or a device."""
    # Without O_NONBLOCK, opening a pipe that has no writer would wait forever.
    flags = os.O_RDONLY | _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link", str(path))
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    with open(descriptor, "rb") as file:
        return file.read()


def write_file(path: Path, content: bytes) -> None:
    """Write a file. Whatever happens, the result is either the complete old file or the complete new one."""
    with replacing(path) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        with open(os.open(temporary, flags, 0o666), "wb", buffering=0) as file:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` for the block to write to; then on the disk and renamed to `path`.

    Whatever goes wrong, the temporary file is removed and `path` is as it was. An OSError becomes a RunError.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        # The content must be on the disk before the name is: a power cut may not leave a name without it.
        _sync(temporary)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def not_written(path: Path, error: OSError) -> RunError:
    """The error for a file that could not be written."""
    if error.errno in _FULL:
        return RunError(
            f"The disk is full: {path} could not be written. Earlier files are intact; "
            "free some space and repeat the call to continue."
        )
    rest = (
        "Name a file in a folder that exists" if error.errno == errno.ENOENT else "Earlier files are intact"
    )
    return RunError(f"{path} could not be written: {error.strerror or error}. {rest}.")


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process had not finished writing. Only the holder of the run's lock may do this."""
    for entry in folder.iterdir():
        if is_temporary(entry.name):
            with contextlib.suppress(OSError):
                entry.unlink()


def is_temporary(name: str) -> bool:
    """Whether this is the name of a file that was never finished."""
    return _TEMPORARY.fullmatch(name) is not None


def make_folder(path: Path) -> None:
    """Make a folder if it does not exist."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise not_written(path, error) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":
        return  # Windows opens no folders, and needs no such call
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in (
            errno.EINVAL,
            errno.ENOTSUP,
            errno.EBADF,
        ):  # some network file systems have none
            raise


def save_tree(tree: xr.DataTree, path: str | os.PathLike[str]) -> None:
    """Write a tree as netCDF (.nc) or Zarr (.zarr); what has that name is replaced once the new one is complete.

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
        # In memory first: HDF5 may crash the process when the disk is full.
        with _without_cluster():
            content = bytes(tree.to_netcdf(engine="h5netcdf"))
        write_file(target, with_checksum(content))


@contextlib.contextmanager
def _without_cluster() -> Iterator[None]:
    """Keep xarray from asking the default Dask client, if there is one, for a lock on a file in memory: it has none."""
    if "dask" not in sys.modules:
        yield
        return
    import dask.config

    with dask.config.set(scheduler="threads"):
        yield


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


def _names_pickle(metadata: Any) -> bool:
    if isinstance(metadata, dict):
        names = (metadata.get("id"), metadata.get("name"))
        if any(isinstance(name, str) and name.lower().rpartition(".")[2] == "pickle" for name in names):
            return True
        metadata = list(metadata.values())
    return isinstance(metadata, list) and any(map(_names_pickle, metadata))
