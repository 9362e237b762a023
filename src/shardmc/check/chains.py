"""How the shards' chains went: effective sizes, split R-hat, acceptance and divergences, through arviz-stats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardmc.types import Finding

_FEWEST_DRAWS = 4
_LARGEST_R_HAT = 1.1
_LOWEST_ACCEPTANCE = 0.1


@dataclass(frozen=True)
class ChainDiagnostics:
    """Per shard: effective size, R-hat and Monte Carlo error of every coordinate, and what they mean."""

    ess: np.ndarray  # (shard, dim)
    r_hat: np.ndarray  # (shard, dim)
    mcse: np.ndarray  # (shard, dim) of the shard's mean
    findings: list[Finding]

    @property
    def total_ess(self) -> np.ndarray:
        """Effective size of the pooled draws, (dim,): shards are independent."""
        return np.nansum(self.ess, axis=0)


def diagnose(
    chains: Sequence[np.ndarray], acceptance: np.ndarray, divergences: np.ndarray, names: Sequence[str]
) -> ChainDiagnostics:
    """Diagnostics of every shard's chains (chain, draw, dim)."""
    from arviz_stats.base import array_stats

    dim = chains[0].shape[-1]
    ess = np.full((len(chains), dim), np.nan)
    r_hat, mcse = ess.copy(), ess.copy()
    for shape in {c.shape for c in chains}:
        group = [i for i, c in enumerate(chains) if c.shape == shape and np.isfinite(c).all()]
        if not group or shape[1] < _FEWEST_DRAWS:
            continue
        stacked = np.stack([chains[i] for i in group])  # (shard, chain, draw, dim)
        most = shape[0] * shape[1]
        ess[group] = np.minimum(array_stats.ess(stacked, chain_axis=1, draw_axis=2), most)
        r_hat[group] = array_stats.rhat(stacked, chain_axis=1, draw_axis=2)
        mcse[group] = stacked.std(axis=(1, 2), ddof=1) / np.sqrt(ess[group])
    return ChainDiagnostics(ess, r_hat, mcse, _findings(ess, r_hat, acceptance, divergences, names))


def _findings(
    ess: np.ndarray, r_hat: np.ndarray, acceptance: np.ndarray, divergences: np.ndarray, names: Sequence[str]
) -> list[Finding]:
    found = []
    if divergences.sum() > 0:
        worst = int(np.argmax(divergences))
        found.append(
            Finding(
                "warning",
                "chains",
                f"{int(divergences.sum())} transitions diverged, most of them ({int(divergences[worst])}) in shard {worst}.",
                "Raise target_acceptance of the sampler, use fewer shards, or choose less entangled parameters.",
            )
        )
    low = np.flatnonzero(acceptance < _LOWEST_ACCEPTANCE)
    if len(low):
        found.append(
            Finding(
                "warning",
                "chains",
                f"{len(low)} shards accepted less than {_LOWEST_ACCEPTANCE:.0%} of their proposals (shard {low[0]}: "
                f"{acceptance[low[0]]:.1%}).",
                'Use sampler="hmc" or fewer shards.',
            )
        )
    # With few draws a shard R-hat is noisy: the median over shards tells whether a coordinate mixes.
    typical = np.nanmedian(r_hat, axis=0) if np.isfinite(r_hat).any() else np.ones(len(names))
    slow = [names[k] for k in np.flatnonzero(typical > _LARGEST_R_HAT)]
    if slow:
        found.append(
            Finding(
                "warning",
                "chains",
                f"Chains do not mix in {', '.join(slow[:5])}: R-hat is above {_LARGEST_R_HAT} in most shards.",
                "Take more draws or a longer warm-up, or another sampler.",
            )
        )
    return found
