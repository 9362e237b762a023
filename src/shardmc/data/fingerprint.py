"""Hashes of rows and files, by which a run tells that its data are no longer the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

_WHOLE = 1 << 22  # a file up to this size is hashed whole, of a larger one some stretches
_STRETCHES, _STRETCH = 32, 1 << 16


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


def hash_file(digest: Any, file: Any, size: int) -> None:
    """Add a file's size, its end (where Parquet has its footer) and stretches from all over it to a hash."""
    digest.update(f"{size} ".encode())
    if size <= _WHOLE:
        digest.update(file.read_at(size, 0))
        return
    for start in np.linspace(0, size - _STRETCH, _STRETCHES).astype(int):
        digest.update(file.read_at(_STRETCH, int(start)))
