"""Findings of all checks in the order of their importance."""

from __future__ import annotations

from collections.abc import Iterable

from shardmc.types import Finding

_ORDER = {"error": 0, "warning": 1, "note": 2}


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes; within a level in the order of the checks."""
    return sorted(findings, key=lambda f: _ORDER[f.level])
