"""Compiled programs that outlive their process, in a folder of the user's own."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path

from shardmc.errors import OptionError

WORTH_KEEPING = 0.05
"""Seconds of compilation."""
_MOST_BYTES = 1 << 30


def keep_programs(folder: str | os.PathLike[str] | None = None, *, size: float = 1.0) -> Path:
    """Keep compiled programs in a folder, so that the next process loads them instead of compiling them again.

    Call it once, at the top of a script or notebook. The command line does it by itself. It sets JAX's own options, so
    it also keeps programs that you compile with JAX in this process. If a folder was chosen before, by
    `JAX_COMPILATION_CACHE_DIR` or in JAX's configuration, that one stays.

    Parameters
    ----------
    folder
        Where to keep them. By default `shardmc` in the user's cache folder (`~/.cache` on Linux), which no other user
        can read or write. Several processes may use it at the same time.
    size
        The most that the folder may hold, in GiB. Programs that were not used for the longest time go first.

    Returns
    -------
    Path
        The folder. You may delete it at any time.

    Examples
    --------
    >>> import shardmc
    >>> shardmc.keep_programs()  # doctest: +SKIP
    PosixPath('/home/me/.cache/shardmc/x86_64-53f1c0c3a1b2')
    """
    if not size > 0:
        raise OptionError(f"size must be a positive number of GiB, not {size!r}.")
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if folder is None and chosen:
        return Path(chosen)
    path = cache_folder() if folder is None else Path(folder).absolute()
    _make(path)
    _drop_unfinished(path)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH_KEEPING)
    jax.config.update("jax_compilation_cache_max_size", int(size * (1 << 30)))
    compilation_cache.reset_cache()  # JAX decides at its first program whether there is a cache
    return path


def keep_programs_of_command() -> None:
    """The same for a command of its own, by environment variables, because JAX is not loaded yet."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        try:
            _make(cache_folder())
        except OptionError:
            return  # the command works without
        _drop_unfinished(cache_folder())
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache_folder())
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(_MOST_BYTES))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(WORTH_KEEPING))


def cache_folder() -> Path:
    """The folder of compiled programs: one per kind of processor, because machines may share a home folder."""
    if sys.platform == "darwin":
        root = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        root = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "shardmc" / f"{platform.machine()}-{_processor()}"


def _make(path: Path) -> None:
    """Make the folder, for this user only. What others can write could be other programs."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise OptionError(
            f"shardmc cannot keep programs in {str(path)!r}: {error.strerror or error}."
        ) from error
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise OptionError(
            f"shardmc does not keep programs in {str(path)!r}: other users can write there. Choose another folder, or "
            "make it yours alone (chmod 700)."
        )


def _drop_unfinished(path: Path) -> None:
    """Delete programs that a killed process had not written to the end.

    JAX writes a program, and then the time of its use. If one program has no time, JAX cannot find out which are the
    oldest, keeps no new ones, and warns about each.
    """

    def unfinished() -> list[Path]:
        names = set(os.listdir(path))
        programs = (name for name in names if name.endswith("-cache"))
        return [path / name for name in programs if f"{name.removesuffix('-cache')}-atime" not in names]

    try:
        if unfinished():  # or another process is writing it, which has the lock
            import filelock

            with filelock.FileLock(path / ".lockfile", timeout=1):
                for program in unfinished():
                    program.unlink(missing_ok=True)
    except OSError:
        return  # the next process tries again


def _processor() -> str:
    """A short name of the instruction set that compiled code may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        said = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        said = platform.processor()
    return hashlib.sha256(said.encode()).hexdigest()[:12]
