"""Compiled programs kept from one command to the next."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

_WORTH_KEEPING = 0.05  # seconds of compilation


def keep_compiled_programs() -> None:
    """Have JAX keep what it compiles in the user's cache folder; said by variables, as JAX is not loaded yet.

    A folder that the user has chosen for JAX stays chosen.
    """
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_folder()))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(_WORTH_KEEPING))


def cache_folder() -> Path:
    """Where compiled programs lie: one folder per kind of processor, as a home may be shared by several kinds."""
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "shardmc" / f"{platform.machine()}-{_processor()}"


def _processor() -> str:
    """A short name that differs where the instructions differ that compiled code may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        said = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        said = platform.processor()
    return hashlib.sha256(said.encode()).hexdigest()[:12]
