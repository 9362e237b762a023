"""How much memory is free: in the system, and in the container or batch job that the process runs in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


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
