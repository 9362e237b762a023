"""A temporary folder for rows that is deleted however its process ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path

_GUARD = 'read -r _; rm -rf -- "$1"'


def temporary_folder(owner: object, prefix: str) -> Path:
    """A new temporary folder that is deleted with `owner`, or when the process ends, also by a signal.

    A process that is killed cannot delete anything. So a small guard process waits at a pipe, which the system closes
    when this process ends, and then deletes the folder. The guard has its own session: Ctrl-C does not reach it.
    """
    folder = tempfile.mkdtemp(prefix=prefix)
    guard = None
    if os.name == "posix":
        command = ["/bin/sh", "-c", _GUARD, "sh", folder]
        guard = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    weakref.finalize(owner, _delete, folder, guard, os.getpid())
    return Path(folder)


def _delete(folder: str, guard: subprocess.Popen[bytes] | None, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has a copy of the owner, but the folder is its parent's
    shutil.rmtree(folder, ignore_errors=True)
    if guard is not None and guard.stdin is not None:
        guard.stdin.close()
        guard.wait()
