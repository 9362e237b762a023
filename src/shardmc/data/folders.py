"""The files of a local folder, each of them once, whatever links lead to it."""

from __future__ import annotations

import os

from shardmc.errors import DataError


def local_files(folder: str) -> list[str]:
    """The paths of the files in a folder and below, sorted.

    A link leads to the file or folder that it points to. A file that several paths lead to counts once, under its own
    name if it is in the folder. (Hard links are files of their own.) A link to a folder that contains it is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     open(os.path.join(folder, "rows.csv"), "w").close()
    ...     os.symlink(os.path.join(folder, "rows.csv"), os.path.join(folder, "again.csv"))
    ...     [os.path.basename(path) for path in local_files(folder)]
    ['rows.csv']
    """
    found: dict[str, str] = {}  # real path -> path
    folders, links, file_links = [folder], [], []
    seen: set[str] = set()
    while folders or links:
        # Links come last, so that files that are really there keep their names.
        parent = folders.pop() if folders else links.pop(0)
        real_parent = os.path.realpath(parent)
        if real_parent in seen:
            continue
        seen.add(real_parent)
        for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.is_symlink():
                    _refuse_loop(entry.path, real_parent)
                (links if entry.is_symlink() else folders).append(entry.path)
            elif entry.is_symlink():
                file_links.append(entry.path)
            elif entry.is_file():
                found.setdefault(os.path.join(real_parent, entry.name), entry.path)
    for path in sorted(file_links):
        found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _refuse_loop(link: str, real_parent: str) -> None:
    target = os.path.realpath(link)
    if os.path.commonpath([target, real_parent]) == target:
        raise DataError(f"{link!r} is a link to a folder that contains it. Remove it.")
