"""The commands by name, and compiled programs kept between them. Each imports what it needs only when it runs."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from shardmc._version import __version__
from shardmc.cli import combining, fitting, paper, runs
from shardmc.errors import OptionError
from shardmc.sizes import limits

_WORTH_KEEPING = 0.05  # seconds of compilation

app = typer.Typer(
    name="shardmc",
    help="Bayesian posteriors for large tables, in seconds, with a certificate of how accurate they are.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardmc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="Raise a limit on large input, as name=number. The message about it says which one."
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Bayesian posteriors for large tables, in seconds, with a certificate of how accurate they are."""
    context.with_resource(limits(**dict(map(_raised, limit or []))))


def _raised(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdecimal():
        raise OptionError(f"A limit is given as name=number, such as terms=50000, not {text!r}.")
    return name, int(number)


for command in (
    fitting.fit,
    runs.predict,
    runs.report,
    runs.status,
    combining.combine,
    combining.compare,
    paper.reproduce,
    paper.demo,
):
    app.command()(command)


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
