"""Fingerprints of files that are too large to be hashed completely: a hash of some parts, and a stamp."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_STAMP = re.compile(r" stamped [0-9a-f]{16}")


def stamped(fingerprint: str, stamps: Iterable[str]) -> str:
    """A fingerprint with a stamp: it changes with the files' modification times and inodes.

    >>> stamped("3f2a", ["1700000000 12"]) == stamped("3f2a", ["1700000001 12"])
    False
    """
    return f"{fingerprint} stamped {hashlib.sha256(repr(list(stamps)).encode()).hexdigest()[:16]}"


def without_stamps(fingerprint: str) -> str:
    """The same fingerprint for files whose times do not count.

    >>> without_stamps(stamped("3f2a", ["1700000000 12"]) + " in groups g")
    '3f2a in groups g'
    """
    return _STAMP.sub("", fingerprint)


def same_rows(there: str, here: str) -> bool:
    """Whether a fingerprint that was stored fits that of the present files. Files that are trusted have no stamp.

    >>> same_rows(stamped("3f2a", ["1700000000 12"]), "3f2a")
    True
    >>> same_rows("3f2a", stamped("3f2a", ["1700000000 12"]))
    False
    """
    return here in (there, without_stamps(there))
