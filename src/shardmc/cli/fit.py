"""`shardmc fit rows.parquet "y ~ x"`: a generalised linear model from a table to a certified posterior."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def fit(
    rows: Annotated[str, typer.Argument(help="A Parquet file or folder, or a CSV file: a path or a URL.")],
    formula: Annotated[str, typer.Argument(help='For example "y ~ x1 + C(region) + x1:x2".')],
    family: Annotated[
        str,
        typer.Option(
            help="gaussian, bernoulli, binomial, poisson, negative_binomial, gamma, student_t or ordinal."
        ),
    ] = "gaussian",
    out: Annotated[Path, typer.Option(help="The run folder; a stopped run goes on where it was.")] = Path(
        "shardmc-run"
    ),
    shards: Annotated[str, typer.Option(help='How many shards, or "auto".')] = "auto",
    draws: Annotated[int, typer.Option(help="How many draws of the posterior.")] = 10_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same draws.")] = 0,
    prior: Annotated[
        list[str] | None,
        typer.Option(help='A prior other than the default, e.g. "x1=normal(0, 1)"; may be repeated.'),
    ] = None,
    offset: Annotated[str | None, typer.Option(help="A column added to the linear predictor.")] = None,
    exposure: Annotated[
        str | None, typer.Option(help="A column to which the expected response is proportional.")
    ] = None,
    trials: Annotated[
        str | None, typer.Option(help="Number of trials of family binomial: a column or a number.")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Rows of more leverage than this times a shard's part are kept in every shard: less than the usual "
            "0.2 keeps more, 0 none.",
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="A column of row weights.")] = None,
    stratify: Annotated[str | None, typer.Option(help="A column dealt evenly over the shards.")] = None,
    sampler: Annotated[str, typer.Option(help="auto, independence, hmc, nuts or random-walk.")] = "auto",
    combiner: Annotated[str, typer.Option(help="recenter, consensus, swiss, ...")] = "recenter",
    engine: Annotated[str, typer.Option(help="local or dask.")] = "local",
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask scheduler, for --engine dask; without it workers start on this machine."
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0, help="GB of rows to hold in memory; larger tables are read shard by shard."),
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(help="A folder for the shards of larger tables; with Dask one that all workers see."),
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")
    ] = False,
    polish: Annotated[
        bool,
        typer.Option("--polish", help="Take the errors that the certificate measures out of the draws."),
    ] = False,
    precision: Annotated[
        str,
        typer.Option(
            help="auto, single or double: auto measures whether rounding in single precision matters."
        ),
    ] = "auto",
    report: Annotated[bool, typer.Option(help="Write report.html into the run folder.")] = True,
) -> None:
    """Fit a generalised linear model to a table of any size; print and keep its certified posterior."""
    from rich.console import Console

    from shardmc.cli.console import said, show_posterior
    from shardmc.cli.progress import StageBars
    from shardmc.data import as_source
    from shardmc.glm import glm

    console = Console()
    with StageBars() as bars:
        posterior = glm(
            formula,
            as_source(rows, memory=None if memory is None else int(memory * 1e9), scratch=scratch),
            family=family,
            priors=_priors(prior or []),
            offset=offset,
            exposure=exposure,
            trials=_number_or_name(trials),
            drop_missing=drop_missing,
            shards=_shards(shards),
            draws=draws,
            seed=seed,
            **({} if keep is None else {"keep": keep or None}),
            weights=weights,
            stratify=stratify,
            sampler=sampler,
            combiner=combiner,
            engine=_engine(engine, scheduler),
            polish=polish,
            precision=precision,
            run_dir=out,
            progress=bars,
        )
    show_posterior(console, posterior)
    priors = posterior.plan.get("priors", {})
    if priors:
        first = list(priors.items())[:12]
        more = f" and {len(priors) - len(first)} more" if len(priors) > len(first) else ""
        console.print(said("Priors: " + ", ".join(f"{k} ~ {v}" for k, v in first) + more + "."))
    if report:
        posterior.report(out / "report.html")
    console.print(said(f"Wrote {out}/posterior.nc{' and report.html' if report else ''}."), soft_wrap=True)


def _priors(given: list[str]) -> dict[str, str] | None:
    from shardmc.errors import OptionError

    result = {}
    for text in given:
        # The last "=": a column's name may have one, a prior has none.
        name, separator, prior = text.rpartition("=")
        if not separator:
            raise OptionError(f'A prior is given as "name=normal(0, 1)"; {text!r} has no "=".')
        result[name.strip()] = prior.strip()
    return result or None


def _number_or_name(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdigit() else text


def _shards(text: str) -> int | str:
    from shardmc.errors import OptionError

    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise OptionError(f'shards must be a whole number or "auto", not {text!r}.') from None


def _engine(name: str, scheduler: str | None):
    from shardmc.errors import OptionError, unknown

    if name == "local":
        if scheduler is not None:
            raise OptionError("--scheduler goes with --engine dask.")
        return None
    if name != "dask":
        raise unknown("engine", name, ("local", "dask"))
    from shardmc.engine import Dask

    if scheduler is not None:
        return Dask(scheduler)
    try:
        from distributed import Client
    except ImportError:
        raise OptionError("--engine dask needs Dask: pip install 'shardmc[dask]'.") from None
    return Dask(Client(threads_per_worker=1, dashboard_address=":0", set_as_default=False))
