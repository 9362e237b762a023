"""What a check is: it reads what a run has found, and returns findings with the numbers behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shardmc.check.certificate import Certificate, Certify
from shardmc.types import Finding, Gradients, Located

Score = Callable[[np.ndarray], Gradients]
"""Gradients of the log posterior of all rows at points (point, dim)."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a check may look at."""

    names: Sequence[str]
    chains: Sequence[np.ndarray]  # one (chain, draw, dim) array per shard, before combining
    acceptance: np.ndarray  # (shard,)
    divergences: np.ndarray  # (shard,)
    sizes: np.ndarray  # (shard,) rows
    located: Located | None
    theta: np.ndarray  # (draw, dim) combined draws; NaN rows where a draw left the support
    shard: np.ndarray | None  # (draw,) the shard each of them came from
    score: Score
    effective: Callable[[], np.ndarray]
    """Effective number of all draws, (dim,); waits for the check of the chains."""
    rng: np.random.Generator
    certify: Certify | None
    """Effort and bounds of the certificate; None for no certificate."""


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
    """Whether it asks for gradients. Checks that do not run meanwhile, in another thread."""

    def applies(self, evidence: Evidence) -> bool:
        """Whether there is anything to look at."""
        return True

    @abstractmethod
    def __call__(self, evidence: Evidence) -> Outcome:
        """Look at the evidence."""
