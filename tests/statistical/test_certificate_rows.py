"""A certificate whose gradients read a sample of the rows: unbiased, honest about its noise, and it finds wrong draws.

The limits are five standard errors for 4 numbers each: a false alarm in about 400,000 runs.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.check import Certify, certify_draws
from shardmc.check.measured import joined_noise
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.locate import SampledGradients, gradients, influential, locate
from shardmc.model import Model

DIM, SHARDS = 4, 40
MODEL = Model(
    lambda params, rows: rows[1] * (rows[0] @ params["b"]) - jnp.logaddexp(0.0, rows[0] @ params["b"]),
    lambda params: -0.5 * jnp.sum(params["b"] ** 2) / 25,
    {"b": DIM},
)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(40_000), rng.normal(size=(40_000, DIM - 1))])
    chance = 1 / (1 + np.exp(-x @ np.array([-2.5, 1.0, -0.5, 0.0])))
    return x.astype(np.float32), (rng.random(40_000) < chance).astype(np.float32)


@pytest.fixture(scope="module")
def located(rows):
    blocks = as_source(rows).split(Partition(SHARDS), 0)
    mode = locate(MODEL, blocks, Local())
    kept = blocks.keep(influential(MODEL, blocks, mode, Local(), 0.1).positions)
    points = mode.frame.to_theta(np.random.default_rng(1).normal(size=(100, DIM)))
    return blocks, kept, mode, points


@pytest.mark.slow
def test_gradients_of_a_sample_are_within_their_noise_of_those_of_all_rows(located):
    blocks, kept, mode, points = located
    exact = gradients(MODEL, blocks, mode, points, Local()) @ mode.frame.basis
    score = SampledGradients(MODEL, kept, mode, Local(), list(range(0, SHARDS, 4)))
    found = score(points)
    error = (found.values @ mode.frame.basis - exact).mean(axis=0)
    se = np.linalg.norm((found.noise @ mode.frame.basis).mean(axis=1), axis=0)
    assert (np.abs(error) < 5 * se + 1e-3).all()
    assert (se < 0.05).all()
    # Control: the same shards' own gradients, without the linear part of all rows, are twenty times as uncertain.
    sample = range(0, SHARDS, 4)
    naive = np.std(score.slopes.gradients[sample], axis=0) / np.sqrt(len(sample))
    assert (naive > 20 * se).all()


def test_the_sample_of_all_shards_has_no_noise(located):
    blocks, kept, mode, points = located
    found = SampledGradients(MODEL, kept, mode, Local(), list(range(SHARDS)))(points)
    exact = gradients(MODEL, blocks, mode, points, Local())
    np.testing.assert_allclose(found.values @ mode.frame.basis, exact @ mode.frame.basis, atol=5e-3)
    assert found.noise is None


@pytest.mark.slow
def test_a_fit_certified_by_a_quarter_of_its_rows(rows):
    options = Certify(rows=0.25)
    posterior = shardmc.fit(MODEL, rows, shards=SHARDS, draws=4_000, certify=options)
    assert posterior.certificate.verdict == "within"
    assert posterior.passes["check"] == pytest.approx(1 + 0.25 * posterior.certificate.num_gradients)
    whole = shardmc.fit(MODEL, rows, shards=SHARDS, draws=4_000, certify=Certify(rows=1))
    both = np.hypot(posterior.certificate.mean_measured_se, whole.certificate.mean_measured_se)
    assert (np.abs(posterior.certificate.mean_error - whole.certificate.mean_error) < 5 * both + 0.01).all()


@pytest.mark.parametrize(("shift", "stretch"), [(0.4, 1.0), (0.0, 1.35), (0.0, 0.7)])
def test_wrong_draws_are_off(located, shift, stretch):
    _, kept, mode, _ = located
    score = SampledGradients(MODEL, kept, mode, Local(), list(range(0, SHARDS, 4)))
    rng = np.random.default_rng(2)
    draws = mode.frame.to_theta(shift + stretch * rng.normal(size=(8_000, DIM)))
    certificate, _ = certify_draws(
        MODEL.names, score, mode, draws, None, rng, lambda: np.full(DIM, 8_000.0), options=Certify(rows=0.25)
    )
    assert certificate.verdict == "off"


def test_row_noise_widens_what_is_claimed(located):
    _, kept, mode, _ = located
    score = SampledGradients(MODEL, kept, mode, Local(), list(range(0, SHARDS, 4)))
    draws = mode.frame.to_theta(np.random.default_rng(3).normal(size=(8_000, DIM)))

    def certificate(of):
        rng = np.random.default_rng(4)
        return certify_draws(MODEL.names, of, mode, draws, None, rng, lambda: np.full(DIM, 8_000.0))[0]

    silent, honest = certificate(lambda at: replace(score(at), noise=None)), certificate(score)
    np.testing.assert_array_equal(silent.mean_error, honest.mean_error)
    assert (honest.mean_measured_se > silent.mean_measured_se).all()
    assert (honest.sd_measured_se > silent.sd_measured_se).all()


@pytest.mark.slow
def test_by_default_a_fifth_of_the_shards_is_read_if_that_is_enough(rows):
    posterior = shardmc.fit(MODEL, rows, shards=SHARDS, draws=4_000)
    assert posterior.certificate.verdict == "within"
    assert posterior.passes["check"] == pytest.approx(1 + 0.2 * posterior.certificate.num_gradients)


def test_all_shards_are_read_if_the_sample_leaves_too_much_uncertain(located):
    _, kept, mode, _ = located
    draws = mode.frame.to_theta(np.random.default_rng(5).normal(size=(8_000, DIM)))

    def certificate(options):
        score = SampledGradients(MODEL, kept, mode, Local(), list(range(0, SHARDS, 5)))
        rng = np.random.default_rng(6)
        certify_draws(
            MODEL.names, score, mode, draws, None, rng, lambda: np.full(DIM, 8_000.0), options=options
        )
        return score.passes

    assert certificate(Certify(max_draws=100)) == pytest.approx(21)
    strict = Certify(max_draws=100, mean=0.001, sd=0.001)
    assert certificate(strict) == pytest.approx(101)
    assert certificate(replace(strict, rows=0.2)) == pytest.approx(21)


def test_more_shards_are_read_as_far_as_the_bounds_demand(located):
    """16 shards would be read first, but there are few: eight here, then twenty, then all forty."""
    _, kept, mode, points = located
    draws = mode.frame.to_theta(np.random.default_rng(5).normal(size=(8_000, DIM)))
    sample = np.random.default_rng(7).permutation(SHARDS)[:20].tolist()

    def read(bound):
        score = SampledGradients(MODEL, kept, mode, Local(), sample, first=8)
        options = Certify(max_draws=100, mean=bound, sd=bound)
        rng = np.random.default_rng(6)
        certify_draws(
            MODEL.names, score, mode, draws, None, rng, lambda: np.full(DIM, 8_000.0), options=options
        )
        return score.passes

    assert read(0.1) == pytest.approx(1 + 20)
    assert read(0.001) == pytest.approx(1 + 50)
    assert read(0.00001) == pytest.approx(1 + 100)
    # Both samples estimate the same; the larger one knows more.
    score = SampledGradients(MODEL, kept, mode, Local(), sample, first=8)
    few = score(points)
    more = few.more()
    assert (len(few.noise), len(more.noise)) == (8, 20)
    se = [np.linalg.norm((each.noise @ mode.frame.basis).mean(axis=1)) for each in (few, more)]
    assert (
        0.25 < se[1] / se[0] < 0.95
    )  # about 0.5: the root of (1/20 - 1/40) / (1/8 - 1/40), known from 8 shards
    # What one round of points needed, the next one reads at once.
    assert len(score(points).noise) == 20


def test_rounds_with_samples_of_different_sizes_are_joined(located):
    _, kept, mode, points = located
    score = SampledGradients(MODEL, kept, mode, Local(), list(range(0, SHARDS, 2)), first=8)
    rounds = [score(points[:50]), score(points[50:]).more(), score(points).more()]
    noise = joined_noise(rounds)
    assert noise.shape == (20, 200, DIM)
    np.testing.assert_array_equal(noise[:8, :50], rounds[0].noise)
    np.testing.assert_array_equal(noise[:, 50:100], rounds[1].noise)
    assert not noise[8:, :50].any()
    assert not noise[:, 100:].any()
    assert joined_noise(rounds[2:]) is None


def test_gradients_of_more_shards_are_those_of_all_rows(located):
    blocks, kept, mode, points = located
    found = SampledGradients(MODEL, kept, mode, Local(), list(range(0, SHARDS, 4)))(points).more()
    exact = gradients(MODEL, blocks, mode, points, Local())
    np.testing.assert_allclose(found.values @ mode.frame.basis, exact @ mode.frame.basis, atol=5e-3)
    assert found.noise is None


def test_all_shards_are_read_if_the_sample_knows_nothing_of_a_direction():
    rng = np.random.default_rng(3)
    x = np.zeros((4_000, DIM), np.float32)
    x[:, 0], x[:, 1:3], x[7::700, 3] = 1, rng.normal(size=(4_000, 2)), 1
    rows = x, (rng.random(4_000) < 0.5).astype(np.float32)
    blocks = as_source(rows).split(Partition(20, shuffle=False), 0)
    mode = locate(MODEL, blocks, Local())
    points = mode.frame.to_theta(rng.normal(size=(20, DIM)))
    exact = gradients(MODEL, blocks, mode, points, Local()) @ mode.frame.basis
    rare = set(np.arange(7, 4_000, 700) // 200)
    found = SampledGradients(MODEL, blocks, mode, Local(), [i for i in range(20) if i not in rare][:8])(
        points
    )
    assert found.noise is None
    np.testing.assert_allclose(found.values @ mode.frame.basis, exact, atol=1e-3)


def test_rows_in_file_order_are_all_read(rows):
    posterior = shardmc.fit(MODEL, rows, shards=SHARDS, draws=4_000, shuffle=False)
    assert posterior.passes["check"] == posterior.certificate.num_gradients


def test_bad_options_are_refused():
    with pytest.raises(shardmc.errors.OptionError, match="part of all rows"):
        Certify(rows=0)
    with pytest.raises(shardmc.errors.OptionError, match="part of all rows"):
        Certify(rows=2)
