"""A checksum at the end of a netCDF file, where programs that read the file do not look."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from shardmc.errors import RunError

_LABEL = b"\nshardmc-sha256:"
_LENGTH = len(_LABEL) + 64
_PIECE = 1 << 22


def with_checksum(content: bytes) -> bytes:
    """The content of a file, followed by its checksum.

    >>> len(with_checksum(b"")), with_checksum(b"")[:24]
    (80, b'\\nshardmc-sha256:e3b0c442')
    """
    return content + _LABEL + hashlib.sha256(content).hexdigest().encode()


def verify_checksum(path: Path, *, required: bool) -> None:
    """Refuse a file that differs from what was written; and, if a checksum is required, one that has none."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            rest = max(os.fstat(file.fileno()).st_size - _LENGTH, 0)
            while rest and (piece := file.read(min(_PIECE, rest))):
                digest.update(piece)
                rest -= len(piece)
            trailer = file.read(_LENGTH)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not trailer.startswith(_LABEL):
        if required:
            raise RunError(
                f"{path} has no checksum at its end: it was cut short, damaged, or written by another program. Take a "
                "copy, or repeat the fit. If you trust it: "
                f"shardmc.Posterior.from_tree(xarray.open_datatree({path.name!r}))."
            )
    elif trailer[len(_LABEL) :] != digest.hexdigest().encode():
        raise RunError(
            f"{path} is damaged: its content does not fit its checksum. Take a copy, or repeat the call that wrote it."
        )
