"""Hashes of rows: of arrays, and of files, complete up to some hundred MB, in part and with a stamp above."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardmc.guards.stamps import stamped

if TYPE_CHECKING:
    from shardmc.data.files import File

_WHOLE = 1 << 29
"""Files up to this size in total are hashed completely, which takes less than a second; larger ones in part."""
_STRETCHES, _STRETCH, _READ = 32, 1 << 16, 1 << 24


def fingerprint_of(files: Sequence[File], described: str, *, trusted: bool) -> str:
    """A hash of files. If they are too large to be hashed completely, they get a stamp, unless they are trusted."""
    digest = hashlib.sha256(described.encode())
    whole = sum(file.size for file in files) <= _WHOLE
    for file in files:
        digest.update(f"{file.name if len(files) > 1 else ''} {file.keys} {file.size} ".encode())
        with file.open() as opened:
            for start, count in _stretches(file.size, whole):
                digest.update(opened.read_at(count, start))
    if whole or trusted:
        return digest.hexdigest()
    return stamped(digest.hexdigest(), [file.stamp for file in files])


def _stretches(size: int, whole: bool) -> list[tuple[int, int]]:
    """(start, count) of what is hashed: everything, or stretches from all over the file, up to its end."""
    if whole or size <= _STRETCHES * _STRETCH:
        return [(start, _READ) for start in range(0, size, _READ)]
    return [(int(start), _STRETCH) for start in np.linspace(0, size - _STRETCH, _STRETCHES)]


def hash_arrays(heading: str, arrays: Iterable[np.ndarray]) -> str:
    """A hash of a heading and of every entry of these arrays.

    Examples
    --------
    >>> hash_arrays("x", [np.arange(3)]) == hash_arrays("x", [np.array([0, 2, 1])])
    False
    """
    digest = hashlib.sha256(heading.encode())
    for array in arrays:
        if array.dtype.kind in "OUT":
            digest.update("\x1f".join(map(str, array.ravel().tolist())).encode())
        else:
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
