"""The certificate of very many draws looks at some of them, and finds what it finds in all."""

import numpy as np
import pytest

from shardmc.check import Certify, certify_draws
from shardmc.types import Gradients, Mode

DIM = 3


def certified(theta, shard, exclude=None):
    """Certificate of draws of a standard normal posterior, and where its gradients were taken."""
    mode = Mode(np.zeros(DIM), np.eye(DIM), 0.0, 1.0)
    rng = np.random.default_rng(1)
    worth = np.full(DIM, float(np.isfinite(theta).all(axis=1).sum()))
    return certify_draws(
        list("abc"), lambda points: Gradients(-points), mode, theta, shard, rng, lambda: worth, exclude
    )


@pytest.fixture
def draws():
    return np.random.default_rng(0).normal(size=(60_000, DIM)), np.repeat(np.arange(60), 1_000)


def test_exact_draws_are_within_and_every_shard_is_looked_at(draws):
    theta, shard = draws
    certificate, chosen = certified(theta, shard)
    assert certificate.verdict == "within"
    assert certificate.num_draws == 20_000
    assert len(np.unique(chosen)) == Certify().draws
    assert set(shard[chosen]) == set(range(60))


@pytest.mark.parametrize(("shift", "scale"), [(0.3, 1.0), (0.0, 1.3)])
def test_wrong_draws_are_off(draws, shift, scale):
    theta, shard = draws
    theta[:, 1] = shift + scale * theta[:, 1]
    assert certified(theta, shard)[0].verdict == "off"


def test_a_second_certificate_looks_at_other_draws_and_never_at_missing_ones(draws):
    theta, shard = draws
    theta[::7] = np.nan
    _, first = certified(theta, shard)
    _, second = certified(theta, shard, exclude=first)
    assert np.isfinite(theta[np.concatenate([first, second])]).all()
    assert not np.intersect1d(first, second).size


def test_draws_whose_shards_differ_are_not_told_that_more_would_help(draws):
    theta, shard = draws
    theta = theta.copy()
    theta[shard % 20 == 7, 0] += (
        2.3  # the mean of all is off by 0.115 sd, which sixty shards' means cannot show
    )
    certificate, _ = certified(theta, shard)
    assert certificate.verdict == "cannot tell"
    assert certificate.remedy == ""
    assert "differ in their means" in certificate.advice


def test_where_noise_stands_in_the_way_all_draws_are_looked_at():
    # Chains so slow that 60,000 draws are worth about 300: their own means are off by more than 0.1 sd.
    rng = np.random.default_rng(3)
    theta = np.empty((60_000, DIM))
    theta[0] = rng.normal(size=DIM)
    for t in range(1, len(theta)):
        theta[t] = 0.99 * theta[t - 1] + np.sqrt(1 - 0.99**2) * rng.normal(size=DIM)
    mode = Mode(np.zeros(DIM), np.eye(DIM), 0.0, 1.0)
    theta[:, 0] += 0.15 - theta[:, 0].mean()
    worth = np.full(DIM, 300.0)
    certificate, _ = certify_draws(
        list("abc"), lambda points: Gradients(-points), mode, theta, None, rng, lambda: worth
    )
    assert certificate.remedy == "draws"
    assert certificate.num_draws == 60_000
