"""The files of a run: the manifest that says what it computes, and .npz files with a header and a checksum."""

from __future__ import annotations

import hashlib
import io
import json
import re
import uuid
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from shardmc.errors import RunError
from shardmc.guards.files import is_temporary, read_file, same_rows, without_stamps
from shardmc.programs.process import installed_version
from shardmc.store.files import inside

SCHEMA = 1
"""Version of the layout of a run folder; a folder of another version is refused."""

_MOST_SHARDS = 10_000_000
_PACKAGES = ("shardmc", "jax", "jaxlib", "numpy", "scipy", "blackjax", "numpyro")


def package_versions() -> dict[str, str]:
    """Versions of the packages that draws depend on."""
    return {name: version for name in _PACKAGES if (version := installed_version(name)) is not None}


@dataclass(frozen=True)
class Manifest:
    """What a run computes.

    `plan` holds plain values (numbers, text, lists, tables of them), among them the number of `shards`. Plan, data,
    model and schema must be equal for a run to be resumed; `versions` may differ, and a note says so.

    >>> first = Manifest({"shards": 100, "seed": 0}, data="3f2a", model="b81c")
    >>> Manifest.from_json(first.to_json(), "manifest.json") == first
    True
    >>> first.differences(Manifest({"shards": 100, "seed": 1}, data="3f2a", model="b81c"))
    ['plan seed is 0 there and 1 here']
    """

    plan: Mapping[str, object]
    data: str
    model: str
    versions: Mapping[str, str] = field(default_factory=package_versions)
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The run's own name. Every file of the run repeats it, so a file of another run is recognised."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for name, (valid, wanted) in _CHECKS.items():
            value = getattr(self, name)
            if not valid(value):
                raise RunError(f"A manifest's {name!r} must be {wanted}, not {_shown(value)}.")

    @property
    def num_shards(self) -> int:
        shards = self.plan["shards"]
        assert isinstance(shards, int)
        return shards

    def to_json(self) -> str:
        return json.dumps(self._plain(), indent=2, sort_keys=True, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, name: str) -> Manifest:
        """Read a manifest. `name` is the name of its file, for error messages."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RunError(
                f"{name} is not JSON, so it does not say what the run computes. {_ADVICE}"
            ) from error
        if not isinstance(values, dict):
            raise RunError(
                f"{name} is not a manifest: it holds a {type(values).__name__}, not a table. {_ADVICE}"
            )
        # The version is checked first: another version may have other keys.
        if "schema" in values and values["schema"] != SCHEMA:
            raise RunError(
                f"{name} has schema version {_shown(values['schema'])}; this version of shardmc reads {SCHEMA}. "
                "Use the version that made it, or another folder."
            )
        names = [each.name for each in fields(Manifest)]
        missing = [each for each in names if each not in values]
        if missing:
            raise RunError(f"{name} lacks {', '.join(map(repr, missing))}. {_ADVICE}")
        try:
            return Manifest(**{each: values[each] for each in names})
        except RunError as error:
            raise RunError(f"{name} is not valid: {error} {_ADVICE}") from error

    def differences(self, call: Manifest) -> list[str]:
        """What differs between this manifest, read from a folder, and that of the present call."""
        there, here = self._plain(), call._plain()
        found = other_data(self.data, call.data)
        if self.model != call.model:
            found.append("its model or priors are different" + _other_jax(self.versions, call.versions))
        if there["schema"] != here["schema"]:
            found.append(f"schema is {there['schema']} there and {here['schema']} here")
        return found + plan_differences(there["plan"], here["plan"])

    def _plain(self) -> dict[str, Any]:
        # Through JSON and back, so that a tuple of the call equals the list that was read.
        return json.loads(json.dumps({each.name: getattr(self, each.name) for each in fields(self)}))


_ADVICE = "Restore it from a copy, or use another folder."
_ABSENT = "absent"
_OTHER_CONTENT = "its row weights, its strata or the functions of its sampler are different"
_PARTS_OF_CONTENT = {"shards", "shuffle", "stratified", "weighted", "sampler", "combiner"}
"""The fingerprint of weights, strata and functions depends on these, too."""


def other_data(there: str, here: str) -> list[str]:
    """What differs between the fingerprint of the data in a folder and that of the present call.

    >>> other_data("3f2a", "3f2b")
    ['its rows or columns are different']
    """
    if same_rows(there, here):
        return []
    if without_stamps(there) != without_stamps(here):
        return ["its rows or columns are different"]
    return [
        "its files have another modification time or inode, so they may have been changed (if they were only copied, "
        "say so with as_source(..., trust_files=True) or --trust-files)"
    ]


def _other_jax(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    names = [name for name in ("jax", "numpyro", "shardmc") if there.get(name) != here.get(name)]
    if not names:
        return ""
    listed = ", ".join(
        f"{name} {there.get(name, _ABSENT)} there, {here.get(name, _ABSENT)} here" for name in names
    )
    return f", or computed differently by other versions ({listed})"


def plan_differences(there: Mapping[str, object], here: Mapping[str, object]) -> list[str]:
    """What differs between the plan in a folder and that of the present call.

    >>> plan_differences({"seed": 0, "draws": 100}, {"seed": 1, "draws": 100})
    ['plan seed is 0 there and 1 here']
    >>> plan_differences({"shards": 10, "content": "3f2a"}, {"shards": 20, "content": "81bc"})
    ['plan shards is 10 there and 20 here']
    """
    pairs = [(key, there.get(key, _ABSENT), here.get(key, _ABSENT)) for key in sorted({*there, *here})]
    other = [(key, a, b) for key, a, b in pairs if not _same(a, b)]
    explained = any(key in _PARTS_OF_CONTENT for key, _, _ in other)
    return [
        _OTHER_CONTENT if key == "content" else f"plan {key} is {_shown(a)} there and {_shown(b)} here"
        for key, a, b in other
        if key != "content" or not explained
    ]


def _same(a: object, b: object) -> bool:
    # In Python True == 1; in a plan they differ.
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _shown(value: object) -> str:
    text = value if value is _ABSENT else ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_plan(value: object) -> bool:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    shards = value.get("shards")
    if not isinstance(shards, int) or isinstance(shards, bool) or not 1 <= shards <= _MOST_SHARDS:
        return False
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _is_versions(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


_CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {
    "schema": (lambda value: type(value) is int and value == SCHEMA, f"the number {SCHEMA}"),
    "plan": (_is_plan, f"a table of plain values with 'shards' from 1 to {_MOST_SHARDS}"),
    "data": (lambda value: isinstance(value, str) and value != "", "a fingerprint (text)"),
    "model": (lambda value: isinstance(value, str) and value != "", "a fingerprint (text)"),
    "versions": (_is_versions, "a table of package names and versions"),
    "created": (_is_time, "a time with its zone (ISO 8601)"),
    "run": (
        lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None,
        "32 hexadecimal digits",
    ),
}


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


def encode(header: Mapping[str, object], arrays: Arrays) -> bytes:
    """The bytes of a record.

    They are an ordinary .npz file, which `numpy.load` opens, whose ZIP comment is the SHA-256 of all bytes before
    it. So every flipped bit and every lost byte is found before anything in the file is used.

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


def decode(content: bytes) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Header and arrays of a record, or a DamagedError. Nothing is ever unpickled."""
    if not content.startswith(b"PK\x03\x04"):
        raise DamagedError("not a file of shardmc" if content else "empty")
    if not content[-_TRAILER:].startswith(_LABEL):
        raise DamagedError("cut short, or not a file of shardmc")
    if hashlib.sha256(content[:-64]).hexdigest().encode() != content[-64:]:
        raise DamagedError("its checksum differs")
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
            raise DamagedError(f"its entry {name!r} is not an array of a run")
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


def read_record(
    path: Path, identity: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Header and arrays of a file; a DamagedError unless its header has the entries of `identity`."""
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
