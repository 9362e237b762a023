"""The files of a run: .npz files with named arrays, a header that says what they are, and a checksum of all bytes."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardmc.errors import RunError
from shardmc.store.files import inside, is_temporary, read_file
from shardmc.store.manifest import Manifest

MANIFEST = "manifest.json"
SHARDS = "shards"
ASIDE = ".damaged"
"""What is added to the name of a file that cannot be used."""

Arrays = Mapping[str, np.ndarray]

_HEADER = "_header"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
_KINDS = "biufcSU"  # bool, numbers, text: never objects, which would be pickled
_LABEL = b"sha256:"
_TRAILER = len(_LABEL) + 64


class DamagedError(Exception):
    """The bytes are not a record as it was written. The message says why."""


def encode(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The bytes of a record.

    They are an ordinary .npz file, which `numpy.load` opens, whose ZIP comment is the SHA-256 of all bytes before
    it. Every flipped bit and every lost byte shows therefore before anything in the file is looked at.

    >>> header, arrays = decode(encode({"shard": 17}, {"draws": np.zeros((2, 3))}))
    >>> header, arrays["draws"].shape
    ({'shard': 17}, (2, 3))
    """
    entries = {_HEADER: np.frombuffer(json.dumps(header, allow_nan=False).encode(), dtype=np.uint8)}
    for name, values in arrays.items():
        array = np.asarray(values)
        if not _NAME.fullmatch(name):
            raise RunError(f"{name!r} is not a name for a stored array: use letters, digits, '_' and '.'.")
        if array.dtype.kind not in _KINDS:
            raise RunError(
                f"Array {name!r} has dtype {array.dtype}; only numbers, booleans and text are stored."
            )
        entries[name] = array
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in entries.items():
            # ZipInfo's own date (1980) in place of the clock's: equal arrays make equal files.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
        archive.comment = _LABEL + b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def decode(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a record, or a DamagedError. Nothing is ever unpickled."""
    if not content.startswith(b"PK\x03\x04"):
        raise DamagedError("not a file of shardmc" if content else "empty")
    if not content[-_TRAILER:].startswith(_LABEL):
        raise DamagedError("cut short, or not a file of shardmc")
    if hashlib.sha256(content[:-64]).hexdigest().encode() != content[-64:]:
        raise DamagedError("checksum")
    # From here on only a manipulated file can fail. NumPy, zipfile and json have a dozen exceptions
    # for that, which all mean the same here.
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            entries = {name: archive[name] for name in archive.files}
        header = json.loads(entries.pop(_HEADER).tobytes())
    except Exception as error:
        raise DamagedError("not readable as arrays without objects") from error
    if not isinstance(header, dict):
        raise DamagedError("its header is not a table of values")
    for name, array in entries.items():
        if not _NAME.fullmatch(name) or not isinstance(array, np.ndarray) or array.dtype.kind not in _KINDS:
            raise DamagedError(f"an entry {name!r} that is not an array of a run")
    return header, entries


@dataclass(frozen=True)
class ShardFile:
    """The arrays of a shard, or the reason why it failed."""

    arrays: dict[str, np.ndarray]
    failure: str | None = None


@dataclass(frozen=True)
class ShardFiles:
    """Which of a run's shards are done, failed (and why) or damaged (and how); all others are missing."""

    done: set[int]
    failed: dict[int, str]
    damaged: dict[int, str]
    others: list[str]
    """Names in the folder of shards that do not belong to this run."""


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a run folder, or None."""
    path = inside(folder, MANIFEST)
    try:
        return Manifest.from_json(read_file(path), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} could not be read: {error.strerror or error}.") from error


def shards_folder(folder: Path) -> Path:
    """The folder of the shards' files, which is never a link."""
    return inside(folder, SHARDS)


def shard_path(folder: Path, shard: int) -> Path:
    """The file of a shard.

    >>> shard_path(Path("run"), 17).as_posix()
    'run/shards/00017.npz'
    """
    return folder / SHARDS / f"{int(shard):05d}.npz"


def read_record(path: Path, identity: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of a file whose header says that it is what `identity` says; or a DamagedError."""
    try:
        header, arrays = decode(read_file(path))
    except OSError as error:
        raise DamagedError(error.strerror or "not readable") from error
    if header.get("run") != identity["run"]:
        raise DamagedError("it belongs to another run")
    for key, value in identity.items():
        if header.get(key) != value:
            raise DamagedError(f"it is of {key} {header.get(key)!r}, not {value!r}")
    return header, arrays


def read_shard(folder: Path, manifest: Manifest, shard: int) -> ShardFile:
    """A shard's file, checked against the manifest; or a DamagedError."""
    header, arrays = read_record(
        shard_path(folder, shard), {"run": manifest.run, "kind": "shard", "shard": shard}
    )
    if (failure := header.get("failure")) is not None:
        # Text that may end on a terminal: without control characters.
        return ShardFile({}, "".join(each if each.isprintable() else " " for each in str(failure)))
    return ShardFile(arrays)


def scan_shards(folder: Path, manifest: Manifest) -> ShardFiles:
    """Read the files of all shards, one at a time, and say what they are."""
    result = ShardFiles(set(), {}, {}, [])
    path = shards_folder(folder)
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        return result
    except OSError as error:
        raise RunError(f"{path} could not be read: {error.strerror or error}.") from error
    for name in names:
        if is_temporary(name) or name.endswith(ASIDE):
            continue
        shard = _shard_of(name)
        if shard is None or shard >= manifest.num_shards:
            result.others.append(name)
            continue
        try:
            file = read_shard(folder, manifest, shard)
        except DamagedError as error:
            result.damaged[shard] = str(error)
            continue
        if file.failure is None:
            result.done.add(shard)
        else:
            result.failed[shard] = file.failure
    return result


def _shard_of(name: str) -> int | None:
    number = name.removesuffix(".npz")
    # Back and forth, since "0017", "1_7" and other scripts' digits are also numbers to int().
    is_number = number.isdecimal() and len(number) < 12
    return int(number) if is_number and shard_path(Path(), int(number)).name == name else None
