"""What programs need of this process: one thread that traces, memory that is given back, and versions of packages.

One thread traces at a time, because a model that holds arrays cannot be traced in both precisions at once. While a
trace needs a NumPy array of 64 bits, JAX keeps the type that it converted the array to. Another thread that traces in
the other precision would get that type. Little time is lost: tracing is Python code, and one thread at a time runs that
anyway. Compiling is not part of it.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

TRACING = threading.RLock()
"""Held while a model is traced."""


def return_freed_memory() -> None:
    """Ask the C library to return freed memory to the system, where it can (glibc).

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


_LINE = re.compile(r"^Version: *(\S+)", re.MULTILINE)


@cache
def installed_version(package: str) -> str | None:
    """The version of a package; None if it is not installed.

    `importlib.metadata.version` reads the whole description of a package, which takes milliseconds.

    >>> import jax
    >>> installed_version("jax") == jax.__version__, installed_version("no such package")
    (True, None)
    """
    try:
        found = distribution(package)
    except PackageNotFoundError:
        return None
    line = _LINE.search(found.read_text("METADATA") or "")
    return line[1] if line else found.version
