"""Memory of a fit whose rows stay where they are: what it needs is said first, and what it frees is given back."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardmc.programs.process import return_freed_memory

MEMORY = 1 << 30
"""By default, shardmc holds its own copy of the rows up to this many bytes."""

PROCESS = 1_000_000_000
"""Bytes that a process needs besides the rows: Python, JAX, compiled programs and what they compute with."""


@dataclass(frozen=True)
class Limits:
    """How much memory shardmc's own copy of the rows may take, and where on disk larger ones go."""

    memory: int | None = None
    """Bytes. By default 1 GiB for files, a quarter of the free memory for arrays, and no limit for other tables."""
    scratch: str | os.PathLike[str] | None = None


_log = logging.getLogger("shardmc")


def say_need(memory: int, row_bytes: int, shards: int) -> None:
    """Warn before rows are read if a limit for them in bytes cannot be kept, or if the process needs much more.

    Parameters
    ----------
    memory
        The limit; 0 stands for as little as possible, and nothing is said.
    row_bytes, shards
        What all rows take, and the number of shards.
    """
    at_a_time = shards_at_a_time() * row_bytes / shards
    if not memory:
        return
    if at_a_time > memory:
        _log.warning(
            "shardmc holds %d shards in memory at a time, %.2g GB of rows, more than memory allows (%.2g GB). "
            "Use at least %d shards.",
            min(shards, shards_at_a_time()),
            min(at_a_time, row_bytes) / 1e9,
            memory / 1e9,
            -(-shards_at_a_time() * row_bytes // memory),
        )
    if memory < PROCESS:
        _log.warning(
            "shardmc holds up to %.2g GB of rows in memory, as memory says. The process needs about %.2g GB besides.",
            max(memory, at_a_time) / 1e9,
            PROCESS / 1e9,
        )


def shards_at_a_time() -> int:
    """The fewest shards that are in memory at once: one for each core, the next one, and one that is being read."""
    return (os.cpu_count() or 1) + 2


def give_back() -> None:
    """Give memory that is free, but still with the process, back to the system. Takes milliseconds."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    return_freed_memory()


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take; 0 where the system does not say (other than Linux).

    Memory in which the system keeps files that it can read again counts as free.

    Parameters
    ----------
    root
        The folder in which Linux has its files about the system.

    Examples
    --------
    >>> free_memory() >= 0
    True
    """
    free = 1024 * _numbers(root / "proc/meminfo").get("MemAvailable", 0)
    for folder, most, used, files in _limits(root):
        limit = _numbers(folder / most).get("")
        if limit is not None:
            taken = _numbers(folder / used).get("", 0) - _numbers(folder / "memory.stat").get(files, 0)
            free = min(free, max(0, limit - taken))
    return free


def _limits(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """The folders of the groups that this process is in, and where they have limit, use, and files that are kept."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, group = line.split(":", 2)
        inside = Path(group.lstrip("/"))
        for part in (inside, *inside.parents):
            if not kinds:
                yield root / "sys/fs/cgroup" / part, "memory.max", "memory.current", "inactive_file"
            elif "memory" in kinds.split(","):
                folder = root / "sys/fs/cgroup/memory" / part
                yield folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"


def _numbers(path: Path) -> dict[str, int]:
    """The number in each line of a file, by the name before it, which may be empty."""
    return {name: int(number) for name, number in re.findall(r"(?m)^([A-Za-z_()]*)[:\s]*(\d+)", _text(path))}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
