"""The kernel Stein discrepancy and the regression of gradients, against what they must be."""

import numpy as np
import pytest

from shardmc.check.stein import cross_fit, stein_kernel, stein_test


def numerical_stein_kernel(x, y, score_x, score_y, width):
    """u(x, y) with derivatives of k by finite differences."""
    k = lambda a, b: (1 + np.sum((a - b) ** 2) / width) ** -0.5  # noqa: E731
    step = 1e-4
    unit = step * np.eye(len(x))
    grad_x = np.array([(k(x + e, y) - k(x - e, y)) / (2 * step) for e in unit])
    grad_y = np.array([(k(x, y + e) - k(x, y - e)) / (2 * step) for e in unit])
    mixed = sum(
        (k(x + e, y + e) - k(x + e, y - e) - k(x - e, y + e) + k(x - e, y - e)) / (4 * step**2) for e in unit
    )
    return score_x @ score_y * k(x, y) + score_x @ grad_y + score_y @ grad_x + mixed


def test_stein_kernel_is_its_formula():
    rng = np.random.default_rng(0)
    points, scores = rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    distances = np.sum((points[:, None] - points) ** 2, axis=2)
    width = np.median(distances[np.triu_indices(5, 1)])
    expected = [
        [numerical_stein_kernel(points[i], points[j], scores[i], scores[j], width) for j in range(5)]
        for i in range(5)
    ]
    assert np.allclose(stein_kernel(points, scores), expected, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 5, 20])
def test_p_values_are_uniform_for_the_right_density(dim):
    rng = np.random.default_rng(dim)
    p_values = []
    for _ in range(200):
        x = rng.normal(size=(60, dim))
        p_values.append(stein_test(x, -x, rng, replicates=200).p_value)
    # Binomial(200, 0.1): 46 and more have probability 1e-7.
    assert np.sum(np.array(p_values) <= 0.1) < 46


def test_a_wrong_shape_is_rejected():
    rng = np.random.default_rng(1)
    x = np.sign(rng.normal(size=(400, 1))) * np.abs(
        1 + 0.3 * rng.normal(size=(400, 1))
    )  # mean 0, variance near 1
    assert stein_test(x, -x, rng).p_value < 0.01


def test_quadratic_residuals_are_learnt():
    rng = np.random.default_rng(2)
    z = rng.normal(size=(5000, 4))
    form = rng.normal(size=(4, 4, 4))
    residual = lambda x: 0.1 * np.einsum("nd,kde,ne->nk", x, form, x)  # noqa: E731
    everywhere, held_out = cross_fit(z, np.arange(100), residual(z[:100]), rng)
    assert np.std(residual(z[:100]) - held_out) < 0.2 * np.std(residual(z))
    assert np.std(residual(z) - everywhere) < 0.2 * np.std(residual(z))


def test_noise_is_not_learnt():
    rng = np.random.default_rng(3)
    z = rng.normal(size=(2000, 10))
    noise = rng.normal(size=(100, 10))
    everywhere, _ = cross_fit(z, np.arange(100), noise, rng)
    assert np.std(everywhere) < 0.5


def test_zero_residuals_stay_zero():
    z = np.random.default_rng(4).normal(size=(500, 3))
    everywhere, held_out = cross_fit(z, np.arange(50), np.zeros((50, 3)), np.random.default_rng(0))
    assert not everywhere.any()
    assert not held_out.any()
