"""Theorem 1 by numbers: total variation of the recentred average from the posterior, against N, M and K."""

from __future__ import annotations

from shardmc.paper.geometric import COMBINATIONS, Shards
from shardmc.paper.growth import measured
from shardmc.paper.growth_report import Growth
from shardmc.paper.prose import prose
from shardmc.paper.result import Call, Claim, Figure, Result
from shardmc.paper.style import BLUE, GREEN, ORANGE, SKY

NAME = "theorem-1"

_LINES = {
    "AR": {"color": BLUE, "marker": "o", "linestyle": "-"},
    "AR at modes": {"color": SKY, "marker": "x", "linestyle": ":"},
    "AR + Newton": {"color": GREEN, "marker": "s", "linestyle": "--"},
    "affine": {"color": ORANGE, "marker": "^", "linestyle": "-."},
}
_NOTE = (
    "Expected: g - 1/2 for AR, until its total variation nears 1; for AR + Newton the larger of -1/2 (the offset "
    "between mean and mode) and g - 1 (from 1 / M)."
)
_CAPTION = (
    "Total variation between the recentred average and the posterior, mean over data sets. "
    "First three panels: K = N^g shards; last: N fixed, shards of M rows."
)


def reproduce(call: Call) -> Result:
    """Total variation for K = N^(1/4), N^(1/2), N^(3/4) and for shards of every size at fixed N."""
    curves, fixed = measured(_distances, call)
    growth = Growth(curves, fixed, _LINES, "total variation")
    return Result(
        NAME,
        "Theorem 1: convergence in total variation",
        prose(NAME),
        (growth.slope_table(_NOTE), growth.value_table()),
        (Figure(NAME, _CAPTION, growth.draw),),
        _claims(growth),
        growth.numbers(),
    )


def _distances(shards: Shards) -> dict[str, float]:
    return {name: shards.total_variation(name) for name in COMBINATIONS}


def _claims(growth: Growth) -> tuple[Claim, ...]:
    plain, newton, affine = (growth.slopes[name] for name in ("AR", "AR + Newton", "affine"))
    last = [curve.errors["AR"][-1] for curve in growth.curves]
    return (
        Claim(
            f"Plain AR converges for K = N^(1/4) (slope {plain[0]:.2f}) and not for K = N^(1/2) "
            f"(slope {plain[1]:.2f}, total variation {last[1]:.2f}) or N^(3/4) (total variation {last[2]:.2f}).",
            plain[0] < -0.1 and abs(plain[1]) < 0.1 and last[2] > 0.9,
        ),
        Claim(
            "With the Newton centre and with the affine map the error falls at every growth rate "
            f"(slopes at most {max(newton):.2f} and {max(affine):.2f}).",
            max(*newton, *affine) < -0.15,
        ),
    )
