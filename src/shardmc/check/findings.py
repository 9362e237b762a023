"""Findings of all checks, most serious first."""

from __future__ import annotations

from collections.abc import Iterable

from shardmc.types import Finding

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
