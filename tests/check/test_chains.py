"""Chain diagnostics: equal to arviz-stats, and findings for chains that went wrong only."""

import numpy as np
import pytest
from arviz_stats.base.array import array_stats

from shardmc.check import diagnose
from shardmc.check.mixing import effective_size, split_r_hat

NAMES = ["a", "b"]


def autoregressive(shape: tuple[int, ...], correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Stationary chains along the last axis."""
    noise = rng.normal(size=shape)
    series = noise.copy()
    for t in range(1, shape[-1]):
        series[..., t] = correlation * series[..., t - 1] + np.sqrt(1 - correlation**2) * noise[..., t]
    return series


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.0, 0.5, 0.97])
@pytest.mark.parametrize("draws", [8, 9, 10, 11, 30, 101])
@pytest.mark.parametrize("chains", [1, 2, 5])
def test_equal_to_arviz_stats(chains, draws, correlation):
    rng = np.random.default_rng([chains, draws])
    series = autoregressive((6, chains, draws), correlation, rng)
    assert np.allclose(effective_size(series), array_stats.ess(series, method="mean"), rtol=1e-9)
    if chains > 1:
        assert np.allclose(split_r_hat(series), array_stats.rhat(series), rtol=1e-9)


def test_rejected_proposals_make_ties():
    rng = np.random.default_rng(0)
    series = np.round(autoregressive((4, 2, 60), 0.5, rng), 1)
    assert np.allclose(split_r_hat(series), array_stats.rhat(series), rtol=1e-9)
    assert np.allclose(effective_size(np.zeros((1, 2, 60))), 120)


def test_effective_size_gives_the_mcse_of_arviz():
    rng = np.random.default_rng(1)
    chains = [autoregressive((2, 2, 100), 0.3, rng).transpose(0, 2, 1) for _ in range(3)]
    result = diagnose(chains, np.full(3, 0.8), np.zeros(3), NAMES)
    expected = [array_stats.mcse(c, chain_axis=0, draw_axis=1) for c in chains]
    sds = [c.std(axis=(0, 1), ddof=1) for c in chains]
    assert np.allclose(sds / np.sqrt(result.ess), expected, rtol=1e-6)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_many_short_chains_that_mix_are_not_named(correlation):
    rng = np.random.default_rng(2)
    # The limit is passed with probability 0.01 a run; 6 of 20 runs have probability 3e-8.
    named = 0
    for _ in range(20):
        chains = list(np.moveaxis(autoregressive((200, 1, 2, 80), correlation, rng), 2, 3))
        findings = diagnose(chains, np.full(200, 0.8), np.zeros(200), NAMES).findings
        named += any("not mixed" in finding.message for finding in findings)
    assert named < 6


def test_a_chain_that_drifts_is_named():
    rng = np.random.default_rng(3)
    chains = [rng.normal(size=(1, 100, 2)) for _ in range(50)]
    chains[7][0, :, 1] += np.linspace(0, 6, 100)
    result = diagnose(chains, np.full(50, 0.8), np.zeros(50), NAMES)
    assert "R-hat of b in shard 7" in result.findings[0].message
    assert result.findings[0].values["shards"] == [7]


def test_divergences_acceptance_and_few_draws():
    chains = [np.random.default_rng(4).normal(size=(1, 20, 2)) for _ in range(3)]
    found = diagnose(chains, np.array([0.9, 0.05, 0.02]), np.array([0, 3, 1]), NAMES).findings
    messages = " ".join(finding.message for finding in found)
    assert "4 transitions diverged, 3 of them in shard 1" in messages
    assert "2 of 3 shards accepted less than 10%" in messages
    assert "shard 2 accepted 2.0%" in messages
    assert "worth only" in messages
    assert all(finding.advice for finding in found)


def test_shards_of_different_lengths_and_failed_ones():
    rng = np.random.default_rng(5)
    chains = [rng.normal(size=(1, n, 2)) for n in (100, 50, 3, 100)]
    chains[3][0, 5, 0] = np.nan
    result = diagnose(chains, np.full(4, 0.8), np.zeros(4), NAMES)
    assert np.isfinite(result.ess[:2]).all()
    assert np.isnan(result.ess[2:]).all()
