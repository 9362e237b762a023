"""Diagnostics of the shards' chains: effective sizes, split R-hat, acceptance and divergences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from shardmc.check import special
from shardmc.check.advice import ANY, Remedies
from shardmc.check.check import Check, Evidence, Outcome
from shardmc.check.mixing import effective_size, split_r_hat
from shardmc.programs.threads import each
from shardmc.types import Finding

_FEWEST_DRAWS = 8
_LARGEST_R_HAT = 1.05
_LOWEST_ACCEPTANCE = 0.1
_FEWEST_EFFECTIVE = 400
_LEVEL = 0.01
"""The chance that any R-hat of chains that mix is called too large."""
_THREADS = 4
"""Most of the time NumPy computes without Python's lock. An accelerator would wait for one thread."""
_TOGETHER = 32
"""Number of shards looked at together: few enough for their draws to stay in the processor's cache."""


@dataclass(frozen=True)
class ChainDiagnostics:
    """Effective size and R-hat of each shard and coordinate, and what they mean."""

    ess: np.ndarray  # (shard, dim); NaN if a shard has fewer than eight draws, or draws that are not finite
    r_hat: np.ndarray  # (shard, dim), likewise
    findings: list[Finding]


def diagnose(
    chains: Sequence[np.ndarray],
    acceptance: np.ndarray,
    divergences: np.ndarray,
    names: Sequence[str],
    remedies: Remedies = ANY,
) -> ChainDiagnostics:
    """Diagnostics of every shard's chains, all shards at once.

    Parameters
    ----------
    chains
        One array (chain, draw, dim) per shard, before combining.
    acceptance
        Fraction of proposals accepted, (shard,).
    divergences
        Number of transitions that diverged, (shard,).
    names
        One name per coordinate.
    remedies
        What the caller can change. The advice names nothing else.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> chains = [rng.normal(size=(1, 200, 2)) for shard in range(10)]
    >>> chains[3][0, :, 1] += np.linspace(0, 5, 200)
    >>> result = diagnose(chains, np.full(10, 0.8), np.zeros(10), ["a", "b"])
    >>> [finding.message for finding in result.findings]
    ['Chains of 1 of 10 shards have not mixed: R-hat of b in shard 3 is 1.59.']
    """
    remedies = replace(remedies, one_shard=len(chains) == 1)
    dim = chains[0].shape[-1]
    ess = np.full((len(chains), dim), np.nan)
    r_hat, limit = ess.copy(), ess.copy()
    for shape in {c.shape for c in chains if c.shape[1] >= _FEWEST_DRAWS}:
        group = [i for i, c in enumerate(chains) if c.shape == shape and np.isfinite(c).all()]
        if not group:
            continue
        most = shape[0] * shape[1]

        def look(some: list[int], most: int = most) -> None:
            series = np.moveaxis(np.stack([chains[i] for i in some]), -1, 1)  # (shard, dim, chain, draw)
            ess[some] = np.minimum(effective_size(series), most)
            r_hat[some] = split_r_hat(series)

        each(look, [group[i : i + _TOGETHER] for i in range(0, len(group), _TOGETHER)], _THREADS)
        limit[group] = _r_hat_limit(shape[0], shape[1], np.median(ess[group], axis=0) / most, len(chains))
    found = [
        *_divergences(divergences, remedies),
        *_acceptance(acceptance, remedies),
        *_mixing(r_hat, limit, names, remedies),
        *_few_draws(ess, names),
    ]
    return ChainDiagnostics(ess, r_hat, found)


def _r_hat_limit(chains: int, draws: int, efficiency: np.ndarray, num_shards: int) -> np.ndarray:
    """A bound on R-hat, (dim,). If all chains mix, any of them exceeds it with probability 0.01.

    R-hat^2 = (n - 1) / n + B / W, where B is the variance of the means of the half chains of n draws, and n e B / W has
    an F distribution with e the typical efficiency over shards. The larger of two R-hats counts.
    """
    halves, size = 2 * chains, draws // 2
    effective = np.maximum(size * efficiency, 2)
    level = _LEVEL / (2 * num_shards * len(efficiency))
    fisher = special.fdtri(halves - 1, halves * (effective - 1), 1 - level)
    return np.maximum(np.sqrt((size - 1) / size + fisher / effective), _LARGEST_R_HAT)


