"""A run folder: open for writing, where it finds earlier results and keeps new ones safe, and seen from outside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, final

import numpy as np

from shardmc.errors import RunError
from shardmc.guards.files import is_temporary, write_file
from shardmc.store.files import inside, make_folder, remove_temporaries
from shardmc.store.lock import NAMES as LOCK_NAMES
from shardmc.store.lock import Lock, Owner, read_owner
from shardmc.store.records import (
    ASIDE,
    MANIFEST,
    SHARDS,
    Arrays,
    DamagedError,
    Manifest,
    encode,
    other_data,
    plan_differences,
    read_manifest,
    read_record,
    read_shard,
    scan_shards,
    shard_path,
    shards_folder,
)

_OWN = ("located.npz", "posterior.nc", "report.html")
"""What a run leaves in its folder, besides its shards and its manifest."""


@final
class Run:
    """A run folder that this process has locked. `Run.open` opens it; `with` or `close` releases it.

    Every file is complete or absent. It contains a checksum and the run's name, and reading it checks both. A file that
    fails the check is renamed and counts as missing.

    >>> import tempfile
    >>> manifest = Manifest({"shards": 3, "seed": 0}, data="3f2a", model="b81c")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Run.open(folder, manifest) as run:
    ...         run.write(0, {"draws": np.zeros((4, 2))})
    ...         run.write_failure(2, "no mode")
    ...     with Run.open(folder, manifest) as run:
    ...         print(run.finished(), run.read(0)["draws"].shape)
    ...         print(*run.notes)
    [0] (4, 2)
    1 of 3 shards were already done. Shard 2 failed before: no mode
    """

    notes: list[str]
    """What was found in the folder, in sentences for the user."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Lock the folder. Raises a RunError if it contains something else or is in use by another process.

        Nothing but the lock is written until `begin` is called.
        """
        self.folder = Path(path)
        self._made = _prepare(self.folder)
        self._lock: Lock | None = Lock(self.folder)
        self._manifest: Manifest | None = None
        self._done: set[int] = set()
        self._empty = False  # whether this process began the run and has stored no result
        self.notes = []
        if self._lock.previous is not None:
            self.notes.append(
                f"The lock of {self._lock.previous}, which ended without releasing it, was taken over."
            )

    @staticmethod
    def open(path: str | os.PathLike[str], manifest: Manifest) -> Run:
        """Lock a folder and begin a run there: `Run(path)` and `begin`."""
        run = Run(path)
        try:
            run.begin(manifest)
        except BaseException:
            run.close(failed=True)
            raise
        return run

    @property
    def manifest(self) -> Manifest:
        """The folder's manifest. For a resumed run, its name, time and versions are those of the first call."""
        if self._manifest is None:
            raise RunError(f"The run in folder {self.folder} has not begun.")
        return self._manifest

    def expect(self, plan: Mapping[str, object], data: str, rows: int) -> None:
        """Refuse the folder of a run of other rows, or with another plan, as far as the plan is known."""
        stored = read_manifest(self.folder)
        if stored is None:
            return
        differences = other_data(stored.data, data)
        if differences:
            # A run may use fewer rows of the same data: those without missing values.
            plan = {**plan, "rows": rows}
        there = {key: stored.plan.get(key) for key in plan}
        self._refuse(differences + plan_differences(there, plan))

    def begin(self, manifest: Manifest) -> None:
        """Start the run in a new folder, or resume the one that is there. Raises a RunError if it is another run."""
        stored = read_manifest(self.folder)
        self._manifest = stored or manifest
        if stored is None:
            self._empty = True
            make_folder(shards_folder(self.folder))
            write_file(inside(self.folder, MANIFEST), manifest.to_json().encode())
        else:
            self._refuse(stored.differences(manifest))
            self._resume(manifest)

    def discard(self) -> None:
        """Remove an earlier run from the folder: its own files only, and its manifest last."""
        stored = read_manifest(self.folder)
        if stored is None:
            return
        shards_folder(self.folder)  # refuses a link: files behind it are not the run's own
        paths = [shard_path(self.folder, shard) for shard in range(stored.num_shards)]
        paths += [inside(self.folder, name) for name in (*_OWN, MANIFEST)]
        try:
            for path in paths:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(
                f"The run in {self.folder} could not be removed: {error.strerror or error}."
            ) from error

    @property
    def num_shards(self) -> int:
        return self.manifest.num_shards

    def has(self, shard: int) -> bool:
        """Whether a shard is done; False for one that failed."""
        return self._number(shard) in self._done

    def finished(self) -> list[int]:
        """The shards that are done."""
        return sorted(self._done)

    def read(self, shard: int) -> dict[str, np.ndarray]:
        """The arrays of a shard that is done."""
        if not self.has(shard):
            raise RunError(f"Shard {shard} of run folder {self.folder} is not done, so it cannot be read.")
        try:
            return read_shard(self.folder, self.manifest, int(shard)).arrays
        except DamagedError as error:
            path = shard_path(self.folder, shard)
            raise RunError(
                f"{path} was damaged while the run was open ({error}). Repeat the call to compute it again."
            ) from error

    def write(self, shard: int, arrays: Arrays) -> None:
        """Store the arrays of a shard that is done."""
        shard = self._number(shard)
        self._write_record(shard_path(self.folder, shard), {"kind": "shard", "shard": shard}, arrays)
        self._done.add(shard)

    def write_failure(self, shard: int, reason: str) -> None:
        """Store that a shard failed, and why. Arrays that are written later replace this."""
        shard = self._number(shard)
        header = {"kind": "shard", "shard": shard, "failure": reason}
        self._write_record(shard_path(self.folder, shard), header, {})
        self._done.discard(shard)

    def write_part(self, name: str, arrays: Arrays) -> None:
        """Store what a stage found, so that a resumed run does not compute it again."""
        self._write_record(inside(self.folder, f"{name}.npz"), {"kind": name}, arrays)

    def read_part(self, name: str) -> dict[str, np.ndarray] | None:
        """What a stage stored; None if the file is missing, or damaged, which adds a note."""
        path = self.folder / f"{name}.npz"
        if not os.path.lexists(path):
            return None
        try:
            return read_record(path, {"run": self.manifest.run, "kind": name})[1]
        except DamagedError as error:
            self._set_aside(path)
            self.notes.append(f"The file {path.name} is damaged ({error}) and will be computed again.")
            return None

    def path(self, name: str) -> Path:
        """The path of a result with this plain name (posterior.nc, report.html) in the folder."""
        if name in (MANIFEST, SHARDS, *LOCK_NAMES) or name.endswith(".npz"):
            raise RunError(f"{name!r} is a file of the run itself; use another name.")
        return inside(self.folder, name)

    def close(self, *, failed: bool = False) -> None:
        """Release the lock; the folder can no longer be written to.

        If no run began here, or a run began and failed before its first result, what was made here is removed: the
        folder can be used for another run. If it contains other files, it stays a run folder.
        """
        if self._lock is None:
            return
        if failed and self._empty and self._lock.is_held and _found(self.folder) == {MANIFEST}:
            (self.folder / MANIFEST).unlink(missing_ok=True)
        begun = (self.folder / MANIFEST).exists()
        self._lock.release(remove=not begun)
        self._lock = None
        if not begun:
            for folder in (self.folder / SHARDS, *self._made):
                with contextlib.suppress(OSError):  # it is not there, or not empty
                    folder.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def _refuse(self, differences: list[str]) -> None:
        if differences:
            raise RunError(
                f"Run folder {self.folder} belongs to another run: {'; '.join(differences)}. "
                "Use another folder, repeat the call that made it, or replace that run with overwrite=True (--force)."
            )

    def _resume(self, call: Manifest) -> None:
        shards = shards_folder(self.folder)
        make_folder(shards)
        remove_temporaries(self.folder)
        remove_temporaries(shards)
        found = scan_shards(self.folder, self.manifest)
        self._done = found.done
        self.notes.append(f"{len(found.done)} of {self.num_shards} shards were already done.")
        for shard, reason in found.damaged.items():
            self._set_aside(shard_path(self.folder, shard))
            self.notes.append(f"Shard {shard}'s file is damaged ({reason}) and will be computed again.")
        for shard, reason in found.failed.items():
            self.notes.append(f"Shard {shard} failed before: {reason}")
        if found.others:
            self.notes.append(
                f"These files do not belong to the run and were left alone: {', '.join(map(ascii, found.others))}."
            )
        before, now = self.manifest.versions, call.versions
        for name in sorted(n for n in {*before, *now} if before.get(n) != now.get(n)):
            self.notes.append(
                f"The run was started with {name} {before.get(name, 'absent')}, and now uses "
                f"{now.get(name, 'absent')}: its draws may differ in the last digits."
            )

    def _write_record(self, path: Path, header: dict[str, object], arrays: Arrays) -> None:
        self._check_open()
        write_file(path, encode({"run": self.manifest.run, **header}, arrays))
        self._empty = False

    def _set_aside(self, path: Path) -> None:
        # The file is kept, since it may be the only copy of another run's, and renamed, since it may be a folder.
        aside = path.with_name(path.name + ASIDE)
        try:
            os.replace(path, aside)
        except OSError as error:
            raise RunError(
                f"{path} is damaged and cannot be renamed to {aside.name}: {error.strerror}. Remove it."
            ) from error

    def _number(self, shard: int) -> int:
        if not 0 <= (number := int(shard)) < self.num_shards or number != shard:
            raise RunError(
                f"There is no shard {shard!r}: the run has {self.num_shards} shards, counted from 0."
            )
        return number

    def _check_open(self) -> None:
        if self._lock is None:
            raise RunError(f"Run folder {self.folder} is closed: open it again to write to it.")


def _prepare(folder: Path) -> list[Path]:
    """Create the folder, or check that it is empty or a run folder; the folders that were created, innermost first."""
    try:
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        found = _found(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be a run folder: {error.strerror or error}.") from error
    if found and MANIFEST not in found:
        raise RunError(
            f"{folder} is not a run folder: it contains files but no {MANIFEST}. Use a new or an empty folder."
        )
    return made


def _found(folder: Path) -> set[str]:
    """What is in a folder, except what a run that was stopped before it wrote its manifest leaves."""
    names = {entry.name for entry in folder.iterdir()}
    begun = {*LOCK_NAMES, *(name for name in names if is_temporary(name))}
    shards = folder / SHARDS
    if shards.is_dir() and not shards.is_symlink() and not any(shards.iterdir()):
        begun.add(SHARDS)
    return names - begun


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
    found = scan_shards(folder, manifest)
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
