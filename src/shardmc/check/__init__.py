"""Checks: how wrong the result is, whether the shards agree, whether the chains mixed."""

from shardmc.check.agreement import Agreement, agree
from shardmc.check.certificate import Certificate, Certify, certify, certify_options, choose, polish
from shardmc.check.chains import ChainDiagnostics, diagnose
from shardmc.check.findings import ordered
from shardmc.check.polishing import Polished, polish_draws
from shardmc.check.verdict import Bounds

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
