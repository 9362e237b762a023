"""`shardmc report run/`: one self-contained HTML page about a result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="A run folder, or a file that Posterior.save wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; report.html in the run folder unless given.")
    ] = None,
) -> None:
    """Write one self-contained HTML page: verdict, summary, plots, diagnostics, and how to repeat the run."""
    import shardmc
    from shardmc.report import write_report

    posterior = shardmc.load(run)
    path = out or (run / "report.html" if run.is_dir() else run.with_suffix(".html"))
    typer.echo(f"Wrote {write_report(posterior, path)}.")
