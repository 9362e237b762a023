"""What a command prints, and where: words or data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from shardmc.posterior import Posterior

Quiet = Annotated[bool, typer.Option("--quiet", help="Print only errors, and the output of --json or --csv.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", help="Print every stage, also to a log file, and findings that are only notes."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of a table.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print the summary as CSV instead of a table.")]
Every = Annotated[bool, typer.Option("--all", help="Show all parameters.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that has that name already.")]

_WIDE = 200  # characters of a line in a file or a pipe, where nothing has to be folded


@dataclass(frozen=True)
class Printing:
    """How a command prints its result."""

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    as_csv: bool = False
    every: bool = False

    def __post_init__(self) -> None:
        from shardmc.errors import OptionError

        for one, other in (("quiet", "verbose"), ("as_json", "as_csv")):
            if getattr(self, one) and getattr(self, other):
                given = [f"--{name.removeprefix('as_')}" for name in (one, other)]
                raise OptionError(f"{given[0]} and {given[1]} cannot be used together: give one of them.")

    @property
    def progress(self) -> bool | None:
        """The option `progress` of a fit."""
        return False if self.quiet else True if self.verbose else None

    def show(self, posterior: Posterior, *lines: str) -> None:
        """Print a result, and then some lines about it."""
        from shardmc.cli.console import said, show_posterior

        if self.as_json:
            print(json.dumps(as_data(posterior), indent=2, ensure_ascii=False))
        elif self.as_csv:
            posterior.summary().to_csv(sys.stdout)
        elif not self.quiet:
            show_posterior(console(), posterior, every=self.every, notes=self.verbose)
        if not self.quiet:
            apart = self.as_json or self.as_csv
            for line in lines:
                console(stderr=apart).print(said(line), soft_wrap=True)


def console(*, stderr: bool = False) -> Console:
    """Where to print: as wide as the terminal, or wide enough for long names if there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    fixed = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, width=None if fixed else _WIDE)


def as_data(posterior: Posterior) -> dict[str, object]:
    """A result as plain values for JSON. Numbers that are missing are null."""
    regression, certificate = posterior.regression, posterior.certificate
    return {
        "formula": None if regression is None else regression.formula,
        "family": None if regression is None else regression.family_in_words,
        "roles": {} if regression is None else regression.roles,
        **{key: posterior.origin.get(key) for key in ("data", "date")},
        "rows": posterior.plan.rows,
        "shards": posterior.shards.num_shards,
        "draws": posterior.num_draws,
        "verdict": None if certificate is None else certificate.verdict,
        "certificate": None if certificate is None else certificate.sentence,
        "advice": None if certificate is None else certificate.advice,
        "parameters": [
            {"parameter": str(name), **{str(key): _number(value) for key, value in row.items()}}
            for name, row in posterior.summary().iterrows()
        ],
        "findings": [
            {"level": each.level, "check": each.check, "message": each.message, "advice": each.advice}
            for each in posterior.findings
        ],
        "notes": list(posterior.notes),
        "priors": {} if regression is None else dict(regression.priors),
        "seconds": {stage: round(seconds, 3) for stage, seconds in posterior.seconds.items()},
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def refuse_existing(path: Path, force: bool) -> None:
    """Refuse to replace a file unless that was asked for."""
    from shardmc.errors import RunError

    if path.exists() and not force:
        raise RunError(f"{path} exists already. Name another file, or replace it with --force.")
