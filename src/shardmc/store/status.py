"""How far a run is, read from its folder without changing it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardmc.errors import RunError
from shardmc.store.lock import Owner, read_owner
from shardmc.store.manifest import Manifest
from shardmc.store.shards import MANIFEST, read_manifest, survey


@dataclass(frozen=True)
class RunStatus:
    """Which shards are done, failed, missing or damaged, and which process works on the run."""

    folder: Path
    manifest: Manifest
    done: tuple[int, ...]
    failed: Mapping[int, str]
    """Shard -> why it failed."""
    damaged: Mapping[int, str]
    """Shard -> what is wrong with its file; it will be computed again."""
    missing: tuple[int, ...]
    owner: Owner | None
    """The process that writes to the folder, or that ended without releasing its lock."""
    running: bool | None
    """Whether that process still runs; None if this machine cannot tell."""

    @property
    def num_shards(self) -> int:
        return self.manifest.num_shards


def status(path: str | os.PathLike[str]) -> RunStatus:
    """How far the run in a folder is. Nothing is written, and no lock is taken.

    >>> status("no-such-run")
    Traceback (most recent call last):
    shardmc.errors.RunError: no-such-run is not a run folder: it has no manifest.json.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    if manifest is None:
        raise RunError(f"{folder} is not a run folder: it has no {MANIFEST}.")
    found = survey(folder, manifest)
    known = {*found.done, *found.failed, *found.damaged}
    owner = read_owner(folder)
    return RunStatus(
        folder=folder,
        manifest=manifest,
        done=tuple(sorted(found.done)),
        failed=found.failed,
        damaged=found.damaged,
        missing=tuple(shard for shard in range(manifest.num_shards) if shard not in known),
        owner=owner,
        running=False if owner is None else owner.is_alive(),
    )
