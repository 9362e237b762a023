"""What a check is: it reads what a run has found, and returns findings with the numbers behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shardmc.check.advice import ANY, Remedies
from shardmc.check.certificate import Certificate, Certify
from shardmc.types import Finding, Gradients, Located

Score = Callable[[np.ndarray], Gradients]
"""Gradients of the log posterior of all rows at points (point, dim)."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a check may use."""

    names: Sequence[str]
    chains: Sequence[np.ndarray]  # one (chain, draw, dim) array per shard, before combining
    acceptance: np.ndarray  # (shard,)
    divergences: np.ndarray  # (shard,)
    shares: np.ndarray  # (shard,), sums to 1
    sizes: np.ndarray  # (shard,) rows
    located: Located | None
    theta: np.ndarray  # (draw, dim) combined draws; NaN rows for draws outside the support
    shard: np.ndarray | None  # (draw,) the shard each of them came from
    score: Score
    effective: Callable[[], np.ndarray]
    """Effective number of all draws, (dim,); waits for the check of the chains."""
    rng: np.random.Generator
    certify: Certify | None
    """Effort and bounds of the certificate; None for no certificate."""
    options: frozenset[str] = ANY.options
    """The options of the call that advice may name."""
    shuffled: bool | None = None
    """Whether rows went to shards at random; None if that is not known."""

    @property
    def remedies(self) -> Remedies:
        """What the caller can change."""
        return Remedies(self.options, one_shard=len(self.shares) == 1)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a check found."""

    findings: Sequence[Finding]
    per_shard: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Columns for `posterior.shards`."""
    certificate: Certificate | None = None
    certified_at: np.ndarray | None = None
    """The draws at which the certificate took its gradients."""


class Check(ABC):
    """Looks for one kind of problem. Pure: arrays in, findings out."""

    name: ClassVar[str]
    """`Finding.check` of its findings."""
    reads_rows: ClassVar[bool] = False
    """Whether it needs gradients. Checks that do not need them run at the same time, in another thread."""

    def applies(self, evidence: Evidence) -> bool:
        """Whether there is anything to check."""
        return True

    @abstractmethod
    def __call__(self, evidence: Evidence) -> Outcome:
        """Check the evidence."""


_LEVELS = {"error": 0, "warning": 1, "note": 2}
_CHECKS = {"certificate": 0, "agreement": 1, "chains": 2}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes. Within a level: certificate, shard agreement, chains, the rest.

    Examples
    --------
    >>> found = [Finding("note", "chains", "c"), Finding("error", "chains", "b"), Finding("error", "certificate", "a")]
    >>> [finding.message for finding in ordered(found)]
    ['a', 'b', 'c']
    """
    return sorted(findings, key=lambda f: (_LEVELS[f.level], _CHECKS.get(f.check, len(_CHECKS))))
