"""`shardmc predict run/ new.parquet --out pred.parquet`: predictions for new rows, streamed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder of `shardmc fit`, or its posterior.nc.")],
    rows: Annotated[str, typer.Argument(help="New rows: a Parquet file or folder, or a CSV file.")],
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")],
    kind: Annotated[
        str, typer.Option(help="mean, interval (of the expected response) or response (a new one).")
    ] = "interval",
    interval: Annotated[float, typer.Option(help="The interval's probability.")] = 0.9,
    draws: Annotated[int, typer.Option(help="How many of the posterior's draws to use.")] = 1000,
    seed: Annotated[int, typer.Option(help="For --kind response.")] = 0,
) -> None:
    """Predict the response of new rows, with intervals."""
    import shardmc
    from shardmc.errors import unknown
    from shardmc.glm import predict_file

    kinds = ("mean", "interval", "response")
    if kind not in kinds:
        raise unknown("kind of prediction", kind, kinds)
    count = predict_file(shardmc.load(run), rows, out, kind, interval=interval, draws=draws, seed=seed)  # type: ignore[arg-type]
    typer.echo(f"Wrote predictions of {count:,} rows to {out}.")
