"""Do the shards agree? Their modes should scatter around that of all rows as random samples would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from shardmc.types import Finding, Located

LEVEL = 0.01
"""Family-wise chance that a shard of random rows is called an outlier."""

_KNOWS_NOTHING = 0.05
"""Relative curvature below which a shard knows next to nothing of a direction."""


@dataclass(frozen=True)
class Agreement:
    """Disagreement of every shard with all rows, and what it means."""

    q: np.ndarray  # (shard,) about chi^2 with dim degrees of freedom; NaN without a mode
    p_values: np.ndarray  # (shard,)
    outliers: np.ndarray  # shards beyond the family-wise level
    eigenvalues: (
        np.ndarray
    )  # (shard, 2) smallest and largest of the shard's curvature relative to that of all rows
    findings: list[Finding]


def agree(located: Located, sizes: np.ndarray, names: Sequence[str], level: float = LEVEL) -> Agreement:
    """Q_i = (theta_i - theta)^T H (theta_i - theta) / (1 / a_i - 1) against chi^2_d, and relative curvatures."""
    mode = located.mode
    lower = np.linalg.cholesky(mode.curvature)
    gaps = (located.shard_modes - mode.theta) @ lower
    variance = np.maximum(1 / located.shares - 1, 1e-300)
    q = np.where(located.found, (gaps**2).sum(axis=1) / variance, np.nan)
    p_values = stats.chi2(len(names)).sf(q)
    count = max(int(located.found.sum()), 1)
    outliers = np.flatnonzero(p_values < level / count)
    whiten = np.linalg.inv(lower)
    eigenvalues = np.full((located.num_shards, 2), np.nan)
    weakest: dict[str, int] = {}
    for i in np.flatnonzero(located.found):
        values, vectors = np.linalg.eigh(whiten @ located.shard_curvatures[i] @ whiten.T)
        eigenvalues[i] = values[0], values[-1]
        if values[0] < _KNOWS_NOTHING:
            direction = whiten.T @ vectors[:, 0] * np.sqrt(np.diag(mode.curvature))
            name = names[int(np.argmax(np.abs(direction)))]
            weakest[name] = weakest.get(name, 0) + 1
    found = _outlier_findings(outliers, q, gaps @ whiten, located, sizes, names)
    return Agreement(q, p_values, outliers, eigenvalues, found + _weak_findings(weakest, located))


def _outlier_findings(outliers, q, moves, located, sizes, names) -> list[Finding]:
    found = []
    for i in outliers[np.argsort(-q[outliers])][:5]:
        scale = np.sqrt(np.diag(np.linalg.inv(located.mode.curvature)))
        order = np.argsort(-np.abs(moves[i] / scale))[:3]
        moved = ", ".join(names[k] for k in order)
        found.append(
            Finding(
                "warning",
                "agreement",
                f"Shard {i} ({int(sizes[i]):,} rows) disagrees with all rows (Q = {q[i]:.1f} where {len(names)} is "
                f"expected), most in {moved}.",
                "Look at its rows: data in file order, a corrupted block, or a rare level; shuffle, or stratify by a column.",
                {"shard": int(i), "q": float(q[i])},
            )
        )
    if len(outliers) > 5:
        found.append(
            Finding(
                "warning",
                "agreement",
                f"{len(outliers)} of {located.num_shards} shards disagree with all rows.",
            )
        )
    missing = int((~located.found).sum())
    if missing:
        found.append(
            Finding(
                "warning",
                "agreement",
                f"{missing} of {located.num_shards} shards have no mode of their own.",
                "Use fewer shards, a stronger prior, or keep more rows in every shard.",
            )
        )
    return found


def _weak_findings(weakest: dict[str, int], located: Located) -> list[Finding]:
    if not weakest:
        return []
    named = ", ".join(
        f"{name} ({count} shards)" for name, count in sorted(weakest.items(), key=lambda p: -p[1])[:5]
    )
    return [
        Finding(
            "note",
            "agreement",
            f"Some shards know next to nothing of {named}.",
            "Fewer shards, stratifying by that column, or a lower `keep` gives every shard its rows.",
        )
    ]
