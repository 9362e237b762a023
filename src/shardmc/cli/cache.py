"""Compiled programs kept from one command to the next."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

_WORTH_KEEPING = 0.05  # seconds of compilation


def keep_compiled_programs() -> None:
    """Make JAX keep compiled programs in the user's cache folder, unless the user has chosen another one.

    It sets environment variables, because JAX is not loaded yet.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(_WORTH_KEEPING))


def cache_folder() -> Path:
    """The folder of compiled programs: one per kind of processor, because machines may share a home folder."""
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "shardmc" / f"{platform.machine()}-{_processor()}"


def _processor() -> str:
    """A short name of the instruction set that compiled code may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        said = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        said = platform.processor()
    return hashlib.sha256(said.encode()).hexdigest()[:12]
