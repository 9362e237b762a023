"""The certificate of a result: gradients at some of its draws, at more of them where these cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from shardmc.check.certificate import Certificate, Certify, certify, choose
from shardmc.check.check import Check, Evidence, Outcome, Score
from shardmc.types import Finding, Gradients, Mode

_MOST_DRAWS = 20_000
"""The most draws, evenly over the shards, that the certificate uses. Their noise is 0.007 sd, far below its bounds."""


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

    None of them is in `exclude`. `effective` returns the effective number of draws of each coordinate; it is called
    after the gradients. If these cannot tell and more would help, more are computed, as far as the options allow.
    """
    every = np.flatnonzero(np.isfinite(theta).all(axis=1))
    some = every
    if len(every) > _MOST_DRAWS:
        some = every[np.linspace(0, len(every) - 1, _MOST_DRAWS).astype(int)]
    used = np.empty(0, dtype=int) if exclude is None else exclude
    at, found = np.empty(0, dtype=int), list[Gradients]()
    options = Certify() if options is None else options

    def look(draws: np.ndarray) -> Certificate:
        """The certificate of these draws, from the gradients so far."""
        ess = effective()
        noise = [each.noise for each in found if each.noise is not None]
        return certify(
            theta[draws],
            np.searchsorted(draws, at),
            np.concatenate([each.values for each in found]),
            mode,
            names,
            ess=ess if np.isfinite(ess).all() and (ess > 0).all() else None,
            bounds=options.bounds,
            rng=rng,
            shard=None if shard is None else shard[draws],
            row_noise=np.concatenate(noise, axis=1) if noise else None,
        )

    certificate = None
    for count in options.stages(len(some) - len(used)):
        taken = np.searchsorted(some, np.concatenate([used, at]))
        more = choose(theta[some], None if shard is None else shard[some], count - len(at), rng, taken)
        at, found = np.concatenate([at, some[more]]), [*found, score(theta[some[more]])]
        certificate = look(some)
        if certificate.remedy == "draws" and len(every) > len(some):
            certificate = look(every)
        if certificate.remedy != "gradients":
            break
    assert certificate is not None
    return certificate, at


def verdict_findings(certificate: Certificate) -> list[Finding]:
    """What the verdict adds to the findings: nothing if it is "within"."""
    if certificate.verdict == "within":
        return []
    level = "error" if certificate.verdict == "off" else "warning"
    return [Finding(level, "certificate", certificate.sentence, certificate.advice)]
