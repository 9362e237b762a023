"""One .npz file with named arrays, a header that says what they are, and a checksum over all of its bytes."""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardmc.errors import RunError

Arrays = Mapping[str, np.ndarray]

_HEADER = "_header"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
_KINDS = "biufcSU"  # bool, numbers, text: never objects, which would be pickled
_LABEL = b"sha256:"
_TRAILER = len(_LABEL) + 64


class DamagedError(Exception):
    """The bytes are not a record as it was written; the message says in a few words why."""


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
            raise RunError(f"{name!r} is no name for a stored array: use letters, digits, '_' and '.'.")
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
    # From here on only a file that was made to deceive can fail, and NumPy, zipfile and json
    # have a dozen exceptions for that: all of them mean the same here.
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
            raise DamagedError(f"an entry {name!r} that is no array of a run")
    return header, entries
