"""The files of a run folder and what each one is: a record of this run, damaged, or not there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardmc.errors import RunError
from shardmc.store.files import inside, is_temporary, read_file
from shardmc.store.manifest import Manifest
from shardmc.store.record import DamagedError, decode

MANIFEST = "manifest.json"
SHARDS = "shards"
ASIDE = ".damaged"
"""What is added to the name of a file that cannot be used."""


@dataclass(frozen=True)
class ShardFile:
    """A shard's arrays; or why it has none, for a shard that failed."""

    arrays: dict[str, np.ndarray]
    failure: str | None = None


@dataclass(frozen=True)
class Survey:
    """Which of a run's shards are done, failed (and why) or damaged (and how); all others are missing."""

    done: set[int]
    failed: dict[int, str]
    damaged: dict[int, str]
    strangers: list[str]
    """Names in the folder of shards that are no shard's of this run."""


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a run folder; None where there is none."""
    path = inside(folder, MANIFEST)
    try:
        return Manifest.from_json(read_file(path), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path} could not be read: {error.strerror or error}.") from error


def shards_folder(folder: Path) -> Path:
    """The folder of the shards' files, which is never a link to elsewhere."""
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


def survey(folder: Path, manifest: Manifest) -> Survey:
    """Read all shards' files, one at a time, and say what they are."""
    result = Survey(set(), {}, {}, [])
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
            result.strangers.append(name)
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
