"""The commands by name. Each imports what it needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from shardmc._version import __version__
from shardmc.cli import combining, fitting, paper, runs

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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Bayesian posteriors for large tables, in seconds, with a certificate of how accurate they are."""


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
