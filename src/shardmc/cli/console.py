"""How results look in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from shardmc.posterior import Posterior

_VERDICT_STYLE = {"within": "bold green", "off": "bold red", "cannot tell": "bold yellow"}


def frame_table(frame: pd.DataFrame, title: str, digits: dict[str, str] | None = None) -> Table:
    """A table of numbers, right-aligned, four significant digits unless told otherwise."""
    formats = {"ess": ",.0f", "r_hat": ".3f", "mean_error": "+.3f", "sd_ratio": ".3f", **(digits or {})}
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(str(frame.index.name or ""), no_wrap=True)
    for column in frame.columns:
        table.add_column(str(column), justify="right")
    for name, row in frame.iterrows():
        cells = [
            "–" if value != value else format(value, formats.get(str(key), ".4g"))
            for key, value in row.items()
        ]
        table.add_row(Text(str(name)), *cells)
    return table


def show_posterior(console: Console, posterior: Posterior, most: int = 60) -> None:
    """Summary, verdict, findings and notes of a result."""
    summary = posterior.summary()
    shown = summary.head(most)
    console.print(
        frame_table(shown, f"{posterior.num_draws:,} draws from {posterior.shards.num_shards} shards")
    )
    if len(summary) > most:
        console.print(f"... and {len(summary) - most} more parameters.")
    if posterior.certificate is not None:
        style = _VERDICT_STYLE.get(posterior.certificate.verdict, "")
        console.print(
            Text("Certificate: ", style="bold"), Text(posterior.certificate.sentence, style=style), sep=""
        )
    if posterior.polished is not None:
        console.print(Text(posterior.polished.sentence))
    for finding in posterior.findings:
        if finding.level != "note":
            console.print(Text(f"{finding.level}: {finding.message} {finding.advice}".strip()))
    for note in posterior.notes:
        console.print(Text(f"note: {note}"))
