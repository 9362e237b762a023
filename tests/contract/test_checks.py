"""The contract of all checks: each is silent on a good run, finds what it is for, and says it with numbers."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from shardmc.check import CHECKS, Certify, Evidence
from shardmc.types import Finding, Gradients, Located, Mode

SHARDS, DRAWS, DIM = 10, 400, 2


def good() -> Evidence:
    """Draws of a standard normal posterior, from shards that scatter as random ones do."""
    rng = np.random.default_rng(0)
    modes = rng.normal(size=(SHARDS, DIM)) * np.sqrt(SHARDS - 1)
    noise = rng.normal(size=(SHARDS, 1, DRAWS, DIM))
    located = Located(
        Mode(np.zeros(DIM), np.eye(DIM), 0.0, 1.0),
        modes,
        np.tile(np.eye(DIM), (SHARDS, 1, 1)),
        np.ones(SHARDS, bool),
    )
    return Evidence(
        names=["a", "b"],
        chains=list(noise + modes[:, None, None]),
        acceptance=np.full(SHARDS, 0.8),
        divergences=np.zeros(SHARDS, int),
        shares=np.full(SHARDS, 1 / SHARDS),
        sizes=np.full(SHARDS, 1_000),
        located=located,
        theta=noise.reshape(-1, DIM),
        shard=np.repeat(np.arange(SHARDS), DRAWS),
        score=lambda points: Gradients(-points),
        effective=lambda: np.full(DIM, float(SHARDS * DRAWS)),
        rng=np.random.default_rng(1),
        certify=Certify(),
    )


def with_divergences(evidence: Evidence) -> Evidence:
    return replace(evidence, divergences=np.arange(SHARDS))


def with_an_outlier(evidence: Evidence) -> Evidence:
    modes = evidence.located.shard_modes.copy()
    modes[3] += 50
    return replace(evidence, located=replace(evidence.located, shard_modes=modes))


def with_shifted_draws(evidence: Evidence) -> Evidence:
    return replace(evidence, theta=evidence.theta + 0.5)


SPOILED = {
    "chains": with_divergences,
    "agreement": with_an_outlier,
    "certificate": with_shifted_draws,
}
"""One row per check: what it is there to find."""


def test_every_check_has_its_row():
    assert {check.name for check in CHECKS} == set(SPOILED)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
class TestEveryCheck:
    def test_is_silent_on_a_good_run(self, check):
        assert check.applies(good())
        assert list(check(good()).findings) == []

    def test_finds_what_it_is_for_and_says_it_with_numbers(self, check):
        outcome = check(SPOILED[check.name](good()))
        assert outcome.findings
        for finding in outcome.findings:
            assert isinstance(finding, Finding)
            assert finding.check == check.name
            assert finding.level in ("note", "warning", "error")
            assert any(character.isdigit() for character in finding.message)
            assert finding.advice
            json.dumps(dict(finding.values))

    def test_adds_columns_with_one_entry_per_shard(self, check):
        assert all(len(column) == SHARDS for column in check(good()).per_shard.values())

    def test_does_not_touch_the_evidence(self, check):
        evidence = good()
        before = evidence.theta.copy(), [chain.copy() for chain in evidence.chains]
        check(evidence)
        np.testing.assert_array_equal(evidence.theta, before[0])
        np.testing.assert_array_equal(evidence.chains, before[1])


def test_advice_for_one_shard_can_be_followed():
    (check,) = (check for check in CHECKS if check.name == "certificate")
    off = with_shifted_draws(good())
    (several,) = check(off).findings
    (one,) = check(replace(off, shares=np.ones(1), shard=np.zeros_like(off.shard))).findings
    assert "fewer shards" in several.advice
    assert "fewer shards" not in one.advice
    assert "more draws" in one.advice


def test_advice_names_only_options_that_the_call_has():
    """What each call lacks is in no advice; a call with all options gets it."""
    off = with_shifted_draws(good())
    (check,) = (check for check in CHECKS if check.name == "certificate")
    (everything,) = check(off).findings
    (appended,) = check(replace(off, options=frozenset({"shards", "keep"}))).findings
    (sites,) = check(replace(off, options=frozenset())).findings
    assert "polish" in everything.advice
    assert "polish" not in appended.advice
    assert "fewer shards" in appended.advice
    assert not any(word in sites.advice for word in ("polish", "keep", "fewer shards", "stratify"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_no_advice_is_about_options_of_other_calls(check):
    evidence = replace(SPOILED[check.name](good()), options=frozenset())
    for finding in check(evidence).findings:
        assert not re.search(r"polish|stratify|keep=|fewer shards", finding.advice)
        assert finding.advice == finding.advice.strip()
