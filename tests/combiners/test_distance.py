"""Distances against closed forms for normal distributions, and their noise floors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from shardmc.combiners.distance import (
    DISTANCES,
    absolute_distance,
    distances,
    gaussian_kl,
    joint_l2,
    kolmogorov_smirnov,
    marginal_l2,
    mean_distance,
    noise_floor,
    sliced_wasserstein,
)
from shardmc.errors import OptionError

N = 100_000


def normal_l2(shift: float) -> float:
    """The integral of the squared difference of two standard normal densities a shift apart."""
    return (1 - np.exp(-(shift**2) / 4)) / np.sqrt(np.pi)


@pytest.fixture(scope="module")
def sample() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, 2))


def test_l2_and_iad_of_exact_densities():
    a, b = stats.norm(1, 1), stats.norm(0, 1)
    assert marginal_l2(a, b) == pytest.approx(normal_l2(1), rel=1e-6)
    assert marginal_l2(a, b, relative=True) == pytest.approx(2 * (1 - np.exp(-1 / 4)), rel=1e-6)
    assert absolute_distance(a, b) == pytest.approx(2 * stats.norm.cdf(0.5) - 1, rel=1e-3)


def test_l2_of_draws(sample):
    shifted = np.random.default_rng(1).normal(size=(N, 2)) + 1
    # The kernel's variance, 0.01, adds to that of the densities and lowers the integral by about 1 %.
    assert marginal_l2(shifted, sample) == pytest.approx(normal_l2(1), rel=0.03)
    assert absolute_distance(shifted, sample) == pytest.approx(2 * stats.norm.cdf(0.5) - 1, rel=0.03)


def test_units_are_those_of_the_reference(sample):
    shifted = np.random.default_rng(1).normal(size=(N, 2)) + 1
    scale, shift = np.array([1e-3, 1e4]), np.array([5.0, -7.0])
    for name, distance in DISTANCES.items():
        plain, scaled = distance(shifted, sample), distance(shifted * scale + shift, sample * scale + shift)
        assert scaled == pytest.approx(plain, rel=1e-4), name


def test_joint_l2_of_correlated_normals():
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    rng = np.random.default_rng(2)
    a, b = (rng.multivariate_normal(m, covariance, size=N) for m in ([1, 0], [0, 0]))
    quadratic = np.array([1, 0]) @ np.linalg.inv(covariance) @ np.array([1, 0])
    norm = 1 / (4 * np.pi * np.sqrt(np.linalg.det(covariance)))
    # The bandwidth matrix is N^(-1/3) = 0.02 times the covariance.
    assert joint_l2(a, b) == pytest.approx(2 * norm * (1 - np.exp(-quadratic / 4)), rel=0.05)
    assert joint_l2(a, b, relative=True) == pytest.approx(2 * (1 - np.exp(-quadratic / 4)), rel=0.05)
    assert joint_l2(a[:, 0], b[:, 0]) == marginal_l2(a[:, 0], b[:, 0])
    with pytest.raises(OptionError, match="one or two coordinates"):
        joint_l2(np.zeros((5, 3)), np.ones((5, 3)))


def test_moments():
    rng = np.random.default_rng(3)
    reference = rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 2]], size=500)
    draws = reference + np.array([1.0, 0.0])
    inverse = np.linalg.inv(np.cov(reference.T))
    assert mean_distance(draws, reference) == pytest.approx(np.sqrt(inverse[0, 0]))
    assert gaussian_kl(draws, reference) == pytest.approx(inverse[0, 0] / 2)
    wider = (reference - reference.mean(axis=0)) * 2 + reference.mean(axis=0)
    assert gaussian_kl(wider, reference) == pytest.approx(4 - 1 - np.log(4))
    assert gaussian_kl(np.ones((10, 2)), reference) == np.inf
    assert gaussian_kl(stats.norm(1, 2), stats.norm(0, 1)) == pytest.approx((4 + 1 - 1 - np.log(4)) / 2)


def test_ks_is_that_of_scipy(sample):
    other = np.random.default_rng(4).normal(0.1, 1, size=(3000, 2))
    expected = [stats.ks_2samp(a, b).statistic for a, b in zip(other.T, sample.T, strict=True)]
    np.testing.assert_allclose(kolmogorov_smirnov(other, sample), expected)
    exact = stats.kstest(other[:, 0], "norm").statistic
    np.testing.assert_allclose(kolmogorov_smirnov(other[:, 0], stats.norm(0, 1)), [exact])
    gap = kolmogorov_smirnov(stats.norm(1, 1), stats.norm(0, 1))[0]
    assert gap == pytest.approx(2 * stats.norm.cdf(0.5) - 1, rel=1e-3)


def test_sliced_wasserstein_of_a_shift(sample):
    shift = np.array([0.3, 0.4])
    few = sample[:500]
    found = sliced_wasserstein(few + shift * few.std(axis=0), few, num_directions=2000)
    # The mean over directions of (shift . direction)^2 is |shift|^2 / 2; 2,000 directions, sd 1 % of it.
    assert found == pytest.approx(0.5 / np.sqrt(2), rel=0.05)
    unequal = sliced_wasserstein(sample[:40_000] + 1, sample)
    assert unequal == pytest.approx(sliced_wasserstein(sample + 1, sample), rel=0.02)


def test_identical_draws_have_no_distance(sample):
    assert all(value == pytest.approx(0, abs=1e-12) for value in distances(sample, sample).values())


def test_distances_leaves_out_what_the_sides_do_not_allow(sample):
    assert set(distances(sample, sample)) == set(DISTANCES)
    assert "joint_l2" not in distances(sample[:, :1], sample[:, :1])
    assert set(distances(sample[:, 0], stats.norm(0, 1))) == {
        *("l2", "relative_l2", "iad", "mean", "kl", "worst_mean", "worst_sd", "ks")
    }
    assert set(distances(sample, [stats.norm(0, 1)] * 2)) == {
        *("l2", "relative_l2", "iad", "worst_mean", "worst_sd", "ks")
    }
    with pytest.raises(OptionError, match="Did you mean 'kl'"):
        distances(sample, sample, ["kll"])
    with pytest.raises(OptionError, match="2 and 1 coordinates"):
        distances(sample, sample[:, :1])


@pytest.mark.parametrize("exact", [True, False])
def test_the_noise_floor_is_what_independent_draws_give(exact):
    rng = np.random.default_rng(5)
    reference = stats.norm(0, 1) if exact else rng.normal(size=4000)
    floor = noise_floor(reference, 1000, repeats=20)
    found = [
        distances(rng.normal(size=1000), stats.norm(0, 1) if exact else rng.normal(size=4000))
        for _ in range(20)
    ]
    for name, value in floor.items():
        others = np.array([f[name] for f in found])
        # Both are means of 20: the difference has about twice the variance of one of them. Resampling a sample of
        # 4,000 has its own error, so the bound is wide; a floor that left out one side's noise would be half.
        assert abs(value - others.mean()) < 6 * np.sqrt(2 / 20) * others.std() + 0.1 * others.mean(), name


def test_analytic_noise_floors():
    reference = np.random.default_rng(6).normal(size=(2000, 3))
    floor = noise_floor(reference, 1000, ["kl", "mean"], repeats=50)
    both = 1 / 1000 + 1 / 2000
    assert floor["kl"] == pytest.approx(3 * 6 / 4 * both, rel=0.3)
    assert floor["mean"] == pytest.approx(np.sqrt(3 * both), rel=0.3)


def test_constant_coordinates():
    reference = np.random.default_rng(7).normal(size=(1000, 2)) * [1, 0] + [0, 3]
    assert all(np.isfinite(v) for n, v in distances(reference, reference).items() if n != "joint_l2")
    with pytest.raises(OptionError, match="does not vary"):
        distances(reference, np.ones((10, 2)))
    assert marginal_l2(np.zeros((10, 1)), reference[:, :1]) == np.inf
    assert absolute_distance(np.zeros((10, 1)), reference[:, :1]) == 1.0


def test_far_draws_have_the_largest_distances(sample):
    far = sample[:1000, :1] + 1e6
    found = distances(far, sample[:, :1])
    assert found["iad"] == pytest.approx(1, abs=0.01)
    assert found["ks"] == 1.0
    assert np.isfinite(list(found.values())).all()
