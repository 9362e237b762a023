"""Checks: how wrong the result is, whether the shards agree, how the chains went."""

from shardmc.check.agreement import Agreement, agree
from shardmc.check.certificate import Bounds, Certificate, certify, choose, polish
from shardmc.check.chains import ChainDiagnostics, diagnose
from shardmc.check.effort import Certify, certify_options
from shardmc.check.findings import ordered
from shardmc.check.polishing import Polished, polish_draws

__all__ = [
    "Agreement",
    "Bounds",
    "Certificate",
    "Certify",
    "ChainDiagnostics",
    "Polished",
    "agree",
    "certify",
    "certify_options",
    "choose",
    "diagnose",
    "ordered",
    "polish",
    "polish_draws",
]
