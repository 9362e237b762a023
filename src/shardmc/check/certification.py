"""The certificate of a result: gradients at some of its draws, at more of them where these cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from shardmc.check.certificate import Certificate, Certify, certify, choose
from shardmc.check.check import Check, Evidence, Outcome, Score
from shardmc.types import Finding, Mode

_MOST_DRAWS = 20_000
"""Draws, evenly over the shards, that the certificate looks at: their own noise is 0.007 sd, far below its bounds."""


@final
class CertificateCheck(Check):
    """How far the mean and the spread of the draws are from those of the posterior."""

    name = "certificate"
    reads_rows = True

    def applies(self, evidence: Evidence) -> bool:
        return evidence.certify is not None and evidence.located is not None

    def __call__(self, evidence: Evidence) -> Outcome:
        assert evidence.located is not None
        certificate, chosen = certify_draws(
            evidence.names,
            evidence.score,
            evidence.located.mode,
            evidence.theta,
            evidence.shard,
            evidence.rng,
            evidence.effective,
            options=evidence.certify,
        )
        return Outcome(verdict_findings(certificate), certificate=certificate, certified_at=chosen)


def certify_draws(
    names: Sequence[str],
    score: Score,
    mode: Mode,
    theta: np.ndarray,
    shard: np.ndarray | None,
    rng: np.random.Generator,
    effective: Callable[[], np.ndarray],
    exclude: np.ndarray | None = None,
    options: Certify | None = None,
) -> tuple[Certificate, np.ndarray]:
    """The certificate of draws (draw, dim), and the indices of the draws at which it took gradients.

    None of them is in `exclude`. `effective` says how many draws the result is worth, per coordinate; it is asked
    after the gradients. If these cannot tell and more would help, more are taken, as far as the options allow.
    """
    inside = np.flatnonzero(np.isfinite(theta).all(axis=1))
    if len(inside) > _MOST_DRAWS:
        inside = inside[np.linspace(0, len(inside) - 1, _MOST_DRAWS).astype(int)]
    theta, shard = theta[inside], None if shard is None else shard[inside]
    barred = np.empty(0, dtype=int) if exclude is None else np.searchsorted(inside, exclude)
    chosen, scores, certificate = np.empty(0, dtype=int), np.empty((0, theta.shape[1])), None
    options = Certify() if options is None else options
    for count in options.stages(len(theta) - len(barred)):
        more = choose(theta, shard, count - len(chosen), rng, np.concatenate([barred, chosen]))
        chosen, scores = np.concatenate([chosen, more]), np.concatenate([scores, score(theta[more])])
        ess = effective()
        known = ess if np.isfinite(ess).all() and (ess > 0).all() else None
        certificate = certify(
            theta, chosen, scores, mode, names, ess=known, bounds=options.bounds, rng=rng, shard=shard
        )
        if certificate.remedy != "gradients":
            break
    assert certificate is not None
    return certificate, inside[chosen]


def verdict_findings(certificate: Certificate) -> list[Finding]:
    """What the verdict adds to the findings: nothing if it is "within"."""
    if certificate.verdict == "within":
        return []
    level = "error" if certificate.verdict == "off" else "warning"
    return [Finding(level, "certificate", certificate.sentence, certificate.advice)]
