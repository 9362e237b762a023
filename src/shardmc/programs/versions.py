"""Versions of installed packages, read once."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

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
