"""How results look in a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardmc.names import shown_text

if TYPE_CHECKING:
    import pandas as pd

    from shardmc.posterior import Posterior

_MOST_ROWS = 60
"""Parameters that are shown unless all are asked for."""
_VERDICT_STYLE = {"within": "bold green", "off": "bold red", "cannot tell": "bold yellow"}


def said(text: str, style: str = "") -> Text:
    r"""Text that may contain names, made safe for a terminal: control characters are written as escapes.

    >>> said("note: \x1b[2J").plain
    'note: \\x1b[2J'
    """
    return Text(shown_text(text), style=style)


def frame_table(
    frame: pd.DataFrame, title: str, sd: str = "sd", digits: dict[str, str] | None = None
) -> Table:
    """A table of numbers, right-aligned, with as many decimals as give the row's `sd` three significant digits."""
    formats = {"ess": ",.0f", "r_hat": ".3f", "mean_error": "+.2f", "sd_ratio": ".2f", **(digits or {})}
    table = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    # If a line is too long, names are folded. Numbers are not: a number that is cut off would be another number.
    table.add_column(str(frame.index.name or ""), overflow="fold", min_width=9)
    for column in frame.columns:
        table.add_column(_heading(str(column)), justify="right", no_wrap=True)
    for (name, row), scale in zip(frame.iterrows(), frame[sd].tolist(), strict=True):
        rest = _format(scale)
        cells = [
            "–" if value != value else format(value, formats.get(str(key), rest))
            for key, value in row.items()
        ]
        table.add_row(said(str(name)), *cells)
    return table


def _format(sd: float) -> str:
    """The format of numbers that are known up to about `sd`.

    >>> [_format(sd) for sd in (0.0635, 12.0, 1e-9)]
    ['.4f', '.1f', '.4g']
    """
    decimals = 2 - math.floor(math.log10(sd)) if 0 < sd < math.inf else 99
    return f".{max(decimals, 0)}f" if decimals <= 6 else ".4g"


def _heading(column: str) -> str:
    """A column's heading, on two lines if it is longer than the numbers below."""
    return column if len(column) < 7 else "\n".join(column.replace("_", " ").rsplit(" ", 1))


def show_posterior(
    console: Console, posterior: Posterior, *, every: bool = False, notes: bool = False
) -> None:
    """Model, summary, verdict, findings and notes of a result: the first parameters or every one."""
    summary = posterior.summary()
    shown = summary if every else summary.head(_MOST_ROWS)
    if posterior.regression is not None:
        console.print(Text("Model: ", style="bold"), said(posterior.model), sep="")
    shards = posterior.shards.num_shards
    of = f"{shards} shard{'s' if shards > 1 else ''} of {posterior.plan.rows:,} rows"
    title = f"{posterior.num_draws:,} draws from {of}"
    console.print(frame_table(shown, title))
    if len(summary) > len(shown):
        console.print(f"... and {len(summary) - len(shown)} more parameters: --all shows them.")
    console.print()
    if posterior.certificate is not None:
        style = _VERDICT_STYLE.get(posterior.certificate.verdict, "")
        console.print(
            Text("Certificate: ", style="bold"), said(posterior.certificate.sentence, style), sep=""
        )
    if posterior.polished is not None:
        console.print(said(posterior.polished.sentence))
    if posterior.adjusted is not None:
        console.print(said(posterior.adjusted.sentence))
    console.print(said(posterior.not_examined))
    for finding in posterior.findings:
        if finding.level != "note" or notes:
            console.print(said(f"{finding.level}: {finding.message} {finding.advice}".strip()))
    for note in posterior.notes:
        console.print(said(f"note: {note}"))
