"""Commands on an existing run: `shardmc status`, `shardmc summary`, `shardmc report` and `shardmc predict`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from shardmc.cli.printing import AsCsv, AsJson, Every, Force, Printing, Verbose, refuse_existing
from shardmc.errors import counted
from shardmc.names import shown_text

_INTERVAL = 0.95
"""A copy of `shardmc.posterior.result.INTERVAL`: importing that takes as long as printing a command's help."""
_MOST_NAMED = 12
_NAMED = ("seed", "sampler", "combiner", "precision")
"""Options of a run that `status` shows, if they are known."""


def status(run: Annotated[Path, typer.Argument(help="A run folder, made with --out or run_dir=.")]) -> None:
    """Show which shards of a run are done, and which failed and why."""
    from rich.console import Console

    from shardmc.cli.console import said
    from shardmc.store.run import status as read_status

    found = read_status(run)
    console = Console()
    total = found.manifest.num_shards
    console.print(said(f"{found.folder}: {len(found.done)} of {total} shards are done."))
    console.print(said(f"Plan: {_plan_in_words(found.manifest.plan)}"))
    if found.owner is not None and found.running:
        console.print(said(f"A process is working on it: {found.owner}."))
    elif found.owner is not None:
        ended = "ended before it was finished" if found.running is False else "may still be running"
        console.print(said(f"The last process that worked on it was {found.owner}, which {ended}."))
    for shard, reason in found.failed.items():
        console.print(said(f"Shard {shard} failed: {reason}"))
    for shard, reason in found.damaged.items():
        console.print(said(f"Shard {shard}'s file is damaged and will be computed again: {reason}"))
    if found.missing:
        shown = ", ".join(map(str, found.missing[:_MOST_NAMED])) + (
            ", ..." if len(found.missing) > _MOST_NAMED else ""
        )
        console.print(
            said(
                f"{counted(len(found.missing), 'shard')} {'is' if len(found.missing) == 1 else 'are'} not computed yet "
                f"({shown}). Repeat the same call to continue the run."
            )
        )


def _plan_in_words(plan: Mapping[str, object]) -> str:
    """What a run computes, without the options of its sampler and combiner, which manifest.json has."""
    draws, rows, shards = (_counted(plan.get(name, ""), name) for name in ("draws", "rows", "shards"))
    draws += " from " if draws else ""
    weights = " with weights" if plan.get("weighted") else ""
    how = " in the order of the rows" if plan.get("shuffle") is False else ""
    how += " with equal shares of the strata" if plan.get("stratified") else ""
    # Recenter(center='auto') is called "recenter", RandomWalk() "random-walk".
    named = {
        name: re.sub(r"(?<=[a-z])(?=[A-Z])", "-", str(plan.get(name, "")).partition("(")[0])
        for name in _NAMED
    }
    options = ", ".join(f"{name} {value.lower()}" for name, value in named.items() if value)
    return f"{draws}{rows or 'rows'}{weights}, in {shards}{how}. {options[:1].upper()}{options[1:]}."


def _counted(count: object, what: str) -> str:
    """A count of something, such as "1,000 draws"; nothing if it is not a number."""
    return counted(count, what.removesuffix("s")) if isinstance(count, int) else ""


def summary(
    run: Annotated[Path, typer.Argument(help="A run folder, or a file that Posterior.save wrote.")],
    verbose: Verbose = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    every: Every = False,
) -> None:
    """Print the result of a run again: parameters, certificate, findings."""
    import shardmc

    printing = Printing(verbose=verbose, as_json=as_json, as_csv=as_csv, every=every)
    printing.show(shardmc.load(run))


def report(
    run: Annotated[Path, typer.Argument(help="A run folder, or a file that Posterior.save wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The page to write. By default report.html in the run folder, or beside the file."),
    ] = None,
) -> None:
    """Write one self-contained HTML page: verdict, summary, plots, diagnostics, and how to repeat the run."""
    import shardmc
    from shardmc.report import write_report

    posterior = shardmc.load(run)
    in_folder = run.is_dir() and run.suffix != ".zarr"
    path = out or (run / "report.html" if in_folder else run.with_suffix(".html"))
    typer.echo(shown_text(f"Wrote {write_report(posterior, path)}."))


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder of `shardmc fit`, or its posterior.nc.")],
    rows: Annotated[str, typer.Argument(help="New rows: a Parquet file or folder, or a CSV file.")],
    out: Annotated[
        Path, typer.Option(help="The file to write, in the format of its suffix: .parquet or .csv.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            help="mean, interval (of the expected response), link (of the linear predictor) or response (a new one)."
        ),
    ] = "interval",
    key: Annotated[
        list[str] | None,
        typer.Option(help="A column of the rows to write beside their predictions. May be repeated."),
    ] = None,
    interval: Annotated[float, typer.Option(help="The probability of the interval.")] = _INTERVAL,
    interval_kind: Annotated[
        str, typer.Option(help="eti (a central interval) or hdi (of highest density).")
    ] = "eti",
    draws: Annotated[int, typer.Option(help="The number of draws to use.")] = 1000,
    seed: Annotated[int, typer.Option(help="The seed for --kind response, and for effects of groups.")] = 0,
    groups: Annotated[
        str,
        typer.Option(
            help="For mixed models: known (groups of the fit have their effects, new groups are averaged over), "
            "new (all groups are averaged over) or population (no effects)."
        ),
    ] = "known",
    force: Force = False,
) -> None:
    """Predict the response of new rows, with intervals."""
    import shardmc
    from shardmc.errors import unknown

    kinds = ("link", "mean", "interval", "response")
    if kind not in kinds:
        raise unknown("kind of prediction", kind, kinds)
    refuse_existing(out, force)
    options = {"interval": interval, "interval_kind": interval_kind, "draws": draws, "seed": seed}
    count = shardmc.load(run).predict_file(rows, out, kind, key=key or (), groups=groups, **options)
    typer.echo(shown_text(f"Wrote predictions of {count.rows:,} rows to {out}."))
    if count.incomplete:
        typer.echo(shown_text(count.sentence()))
