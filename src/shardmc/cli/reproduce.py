"""`shardmc reproduce table-2`: any table or figure of the paper, recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="table-1, table-2, table-3, figure-1, figure-2, theorem-1, remark-2, nonparametric, or all."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where tables, figures and index.html go.")] = Path(
        "shardmc-paper"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version.")] = False,
    covtype: Annotated[
        Path | None, typer.Option(help="Covertype for table-2: an .npz file, or UCI's covtype.data.")
    ] = None,
    seed: Annotated[int, typer.Option(help="From which all randomness comes.")] = 0,
) -> None:
    """Recompute a result of the paper and show it next to what the paper printed."""
    from rich.console import Console

    from shardmc.cli.console import said
    from shardmc.cli.progress import StageBars
    from shardmc.paper import reproduce as recompute

    with StageBars() as bars:
        written = recompute(name, out, quick=quick, covtype=covtype, progress=bars, seed=seed)
    console = Console()
    for path in written:
        if path.suffix == ".md":
            console.print(said(path.read_text()), soft_wrap=True)
    console.print(said(f"Wrote {len(written)} files; open {written[-1]}."), soft_wrap=True)
