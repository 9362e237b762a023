"""The predictive check that a fit of a formula makes by itself, on a sample of its rows."""

from __future__ import annotations

from dataclasses import replace

from shardmc.check.check import ordered
from shardmc.data import Source
from shardmc.errors import ShardmcError
from shardmc.formulas.predictive_check import posterior_predictive_check
from shardmc.posterior import Posterior
from shardmc.posterior.records import PredictiveCheck
from shardmc.types import Finding

SAMPLE, DRAWS = 2_000, 200
"""Rows and data sets that are simulated: a fraction of a second."""
MOST_ROWS = 5_000_000
"""Of larger tables no sample is taken, because that reads the table once more."""
_UNLIKELY = 0.01


def with_predictive_check(posterior: Posterior, source: Source, seed: int) -> Posterior:
    """The posterior with a predictive check on a sample of the rows, and a note on what the model does not reproduce.

    Parameters
    ----------
    posterior
        The posterior of a formula.
    source
        The rows that were fitted.
    seed
        For the sample and the simulation.
    """
    if source.num_rows > MOST_ROWS:
        return posterior
    try:
        table = posterior_predictive_check(posterior, source, sample=SAMPLE, draws=DRAWS, seed=seed)
    except (ShardmcError, NotImplementedError) as error:  # a user's own family may not simulate
        return replace(posterior, notes=(*posterior.notes, f"There is no predictive check: {error}"))
    found = PredictiveCheck(
        min(SAMPLE, posterior.plan.rows), DRAWS, {str(k): v for k, v in table.to_dict("index").items()}
    )
    odd = [name for name, row in found.statistics.items() if row["p"] < _UNLIKELY]
    if not odd:
        return replace(posterior, predictive=found)
    return replace(
        posterior, predictive=found, findings=tuple(ordered((*posterior.findings, _finding(found, odd))))
    )


def _finding(found: PredictiveCheck, odd: list[str]) -> Finding:
    row = found.statistics[odd[0]]
    more = f", and {len(odd) - 1} more of {len(found.statistics)} statistics" if len(odd) > 1 else ""
    return Finding(
        "note",
        "predictive",
        f"The model does not reproduce this of the rows: {odd[0]} ({row['observed']:.4g}; simulated rows have "
        f"{row['lower']:.4g} to {row['upper']:.4g}){more}.",
        "Look at the predictive check, and consider another family or other terms. The certificate does not examine "
        "whether the model fits.",
        {"statistics": odd},
    )
