"""Return memory that the process has freed to the operating system."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def return_freed_memory() -> None:
    """Ask the C library for it, where it can (glibc).

    Compiling allocates and frees many small pieces from several threads. The C library keeps them for itself, and a
    process that compiles new models again and again would seem to grow for a long time.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