def _divergences(divergences: np.ndarray, remedies: Remedies) -> list[Finding]:
    if not np.nansum(divergences) > 0:
        return []
    worst = int(np.nanargmax(divergences))
    total, one = int(np.nansum(divergences)), len(divergences) == 1
    where = "" if one else f", {int(divergences[worst]):,} of them in shard {worst}"
    return [
        Finding(
            "warning",
            "chains",
            f"{total:,} transitions diverged{where}.",
            _at_sites(remedies)
            or remedies.use(
                "raise the target acceptance, as in sampler=shardmc.HMC(target_acceptance=0.95)", "shards"
            ),
            {"divergences": total, "shard": worst},
        )
    ]


def _acceptance(acceptance: np.ndarray, remedies: Remedies) -> list[Finding]:
    low = np.flatnonzero(acceptance < _LOWEST_ACCEPTANCE)
    if not len(low):
        return []
    worst, one = int(low[np.argmin(acceptance[low])]), len(acceptance) == 1
    message = (
        f"The sampler accepted only {acceptance[worst]:.1%} of its proposals."
        if one
        else f"{len(low)} of {len(acceptance)} shards accepted less than {_LOWEST_ACCEPTANCE:.0%} of their proposals; "
        f"shard {worst} accepted {acceptance[worst]:.1%}."
    )
    closer = (
        ", or fewer shards, whose subposteriors are closer to a Gaussian" if remedies.has("shards") else ""
    )
    return [
        Finding(
            "warning",
            "chains",
            message,
            _at_sites(remedies) or f'Use sampler="hmc"{closer}.',
            {"shards": low.tolist(), "acceptance": float(acceptance[worst])},
        )
    ]


def _at_sites(remedies: Remedies) -> str:
    """Advice where the shards were sampled elsewhere, by a call of their own."""
    if remedies.options:
        return ""
    return 'Sample this site again with other options of sample_shard, such as sampler="hmc" or more draws.'


def _mixing(r_hat: np.ndarray, limit: np.ndarray, names: Sequence[str], remedies: Remedies) -> list[Finding]:
    beyond = r_hat > limit
    if not beyond.any():
        return []
    shards = np.flatnonzero(beyond.any(axis=1))
    shard, worst = np.unravel_index(int(np.where(beyond, r_hat, 0).argmax()), r_hat.shape)
    of, where = (
        (f"Chains of {len(shards)} of {len(r_hat)} shards", f" in shard {shard}")
        if len(r_hat) > 1
        else ("The chains", "")
    )
    number = f"R-hat of {names[int(worst)]}{where} is {r_hat[shard, worst]:.2f}"
    return [
        Finding(
            "warning",
            "chains",
            f"{of} have not mixed: {number}.",
            _at_sites(remedies)
            or "Use more draws, a longer warm-up (warmup of the sampler) or another sampler.",
            {"shards": shards.tolist(), "r_hat": float(r_hat[shard, worst])},
        )
    ]


def beside_certificate(findings: Iterable[Finding], within: bool) -> list[Finding]:
    """The findings as they read beside the verdict: if it is "within", slow chains and few draws are notes."""
    return [_outweighed(each) if within and each.check == "chains" else each for each in findings]


def _outweighed(finding: Finding) -> Finding:
    if "r_hat" in finding.values:
        slow = finding.message.replace("have not mixed", "mix slowly")
        said = f"{slow} The certificate measures the combined draws themselves and finds them within bounds."
        advice = "Nothing has to be done. More draws or a longer warm-up would make R-hat smaller."
    elif "ess" in finding.values:
        said = f"{finding.message} The certificate finds means and sds within bounds all the same."
        advice = "Take more draws if the ends of intervals matter: they are less precise than means and sds."
    else:
        return finding
    return replace(finding, level="note", message=said, advice=advice)


def _few_draws(ess: np.ndarray, names: Sequence[str]) -> list[Finding]:
    if not np.isfinite(ess).any():
        return []
    total = np.nansum(ess, axis=0)
    worst = int(total.argmin())
    if total[worst] >= _FEWEST_EFFECTIVE:
        return []
    return [
        Finding(
            "warning",
            "chains",
            f"All draws together are worth only {total[worst]:.0f} independent ones for {names[worst]}.",
            f"Take more draws: reliable means and intervals need at least {_FEWEST_EFFECTIVE}.",
            {"ess": float(total[worst])},
        )
    ]


@final
class ChainCheck(Check):
    """Whether the chains of the shards mixed, accepted enough and did not diverge."""

    name = "chains"

    def __call__(self, evidence: Evidence) -> Outcome:
        found = diagnose(
            evidence.chains, evidence.acceptance, evidence.divergences, evidence.names, evidence.remedies
        )
        return Outcome(found.findings, {"ess": found.ess, "r_hat": found.r_hat})
