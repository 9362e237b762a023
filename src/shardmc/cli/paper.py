"""Commands about the paper: `shardmc demo` and `shardmc reproduce table-2`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import numpy as np

    from shardmc.model import Model

TRUE_BETA = (0.3, 5.0, -7.0, 2.4, -20.0)
"""The coefficients from which the demo simulates its rows."""


def demo(
    rows: Annotated[int, typer.Option(help="The number of rows to simulate.")] = 100_000,
    shards: Annotated[int, typer.Option(help="The number of shards.")] = 50,
    draws: Annotated[int, typer.Option(help="The number of draws from the posterior.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the data and of the draws.")] = 0,
    out: Annotated[Path, typer.Option(help="Where to write the result.")] = Path("shardmc-demo"),
) -> None:
    """Fit the paper's synthetic logistic regression and compare with the posterior of all rows."""
    import numpy as np
    import pandas as pd
    from rich.console import Console

    import shardmc
    from shardmc.cli.console import frame_table, show_posterior
    from shardmc.errors import OptionError
    from shardmc.guards.files import not_written
    from shardmc.pipeline.progress import reporting

    if rows < 1000:
        raise OptionError(f"The demo needs at least 1000 rows; {rows} were asked for.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_written(out, error) from error
    console = Console()
    x, y = simulate(rows, seed)
    console.print(
        f"Logistic regression, {rows:,} rows, {x.shape[1]} coefficients, {shards} shards "
        "(Example 2 of Wu and Robert, Average of Recentered Parallel MCMC)."
    )
    model = logistic_model(x.shape[1])
    posterior = shardmc.fit(model, (x, y), shards=shards, draws=draws, seed=seed)
    with reporting(None, "all rows: ") as report:
        whole = shardmc.fit(model, (x, y), shards=1, draws=draws, seed=seed + 1, check=False, progress=report)
    show_posterior(console, posterior)
    ours, full = posterior.summary(), whole.summary()
    table = pd.DataFrame(
        {
            "true": np.array(TRUE_BETA),
            "shardmc mean": ours["mean"],
            "shardmc sd": ours["sd"],
            "all rows mean": full["mean"],
            "all rows sd": full["sd"],
            "gap, sd": (ours["mean"] - full["mean"]) / full["sd"],
        }
    )
    console.print()
    console.print(
        frame_table(
            table,
            "Next to the truth and to the posterior of all rows",
            sd="all rows sd",
            digits={"true": "g", "gap, sd": "+.3f"},
        )
    )
    console.print()
    path = posterior.save(out / "posterior.nc")
    seconds = sum(posterior.seconds.values())
    console.print(f"Wrote {path} after {seconds:.1f} s (compilation included).", soft_wrap=True)


def simulate(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the paper's Example 2: x_1 = 1, the others uniform on (0, 1)."""
    import numpy as np

    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(rows), rng.random((rows, len(TRUE_BETA) - 1))]).astype(np.float32)
    y = rng.random(rows) < 1 / (1 + np.exp(-x @ np.array(TRUE_BETA)))
    return x, y.astype(np.float32)


def logistic_model(dim: int) -> Model:
    """Logistic regression with an N(0, 10^2) prior, as plain JAX functions."""
    import jax
    import jax.numpy as jnp

    import shardmc

    def log_likelihood(params, rows):
        x, y = rows
        eta = x @ params["beta"]
        return y * eta - jax.nn.softplus(eta)

    def log_prior(params):
        return -0.5 * jnp.sum((params["beta"] / 10) ** 2)

    return shardmc.Model(log_likelihood, log_prior, {"beta": dim})


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="table-1, table-2, table-3, figure-1, figure-2, theorem-1, remark-2, nonparametric, or all."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder for tables, figures and index.html.")] = Path(
        "shardmc-paper"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version.")] = False,
    covtype: Annotated[
        Path | None, typer.Option(help="Covertype for table-2: an .npz file, or UCI's covtype.data.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of all random numbers.")] = 0,
) -> None:
    """Recompute a result of the paper and compare it with the printed one."""
    from rich.console import Console

    from shardmc.cli.console import said
    from shardmc.paper import reproduce as recompute
    from shardmc.pipeline.progress import reporting

    with reporting(None) as report:
        written = recompute(name, out, quick=quick, covtype=covtype, progress=report, seed=seed)
    console = Console()
    for path in written:
        if path.suffix == ".md":
            console.print(said(path.read_text()), soft_wrap=True)
    console.print(said(f"Wrote {len(written)} files; open {written[-1]}."), soft_wrap=True)
