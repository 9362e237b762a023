"""The certificate of very many draws looks at some of them, and finds what it finds in all."""

import numpy as np
import pytest

from shardmc.check import Certify, certify_draws
from shardmc.types import Mode

DIM = 3


def certified(theta, shard, exclude=None):
    """Certificate of draws of a standard normal posterior, and where its gradients were taken."""
    mode = Mode(np.zeros(DIM), np.eye(DIM), 0.0, 1.0)
    rng = np.random.default_rng(1)
    worth = np.full(DIM, float(np.isfinite(theta).all(axis=1).sum()))
    return certify_draws(list("abc"), lambda points: -points, mode, theta, shard, rng, lambda: worth, exclude)


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
