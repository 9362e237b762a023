"""Do the shards agree? Their modes should scatter around the mode of all rows like those of random samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.check import special
from shardmc.check.advice import ANY, Remedies
from shardmc.check.check import Check, Evidence, Outcome
from shardmc.types import Finding, Located

LEVEL = 0.01
"""The chance that any shard of random rows is called an outlier."""

_MOST_SCATTER = 3.0
"""If the modes scatter more than this times as much as expected, the shards are not random samples of the rows."""
_NOTED_SCATTER = 1.5
"""Scatter of all shards, relative to its expectation, above which there is a finding."""
_MOST_SPREAD = 1.5
"""Influential rows may make the cube roots of Q spread this much more than those of chi^2."""
_NO_INFORMATION = 0.05
"""A shard with less curvature than this, relative to all rows, holds almost no information in that direction."""
_MOST_NAMED = 5
"""Shards that have a finding of their own, and parameters that a finding names."""

_BAD_FIT = (
    "the model fits badly: the rows depend on each other or vary more than it allows (overdispersion), and the "
    "posterior is too narrow"
)
_LOOK = {
    True: "Look at its rows: they may be corrupt, or have a rare level.",
    False: "Look at its rows: they may be corrupt, in file order, or have a rare level. Use shuffle=True.",
    None: "Look at its rows: they may be corrupt, or differ from those of the other shards.",
}
"""What to do about a shard, by whether rows went to shards at random."""
_STRATIFY = " The option stratify= spreads levels evenly over shards."
_WHY_SCATTERED = {
    True: f"The rows went to shards at random, so {_BAD_FIT}. Model what makes rows alike, for example with group "
    "terms, or use a family with a parameter for the spread, such as negative_binomial for counts.",
    False: f"Use shuffle=True, so that rows go to shards at random. If they are in random order already, {_BAD_FIT}.",
    None: f"Either the shards hold different kinds of rows, or {_BAD_FIT}.",
}
"""Why the modes of all shards scatter, by the same."""


@dataclass(frozen=True, eq=False)
class Agreement:
    """How far each shard disagrees with all rows, how informative it is, and what that means."""

    q: np.ndarray  # (shard,) about chi^2 with dim degrees of freedom; NaN without a mode
    outliers: np.ndarray  # shards beyond the family-wise level, worst first
    scatter: float
    """Typical q relative to its expectation: about 1 for random rows and a model that fits."""
    total: float
    """Sum of (1 - share) q over shards, about chi^2 with dim (shard - 1) degrees of freedom."""
    eigenvalues: np.ndarray  # (shard, 2) smallest and largest of L^-1 H_i L^-T, where H = L L^T
    uninformed: dict[str, int]
    """Parameters about which some shards hold almost no information, and the number of such shards."""
    findings: list[Finding]


def agree(
    located: Located,
    shares: np.ndarray,
    sizes: np.ndarray,
    names: Sequence[str],
    level: float = LEVEL,
    dispersion: float = 1.0,
    shuffled: bool | None = None,
    remedies: Remedies = ANY,
) -> Agreement:
    r"""Compare every shard's mode and curvature with those of all rows.

    The modes of random shards scatter around the mode of all rows with covariance H^-1 (1 / a_i - 1), so that

        Q_i = (theta_i - theta)^T H_i (theta_i - theta) / (1 / a_i - 1)

    is about chi^2 with d degrees of freedom. Q_i uses the shard's own curvature H_i instead of H: the mode of a small
    shard is far away where its curvature is small, and with H, Q_i would be far from chi^2. If the model fits badly,
    all Q_i are larger by one factor, and influential rows make their tail longer. So (Q_i / d)^(1/3), which is
    about normal, is compared with its median and spread over shards, unless these exceed what random rows give.

    Parameters
    ----------
    located
        Modes and curvatures of all rows and of the shards.
    shares
        The shards' shares of all rows, (shard,).
    sizes
        The number of rows of each shard, (shard,).
    names
        One name per parameter.
    level
        The chance that any shard of random rows is called an outlier.
    dispersion
        Expected Q_i / d, if it is known: the sum over rows of g_j^T H^-1 g_j / d, where g_j is the gradient of row j.
    shuffled
        Whether rows went to shards at random; None if that is not known. The advice depends on it.
    remedies
        What the caller can change. The advice names nothing else.

    Examples
    --------
    >>> from shardmc.types import Mode
    >>> rng = np.random.default_rng(0)
    >>> modes = np.sqrt(99) * rng.normal(size=(100, 2))
    >>> modes[17] += [100, 0]
    >>> mode, curvatures = Mode(np.zeros(2), np.eye(2), 0.0, 1.0), np.tile(np.eye(2), (100, 1, 1))
    >>> located = Located(mode, modes, curvatures, np.ones(100, bool))
    >>> agree(located, np.full(100, 0.01), np.full(100, 5000), ["a", "b"]).outliers.tolist()
    [17]
    """
    gaps = np.where(located.found[:, None], located.shard_modes - located.mode.theta, np.nan)
    curvatures = np.where(located.found[:, None, None], located.shard_curvatures, np.nan)
    variance = 1 / shares - 1
    variance[variance <= 1e-9] = np.inf  # a single shard holds all rows and agrees with them
    sds = np.sqrt(np.diag(np.linalg.inv(located.mode.curvature)))
    q = np.einsum("ki,kij,kj->k", gaps, curvatures, gaps) / variance
    moves = gaps / (sds * np.sqrt(variance)[:, None])
    scatter, p_values = _compared(q, gaps.shape[1], dispersion)
    outliers = np.flatnonzero(p_values < level / max(int(located.found.sum()), 1))
    outliers = outliers[np.argsort(-q[outliers])]
    # The share-weighted mean of the gaps is 0, so that the sum of a_i gap_i^T H_i gap_i is exact for few shards too.
    total, degrees = (
        float(np.nansum((1 - shares) * q)),
        float((1 - shares)[np.isfinite(q)].sum()) * len(names),
    )
    eigenvalues, uninformed = _information(located, names)
    findings = [
        *_missing(located, remedies),
        *_disagreement(outliers, q, moves, scatter, sizes, names, shuffled, remedies),
        *_scattered(outliers, special.chdtrc(max(degrees, 1.0), total / dispersion), scatter, shuffled),
        *_uninformed(uninformed, located.num_shards, remedies),
    ]
    return Agreement(q, outliers, scatter, total, eigenvalues, uninformed, findings)


def _compared(q: np.ndarray, dim: int, dispersion: float) -> tuple[float, np.ndarray]:
    """Typical q relative to its expectation, and the p-value of each q compared with the others, (shard,)."""
    known = q[np.isfinite(q)]
    if not len(known):
        return np.nan, np.full(q.shape, np.nan)
    # Wilson and Hilferty: the cube root of chi^2_d / d is about normal with this mean and variance.
    mean, sd = 1 - 2 / (9 * dim), np.sqrt(2 / (9 * dim))
    roots = np.cbrt(q / (dim * dispersion))
    middle = float(np.nanmedian(roots))
    scatter = (middle / mean) ** 3
    if scatter > _MOST_SCATTER:  # not random samples, so the others are not a reference
        return scatter, special.ndtr((mean - roots) / sd)
    scale = max(middle / mean, 1.0)
    spread = 1.4826 * float(np.nanmedian(np.abs(roots - middle)))
    spread = float(np.clip(spread, sd * scale, _MOST_SPREAD * sd * scale))
    return scatter, special.ndtr((mean * scale - roots) / spread)


def _information(located: Located, names: Sequence[str]) -> tuple[np.ndarray, dict[str, int]]:
    """Extreme eigenvalues of the relative curvatures, (shard, 2), and the parameters with uninformed shards."""
    eigenvalues = np.full((located.num_shards, 2), np.nan)
    found = np.flatnonzero(located.found)
    if not len(found):
        return eigenvalues, {}
    basis = located.mode.frame.basis
    relative, vectors = np.linalg.eigh(basis.T @ located.shard_curvatures[found] @ basis)
    eigenvalues[found] = relative[:, [0, -1]]
    weak = relative[:, 0] < _NO_INFORMATION
    # A parameter's variance in a shard relative to its variance in all rows.
    variances = np.sum((basis @ vectors[weak]) ** 2 / np.maximum(relative[weak, None], 1e-12), axis=2)
    least = np.argmax(variances / np.sum(basis**2, axis=1), axis=1)
    counts = np.bincount(least, minlength=len(names))
    return eigenvalues, {names[int(k)]: int(counts[k]) for k in np.argsort(-counts) if counts[k]}


def _missing(located: Located, remedies: Remedies) -> list[Finding]:
    missing = np.flatnonzero(~located.found)
    if not len(missing):
        return []
    return [
        Finding(
            "warning",
            "agreement",
            f"{len(missing)} of {located.num_shards} shards {'has' if len(missing) == 1 else 'have'} no mode.",
            remedies.use("shards", "use a stronger prior", "keep"),
            {"shards": missing.tolist()},
        )
    ]


def _disagreement(
    outliers: np.ndarray,
    q: np.ndarray,
    moves: np.ndarray,
    scatter: float,
    sizes: np.ndarray,
    names: Sequence[str],
    shuffled: bool | None,
    remedies: Remedies,
) -> list[Finding]:
    """Name the shards that disagree, or report that many do."""
    # As `_compared` expects it: shards that are not random samples are compared with what random ones would give.
    expected = len(names) * (1.0 if scatter > _MOST_SCATTER else max(scatter, 1.0))
    look = _LOOK[shuffled] + (_STRATIFY if shuffled and remedies.has("stratify") else "")
    found = [
        Finding(
            "warning",
            "agreement",
            f"Shard {i} ({int(sizes[i]):,} rows) disagrees with all rows (Q = {q[i]:,.0f}, expected about "
            f"{expected:,.0f}), mostly in {_moved(moves[i], names)}.",
            look,
            {"shard": int(i), "q": float(q[i]), "rows": int(sizes[i])},
        )
        for i in outliers[:_MOST_NAMED].tolist()
    ]
    if len(outliers) <= _MOST_NAMED:
        return found
    typical = np.sqrt(np.nanmean(moves**2, axis=0))
    many = Finding(
        "warning",
        "agreement",
        f"{len(outliers)} of {len(q)} shards disagree with all rows, mostly in {_moved(typical, names)}: "
        f"their modes scatter {scatter:,.1f} times as much as those of random samples.",
        _WHY_SCATTERED[shuffled],
        {"shards": outliers.tolist(), "scatter": scatter},
    )
    return [many, *found]


def _moved(moves: np.ndarray, names: Sequence[str]) -> str:
    """Up to three parameters that moved most: those at least half as far as the first."""
    size = np.abs(moves)
    return ", ".join(names[int(k)] for k in np.argsort(-size)[:3] if size[k] >= size.max() / 2)


def _scattered(outliers: np.ndarray, p_value: float, scatter: float, shuffled: bool | None) -> list[Finding]:
    """Report that all shards scatter too much although no single one stands out."""
    if len(outliers) > _MOST_NAMED or not scatter > _NOTED_SCATTER or p_value > LEVEL / 10:
        return []
    return [
        Finding(
            "warning" if scatter > _MOST_SCATTER else "note",
            "agreement",
            f"The modes of the shards scatter {scatter:.1f} times as much as the model predicts.",
            _WHY_SCATTERED[shuffled],
            {"scatter": scatter},
        )
    ]


def _uninformed(uninformed: dict[str, int], num_shards: int, remedies: Remedies) -> list[Finding]:
    if not uninformed:
        return []
    count = sum(uninformed.values())
    named = ", ".join(
        f"{name} ({shards} shard{'s' if shards > 1 else ''})"
        for name, shards in list(uninformed.items())[:_MOST_NAMED]
    )
    return [
        Finding(
            "warning" if count > num_shards / 20 else "note",
            "agreement",
            f"{count} of {num_shards} shards {'holds' if count == 1 else 'hold'} almost no information about some "
            f"parameter: {named}.",
            remedies.use("shards", "stratify", "keep", "use a stronger prior"),
            {"parameters": dict(uninformed)},
        )
    ]


@final
class AgreementCheck(Check):
    """Whether the shards agree with each other."""

    name = "agreement"

    def applies(self, evidence: Evidence) -> bool:
        return evidence.located is not None and evidence.located.num_shards > 1

    def __call__(self, evidence: Evidence) -> Outcome:
        assert evidence.located is not None
        found = agree(
            evidence.located,
            evidence.shares,
            evidence.sizes,
            evidence.names,
            shuffled=evidence.shuffled,
            remedies=evidence.remedies,
        )
        return Outcome(found.findings, {"disagreement": found.q})
