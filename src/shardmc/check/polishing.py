"""Polishing: correct the errors that a certificate measured, certify again at other draws, repeat while it helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardmc.check.certificate import Certificate, polish

_TIMES = {1: "once", 2: "twice", 3: "three times", 4: "four times", 5: "five times"}
_UNKNOWN = 0.5
"""A ratio with a larger standard error is not reported."""
_NOT_ENOUGH = (
    "Polishing was not enough. Use fewer shards, or keep more rows in every shard (a smaller keep). The check of shard "
    "agreement may name the cause."
)


@dataclass(frozen=True, eq=False)
class Polished:
    """What polishing did to draws."""

    before: Certificate
    """The certificate of the draws as they were combined."""
    rounds: int
    """The number of corrections applied. With 0 the draws are unchanged."""
    sentence: str

    def to_dict(self) -> dict[str, Any]:
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
        certificate = replace(certificate, advice=_NOT_ENOUGH)
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
    """Whether the rest may be an error, and not only Monte Carlo noise."""
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
