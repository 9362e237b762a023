"""The certificate of very many draws looks at some of them, and finds what it finds in all."""

import numpy as np
import pytest

from shardmc.check import Certificate, Certify, certify_draws
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


def sampled(seed, dim, available, read, se):
    """Certificate of exact draws from gradients of some of the shards, whose mean is off by their sampling error."""
    rng = np.random.default_rng(seed)
    shards = rng.normal(size=(available, dim))
    shards -= shards.mean(axis=0)
    unread = 1 - read / available
    part = se / np.sqrt(unread / read) * shards[:read]
    noise = (part - part.mean(axis=0)) * np.sqrt(unread / (read * (read - 1)))

    def score(points):
        return Gradients(part.mean(axis=0) - points, np.repeat(noise[:, None], len(points), axis=1), None)

    return certify_draws(
        [f"x{k}" for k in range(dim)],
        score,
        Mode(np.zeros(dim), np.eye(dim), 0.0, 1.0),
        rng.normal(size=(8_000, dim)),
        None,
        rng,
        lambda: np.full(dim, 8_000.0),
        options=Certify(rows=read / available, max_draws=1_000),
    )[0]


def test_the_noise_of_few_sampled_shards_is_not_taken_for_an_error():
    """With 8 shards it is known from 7 numbers. Of 200 exact draws 0.4 are called off; 8 or more have a probability of
    5 x 10^-9. With normal p-values there are about ten."""
    verdicts = [sampled(seed, 10, 40, 8, 0.04).verdict for seed in range(200)]
    assert verdicts.count("off") < 8


def test_the_worst_combination_is_not_the_noise_in_which_it_was_found():
    """In many dimensions the noise along the direction that it has itself is far larger than along any other."""
    found = [sampled(seed, 100, 500, 100, 0.05) for seed in range(10)]
    assert all(each.verdict != "off" for each in found)
    assert max(each.shifted.value / each.shifted.se for each in found) < 3


def test_advice_names_the_rows_if_they_are_the_limit():
    found = [sampled(seed, 6, 40, 8, 0.08) for seed in range(10)]
    unknown = [each for each in found if each.verdict == "cannot tell" and not each.rows_suffice]
    assert unknown
    for each in unknown:
        assert "certify=shardmc.Certify(rows=1), or --certify-rows 1." in each.advice
        assert each.num_gradients == 100  # more would not help
    stored = Certificate.from_dict(unknown[0].to_dict())
    assert not stored.rows_suffice


def test_a_gradient_that_is_not_finite_does_not_read_all_rows():
    more = []

    def score(points):
        values = -points.copy()
        values[0] = np.nan
        noise = np.full((16, *points.shape), 1e-4)
        noise[:, 0] = np.nan
        return Gradients(values, noise, lambda: more.append(1) or Gradients(values))

    rng = np.random.default_rng(0)
    mode, theta = Mode(np.zeros(2), np.eye(2), 0.0, 1.0), rng.normal(size=(4_000, 2))
    found, _ = certify_draws(["a", "b"], score, mode, theta, None, rng, lambda: np.full(2, 4_000.0))
    assert not more
    assert "not finite" in found.sentence
