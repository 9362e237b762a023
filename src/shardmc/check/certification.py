"""Certify a result: gradients at some of its draws, or at more. Polish it: remove the errors that were measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from shardmc.check.advice import ANY, Remedies
from shardmc.check.certificate import Certificate, Certify, certify, choose, polish
from shardmc.check.check import Check, Evidence, Outcome, Score
from shardmc.check.measured import joined_noise, rows_suffice
from shardmc.check.verdict import off_advice
from shardmc.types import Finding, Gradients, Mode

_MOST_DRAWS = 20_000
"""The most draws, evenly over the shards, that the certificate uses. Their noise is 0.007 sd, far below its bounds."""


@final
class CertificateCheck(Check):
    """How far the mean and the spread of the draws are from those of the posterior."""

    name = "certificate"
    reads_rows = True

    def applies(self, evidence: Evidence) -> bool:
        some = bool(np.isfinite(evidence.theta).all(axis=1).any())
        return evidence.certify is not None and evidence.located is not None and some

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
            remedies=evidence.remedies,
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
    remedies: Remedies = ANY,
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
            row_noise=joined_noise(found),
            remedies=remedies,
        )

    certificate = None
    for count in options.stages(len(some) - len(used)):
        taken = np.searchsorted(some, np.concatenate([used, at]))
        more = choose(theta[some], None if shard is None else shard[some], count - len(at), rng, taken)
        at, points = np.concatenate([at, some[more]]), theta[some[more]]
        found = [*found, _precise(score(points), points, mode, options)]
        certificate = look(some)
        if certificate.remedy == "draws" and len(every) > len(some):
            certificate = look(every)
        if certificate.remedy != "gradients":
            break
    assert certificate is not None
    return certificate, at


def _precise(found: Gradients, points: np.ndarray, mode: Mode, options: Certify) -> Gradients:
    """These gradients, or gradients of more rows as long as a sample of the rows leaves too much uncertain."""
    while options.rows == "auto" and found.noise is not None and found.more is not None:
        finite = np.isfinite(found.values).all(axis=1)
        if not finite.any() or rows_suffice(found.noise[:, finite], points[finite], mode, options.bounds):
            break
        found = found.more()
    return found


def verdict_findings(certificate: Certificate) -> list[Finding]:
    """What the verdict adds to the findings: nothing if it is "within"."""
    if certificate.verdict == "within":
        return []
    level = "error" if certificate.verdict == "off" else "warning"
    return [Finding(level, "certificate", certificate.sentence, certificate.advice)]


_TIMES = {1: "once", 2: "twice", 3: "three times", 4: "four times", 5: "five times"}
_UNKNOWN = 0.5
"""A ratio with a larger standard error is not reported."""


@dataclass(frozen=True, eq=False)
class Polished:
    """What polishing did to draws."""

    before: Certificate
    """The certificate of the draws as they were combined."""
    rounds: int
    """The number of corrections applied. With 0 the draws are unchanged."""
    sentence: str

    def to_dict(self) -> dict[str, object]:
        """Lists, numbers and strings, for JSON."""
        return {"before": self.before.to_dict(), "rounds": self.rounds, "sentence": self.sentence}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Polished:
        """What `to_dict` wrote."""
        return Polished(Certificate.from_dict(stored["before"]), stored["rounds"], stored["sentence"])


def polish_draws(
    values: np.ndarray,
    certificate: Certificate,
    again: Callable[[np.ndarray], Certificate | None],
    remedies: Remedies = ANY,
) -> tuple[np.ndarray, Certificate, Polished]:
    """Polish draws until they are within bounds, or polishing no longer helps.

    If the posterior is skewed, one correction removes only part of a large error, so a few may be needed. A
    correction that does not improve a new certificate is undone.

    Parameters
    ----------
    values
        Combined draws, (draw, dim).
    certificate
        Their certificate.
    again
        Certifies draws at points that no earlier certificate used. Returns None if too few are left.
    remedies
        What the caller can change if polishing is not enough.

    Returns
    -------
    values
        The draws, polished or unchanged.
    certificate
        Their certificate.
    polished
        What was done.

    Examples
    --------
    >>> from shardmc.check import certify, choose
    >>> from shardmc.types import Mode
    >>> rng = np.random.default_rng(0)
    >>> mode = Mode(np.zeros(1), np.eye(1), 0.0, 1.0)
    >>> def check(draws):
    ...     chosen = choose(draws, None, 100, rng)
    ...     return certify(draws, chosen, -draws[chosen], mode, ["a"], rng=rng)
    >>> draws = 2 * rng.normal(size=(10_000, 1)) + 1
    >>> polish_draws(draws, check(draws), check)[2].sentence
    'Polished once: the largest error of a mean went from 1.01 to 0.00 sd, the worst ratio of sds from 2.00 to 1.00.'
    """
    before, rounds, halted = certificate, 0, ""
    while rounds == 0 or (rounds < max(_TIMES) and _is_worth_more(certificate)):
        if not certificate.correctable:
            halted = "the certificate cannot tell what is wrong with the draws"
            break
        moved = polish(values, certificate)
        fresh = again(moved)
        if fresh is None:
            halted = "there are too few draws for a second certificate at other draws"
            break
        if not _is_better(fresh, certificate):
            halted = "the corrected draws are not better"
            break
        values, certificate, rounds = moved, fresh, rounds + 1
    if rounds and certificate.verdict == "off":
        left = replace(remedies, options=remedies.options - {"polish"})
        certificate = replace(certificate, advice=f"Polishing was not enough. {off_advice(left)}")
    return values, certificate, Polished(before, rounds, _sentence(before, certificate, rounds, halted))


def _size(certificate: Certificate) -> float:
    """The largest measured error relative to its bound, infinite if nothing was measured."""
    bounds = certificate.bounds
    sizes = [
        *np.abs(certificate.mean_error) / bounds.mean,
        *np.abs(np.log(certificate.sd_ratio)) / bounds.sd,
        certificate.shifted.value / bounds.combination,
        abs(np.log(certificate.widest.value)) / bounds.combination,
        abs(np.log(certificate.narrowest.value)) / bounds.combination,
    ]
    return float(np.nan_to_num(sizes, nan=np.inf).max())


def _is_worth_more(certificate: Certificate) -> bool:
    """Whether another correction may help: what is left may be an error, and not only Monte Carlo noise."""
    return certificate.verdict != "within" and _size(certificate) > 0.5


def _is_better(fresh: Certificate, old: Certificate) -> bool:
    """Whether the new draws are within bounds, or closer to them than the old draws."""
    return fresh.verdict == "within" or (old.verdict != "within" and _size(fresh) < _size(old))


def _sentence(before: Certificate, after: Certificate, rounds: int, halted: str) -> str:
    if not rounds:
        return f"Polishing cannot help: {halted}. The draws are unchanged."
    means = [float(np.abs(c.mean_error).max()) for c in (before, after)]
    text = f"Polished {_TIMES[rounds]}: the largest error of a mean went from {means[0]:.2f} to {means[1]:.2f} sd"
    if all((c.sd_ratio_se < _UNKNOWN).all() for c in (before, after)):
        ratios = [float(c.sd_ratio[np.abs(np.log(c.sd_ratio)).argmax()]) for c in (before, after)]
        text += f", the worst ratio of sds from {ratios[0]:.2f} to {ratios[1]:.2f}"
    return text + "."
