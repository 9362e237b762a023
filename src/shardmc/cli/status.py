"""`shardmc status run/`: what of a run is done, what failed and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_FEW = 12


def status(run: Annotated[Path, typer.Argument(help="A run folder, as made by --out or run_dir=.")]) -> None:
    """Show what of a run is done, what failed and why."""
    from rich.console import Console

    from shardmc.cli.console import said
    from shardmc.store.status import status as read_status

    found = read_status(run)
    console = Console()
    total = found.manifest.num_shards
    console.print(said(f"{found.folder}: {len(found.done)} of {total} shards are done."))
    plan = ", ".join(f"{key} {value}" for key, value in found.manifest.plan.items() if key != "content")
    console.print(said(f"Plan: {plan}."))
    if found.owner is not None and found.running:
        console.print(said(f"A process is at work on it: {found.owner}."))
    elif found.owner is not None:
        ended = "ended before it was finished" if found.running is False else "may or may not still run"
        console.print(said(f"The last at work on it was {found.owner}, which {ended}."))
    for shard, reason in found.failed.items():
        console.print(said(f"Shard {shard} failed: {reason}"))
    for shard, reason in found.damaged.items():
        console.print(said(f"Shard {shard}'s file is damaged and will be computed again: {reason}"))
    if found.missing:
        shown = ", ".join(map(str, found.missing[:_FEW])) + (", ..." if len(found.missing) > _FEW else "")
        console.print(
            said(
                f"{len(found.missing)} are not computed yet ({shown}); the same call with this folder goes on."
            )
        )
