"""Memory of a fit whose rows stay where they are: what it needs is said first, and what it frees is given back."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass

from shardmc.programs.heap import return_freed_memory

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
