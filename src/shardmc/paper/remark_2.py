"""Remark 2 by numbers: how fast the covariance of the recentred draws comes to the right one."""

from __future__ import annotations

from shardmc.paper.geometric import TRUE, Shards
from shardmc.paper.growth import measured
from shardmc.paper.growth_report import Growth
from shardmc.paper.prose import prose
from shardmc.paper.result import Call, Claim, Figure, Result
from shardmc.paper.style import BLUE, GREEN, ORANGE

NAME = "remark-2"

ASYMPTOTIC, POSTERIOR, AFFINE = (
    "AR, from 1 / information",
    "AR, from the posterior",
    "affine, from the posterior",
)

_LINES = {
    ASYMPTOTIC: {"color": GREEN, "marker": "s", "linestyle": "--"},
    POSTERIOR: {"color": BLUE, "marker": "o", "linestyle": "-"},
    AFFINE: {"color": ORANGE, "marker": "^", "linestyle": "-."},
}
_NOTE = (
    "The first line is the remark's statement: N times the variance of AR against the inverse Fisher information. "
    "The others compare with the variance of the posterior of the same rows."
)
_CAPTION = (
    "Relative error of the variance of the recentred draws, mean over data sets. "
    "First three panels: K = N^g shards; last: N fixed, shards of M rows."
)


def reproduce(call: Call) -> Result:
    """Relative errors of the variance for K = N^(1/4), N^(1/2), N^(3/4) and for every shard size at fixed N."""
    curves, fixed = measured(_errors, call)
    growth = Growth(curves, fixed, _LINES, "relative error of the variance")
    return Result(
        NAME,
        "Remark 2: the covariance of the recentred draws",
        prose(NAME),
        (growth.slope_table(_NOTE), growth.value_table()),
        (Figure(NAME, _CAPTION, growth.draw),),
        _claims(growth),
        growth.numbers(),
    )


def _errors(shards: Shards) -> dict[str, float]:
    combined = float(shards.rescaled.variance.mean())
    return {
        ASYMPTOTIC: abs(shards.num_rows * combined / (TRUE**2 * (1 - TRUE)) - 1),
        POSTERIOR: abs(shards.variance_ratio("AR") - 1),
        AFFINE: abs(shards.variance_ratio("affine") - 1),
    }


def _claims(growth: Growth) -> tuple[Claim, ...]:
    stated = growth.slopes[ASYMPTOTIC]
    against_shard = growth.fixed.slope(POSTERIOR, growth.fixed.shard_rows)
    return (
        Claim(
            f"The remark's rate, slope -1/2, is found for K = N^(1/4) and N^(1/2) ({stated[0]:.2f}, {stated[1]:.2f}), "
            f"and a slower one for K = N^(3/4) ({stated[2]:.2f}; 1 / M has -0.25).",
            max(abs(stated[0] + 0.5), abs(stated[1] + 0.5)) < 0.2 and stated[2] > -0.4,
        ),
        Claim(
            f"At fixed N the error against the posterior falls like 1 / M (slope {against_shard:.2f}).",
            abs(against_shard + 1) < 0.15,
        ),
    )
