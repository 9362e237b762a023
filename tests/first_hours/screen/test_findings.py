"""Findings can be followed, and do not contradict each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import shardmc


def counts(rng: np.random.Generator, noise: float) -> pd.DataFrame:
    """Counts that vary more than a Poisson model allows."""
    rows = pd.DataFrame({"x": rng.normal(size=6_000)})
    rows["y"] = rng.poisson(np.exp(1 + 0.3 * rows["x"] + noise * rng.normal(size=6_000)))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_that_went_to_shards_at_random_are_not_to_be_shuffled_again(shuffle):
    rows = counts(np.random.default_rng(0), 1.5)
    posterior = shardmc.glm(
        "y ~ x",
        rows,
        "poisson",
        shards=20,
        draws=400,
        check=False,
        precision="single",
        certify=False,
        shuffle=shuffle,
    )
    advice = " ".join(f.message + " " + f.advice for f in posterior.findings if f.check == "agreement")
    assert "overdispersion" in advice
    assert ("shuffle=True" in advice) is not shuffle
    assert ("The rows went to shards at random" in advice) is shuffle


def test_a_note_about_repeated_draws_never_says_up_to_1_times():
    from shardmc.combiners.moments import pool

    rng = np.random.default_rng(0)
    _, _, notes = pool([rng.normal(size=(1_000, 1)), rng.normal(size=(10, 1))], np.array([0.97, 0.03]))
    assert notes == (
        "Draws of shard 1 were repeated, each up to 3 times, to give those shards their share of the pooled draws.",
    )


def few_steps(step_size=0.05):
    """A random walk that has not reached the posterior."""
    return shardmc.RandomWalk(warmup=0, thin=1, step_size=step_size, chains=4)


@pytest.mark.slow
def test_one_shard_gets_no_advice_about_fewer_shards(table):
    posterior = shardmc.glm("y ~ x", table, shards=1, draws=200, sampler=few_steps())
    assert posterior.certificate.verdict != "within"
    for finding in posterior.findings:
        assert "fewer shards" not in finding.advice
        assert "of the shards" not in finding.advice
        assert "1 of 1" not in finding.message
        assert "shard 0" not in finding.message


@pytest.mark.slow
def test_one_shard_has_one_r_hat(table):
    """The finding, the summary, the shards' table and ArviZ show the same number."""
    posterior = shardmc.glm("y ~ 0 + x", table, shards=1, draws=400, sampler=few_steps())
    (finding,) = [f for f in posterior.findings if "not mixed" in f.message]
    name = finding.message.partition("R-hat of ")[2].partition(" is ")[0]
    shown_in_summary = posterior.summary().loc[name, "r_hat"]
    assert finding.values["r_hat"] == pytest.approx(shown_in_summary, abs=0.005)
    assert posterior.shards.r_hat.max() == pytest.approx(shown_in_summary, abs=0.005)
    assert posterior.tree["posterior"][name].shape == (4, 100)


@pytest.mark.slow
def test_several_chains_of_several_shards_are_chains(table):
    posterior = shardmc.glm(
        "y ~ x", table, shards=5, draws=400, sampler="hmc", check=False, precision="single"
    )
    assert posterior.chains == (20, 20)
    assert posterior.summary()["r_hat"].max() < 1.2


@pytest.mark.slow
def test_within_stands_beside_no_warning_about_chains(table):
    slow = few_steps(step_size=0.3)
    posterior = shardmc.glm("y ~ x", table, shards=8, draws=12_000, sampler=slow)
    assert posterior.certificate.verdict == "within"
    (finding,) = [f for f in posterior.findings if f.check == "chains"]
    assert finding.level == "note"
    assert "The certificate finds means and sds within bounds all the same." in finding.message


def test_a_finding_about_chains_reads_differently_beside_within():
    from shardmc.check import beside_certificate, diagnose

    rng = np.random.default_rng(0)
    chains = [rng.normal(size=(1, 200, 2)) for _ in range(10)]
    chains[3][0, :, 1] += np.linspace(0, 5, 200)
    findings = diagnose(chains, np.full(10, 0.8), np.zeros(10), ["a", "b"]).findings
    assert beside_certificate(findings, within=False) == findings
    (note,) = beside_certificate(findings, within=True)
    assert note.level == "note"
    assert "have not mixed" not in note.message
    assert "within bounds" in note.message


def test_a_logarithm_is_never_proposed_as_an_exposure():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"months": rng.integers(0, 12, 1_000), "x": rng.normal(size=1_000)})
    rows["claims"] = rng.poisson(0.1 * rows["months"])
    with pytest.raises(shardmc.ShardmcError) as refused:
        shardmc.glm("claims ~ x", rows, "poisson", offset="np.log(months)")
    assert "exposure" not in str(refused.value)
    assert "where 'months' is zero or below, it has no logarithm" in str(refused.value)
    with pytest.raises(shardmc.ShardmcError, match="give exposure='months' instead"):
        shardmc.glm("claims ~ x", rows, "poisson", exposure="np.log(months)")
