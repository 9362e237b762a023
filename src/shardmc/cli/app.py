"""The commands by name. Each imports what it needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from shardmc._version import __version__
from shardmc.cli import combining, fitting, paper, runs
from shardmc.errors import OptionError
from shardmc.guards.limits import limits

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
    runs.summary,
    runs.report,
    runs.status,
    combining.combine,
    combining.compare,
    paper.reproduce,
    paper.demo,
):
    app.command()(command)
