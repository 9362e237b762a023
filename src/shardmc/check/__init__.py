"""Checks: how wrong the result is, whether the shards agree, whether the chains mixed."""

from shardmc.check.agreement import Agreement, AgreementCheck, agree
from shardmc.check.certificate import Certificate, Certify, certify, certify_options, choose, polish
from shardmc.check.certification import (
    CertificateCheck,
    Polished,
    certify_draws,
    polish_draws,
    verdict_findings,
)
from shardmc.check.chains import ChainCheck, ChainDiagnostics, beside_certificate, diagnose
from shardmc.check.check import Check, Evidence, Outcome, Score, ordered
from shardmc.check.verdict import Bounds

__all__ = [
    "CHECKS",
    "Agreement",
    "Bounds",
    "Certificate",
    "Certify",
    "ChainDiagnostics",
    "Check",
    "Evidence",
    "Outcome",
    "Polished",
    "Score",
    "agree",
    "beside_certificate",
    "certify",
    "certify_draws",
    "certify_options",
    "choose",
    "diagnose",
    "ordered",
    "polish",
    "polish_draws",
    "verdict_findings",
]

CHECKS: tuple[Check, ...] = (ChainCheck(), AgreementCheck(), CertificateCheck())
"""The checks that every run goes through."""
