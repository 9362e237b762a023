"""`shardmc combine` and `shardmc compare`: draws that were sampled elsewhere, one file per shard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardmc.cli.printing import (
    AsCsv,
    AsJson,
    Every,
    Force,
    Printing,
    Quiet,
    Verbose,
    console,
    refuse_existing,
)

if TYPE_CHECKING:
    from shardmc.combiners import CombinedDraws

Files = Annotated[list[Path], typer.Argument(help="Draws of the shards, one netCDF or CSV file each.")]
Shares = Annotated[
    str | None, typer.Option(help="The shards' shares, e.g. 0.5,0.3,0.2. By default they are equal.")
]

Seed = Annotated[int, typer.Option(help="Seed of the combiners that draw random numbers.")]


def combine(
    files: Files,
    out: Annotated[Path, typer.Option(help="The netCDF file to write.")],
    combiner: Annotated[
        str, typer.Option(help="recenter, consensus, product, weierstrass, mposterior, ...")
    ] = "recenter",
    shares: Shares = None,
    seed: Seed = 0,
    other_models: Annotated[
        bool,
        typer.Option("--other-models", help="Accept files of sites whose models have different hashes."),
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    every: Every = False,
) -> None:
    """Combine the draws of shards into draws of the full posterior.

    The draws must come from the subposteriors that the combiner takes: rescaled (likelihood to the power 1 / share)
    for recenter, swiss, mposterior, wasserstein and pie; fractional (prior to the power share) for consensus, product,
    weierstrass and partition-trees.

    Files that sample_shard wrote contain their shares and modes. The result is then a posterior with diagnostics,
    which `shardmc report` shows.
    """
    import shardmc
    from shardmc.cli.console import said
    from shardmc.errors import OptionError

    printing = Printing(quiet, verbose, as_json, as_csv, every)
    sites = _are_sites(_existing(files))
    refuse_existing(out, force)
    if sites:
        _combine_sites(printing, files, out, combiner, shares, seed, other_models)
        return
    if as_json or as_csv:
        raise OptionError("--json and --csv need files that sample_shard wrote: other draws have no summary.")
    result = shardmc.combine(_existing(files), combiner, shares=_shares(shares), seed=seed)
    result.save(out)
    if quiet:
        return
    combined = (
        f"Combined {len(files)} shards by {combiner} into {len(result.values):,} draws of {_names(result)}."
    )
    for line in (combined, *(f"note: {note}" for note in result.notes)):
        console().print(said(line))
    console().print(said(f"Wrote {out}."), soft_wrap=True)


def compare(
    files: Files,
    reference: Annotated[Path, typer.Option(help="Draws of the full posterior, netCDF or CSV.")],
    combiners: Annotated[
        str | None, typer.Option(help="Combiners to compare, e.g. recenter,consensus. By default all.")
    ] = None,
    scaling: Annotated[
        str, typer.Option(help="The subposteriors that the draws come from: rescaled or fractional.")
    ] = "rescaled",
    others: Annotated[
        str | None,
        typer.Option(help="Draws of other methods to show beside them, e.g. sgld=sgld.nc,ep=ep.nc."),
    ] = None,
    shares: Shares = None,
    seed: Seed = 0,
) -> None:
    """Apply several combiners to the same shards and show the distance of each from a reference."""
    import shardmc
    from shardmc.cli.console import said
    from shardmc.errors import unknown

    if scaling not in ("rescaled", "fractional"):
        raise unknown("scaling", scaling, ("rescaled", "fractional"))
    result = shardmc.compare(
        _existing(files),
        str(_existing([reference])[0]),
        None if combiners is None else [name.strip() for name in combiners.split(",")],
        scaling=scaling,
        shares=_shares(shares),
        others=_others(others),
        seed=seed,
    )
    console().print(said(str(result)), soft_wrap=True)
    for name, notes in result.notes.items():
        for note in notes:
            console().print(said(f"{name}: {note}"))


def _are_sites(files: list[str]) -> bool:
    """Whether all files are files of sites. A mixture of site files and other files is an error."""
    from shardmc.errors import DataError
    from shardmc.store.site import is_site_file

    sites = [file for file in files if file.endswith(".nc") and is_site_file(file)]
    if sites and len(sites) < len(files):
        other = next(file for file in files if file not in sites)
        raise DataError(
            f"{sites[0]} was written by sample_shard and {other} was not; combine files of one kind only."
        )
    return bool(sites)


def _combine_sites(
    printing: Printing,
    files: list[Path],
    out: Path,
    combiner: str,
    shares: str | None,
    seed: int,
    other_models: bool,
) -> None:
    from shardmc.errors import OptionError
    from shardmc.pipeline.site_combining import combine_sites

    if shares is not None:
        raise OptionError("Leave out --shares: files that sample_shard wrote contain their shares.")
    posterior = combine_sites(
        files, combiner=combiner, seed=seed, other_models=other_models, progress=printing.progress
    )
    posterior.save(out)
    printing.show(posterior, f"Wrote {out}.")


def _names(result: CombinedDraws) -> str:
    names = list(result.draws)
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _existing(files: list[Path]) -> list[str]:
    from shardmc.errors import DataError

    for file in files:
        if not file.exists():
            raise DataError(f"There is no file {file}.")
    return [str(f) for f in files]


def _others(text: str | None) -> dict[str, str]:
    """Files by the names of their rows, from name=file,name=file."""
    from shardmc.errors import OptionError

    found = {}
    for part in [] if text is None else text.split(","):
        name, equals, file = (each.strip() for each in part.partition("="))
        if not (name and equals and file):
            raise OptionError(f"--others takes names with their files, such as sgld=sgld.nc, not {part!r}.")
        found[name] = _existing([Path(file)])[0]
    return found


def _shares(text: str | None) -> list[float] | None:
    from shardmc.errors import OptionError

    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--shares takes numbers separated by commas, not {text!r}.") from None
