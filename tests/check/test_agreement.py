"""Shard agreement on modes whose scatter is known, and on regressions that are fitted here."""

import numpy as np
import pytest
from scipy import special

from shardmc.check import Agreement
from shardmc.check import agree as agree_with_shares
from shardmc.types import Located, Mode

PRECISION = 0.01


def located(modes, curvatures=None, curvature=None, found=None) -> Located:
    count, dim = modes.shape
    curvature = np.eye(dim) if curvature is None else curvature
    return Located(
        Mode(np.zeros(dim), curvature, 0.0, 1.0),
        modes,
        np.tile(curvature, (count, 1, 1)) if curvatures is None else curvatures,
        np.ones(count, dtype=bool) if found is None else found,
    )


def agree(located: Located, sizes, names, shares=None, **options) -> Agreement:
    """Agreement of shards with these shares, by default equal ones."""
    count = located.num_shards
    shares = np.full(count, 1 / count) if shares is None else shares
    return agree_with_shares(located, shares, sizes, names, **options)


def names(dim: int) -> list[str]:
    return [f"x{k}" for k in range(dim)]


def newton(x, y, weight, start):
    """Modes and curvatures of logistic regressions on rows x (shard, row, dim), damped by halving."""
    theta = np.tile(start, (len(x), 1))

    def value(t):
        eta = np.einsum("krd,kd->kr", x, t)
        return weight * np.sum(y * eta - np.logaddexp(0, eta), axis=1) - 0.5 * PRECISION * np.sum(
            t**2, axis=1
        )

    for _ in range(50):
        mean = special.expit(np.einsum("krd,kd->kr", x, theta))
        gradient = weight * np.einsum("krd,kr->kd", x, y - mean) - PRECISION * theta
        curvature = weight * (x * (mean * (1 - mean))[..., None]).transpose(0, 2, 1) @ x
        curvature += PRECISION * np.eye(x.shape[2])
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        if np.sum(step * gradient, axis=1).max() < 1e-10:
            break
        length, before = np.ones(len(x)), value(theta)
        for _ in range(15):
            length[value(theta + length[:, None] * step) < before - 1e-9] /= 2
        theta = theta + length[:, None] * step
    return theta, curvature


def logistic_agreement(x, y, shuffled=True) -> Agreement:
    shards, rows, dim = x.shape
    whole, curvature = newton(x.reshape(1, -1, dim), y.reshape(1, -1), 1.0, np.zeros(dim))
    modes, curvatures = newton(x, y, float(shards), whole[0])
    mode = Mode(whole[0], curvature[0], 0.0, 1.0)
    found = np.ones(shards, dtype=bool)
    return agree(
        Located(mode, modes, curvatures, found), np.full(shards, rows), names(dim), shuffled=shuffled
    )


def simulated(seed, shards=100, rows=150, dim=4, intercept=-1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(shards, rows, dim))
    x[..., 0] = 1
    eta = x @ np.array([intercept, 0.5, -0.5, 0.2])
    return x, (rng.uniform(size=eta.shape) < special.expit(eta)).astype(float)


def test_q_is_its_formula():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3)) + 2 * np.eye(3)
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    modes = rng.normal(size=(4, 3))
    curvatures = np.stack([s * root @ root.T for s in (0.5, 1.0, 1.5, 2.0)])
    result = agree(located(modes, curvatures, root @ root.T), np.arange(4), names(3), shares)
    expected = [modes[i] @ curvatures[i] @ modes[i] / (1 / shares[i] - 1) for i in range(4)]
    assert np.allclose(result.q, expected)
    assert np.allclose(result.eigenvalues, [[s, s] for s in (0.5, 1.0, 1.5, 2.0)])
    assert np.isclose(result.total, np.sum((1 - shares) * expected))


@pytest.mark.parametrize(("shards", "dim"), [(2, 1), (2, 10), (3, 10)])
def test_few_random_shards_do_not_scatter(shards, dim):
    """Gaps of few shards depend on each other, as their mean is 0. The level is 0.001; more than 12 of 1,000 findings
    have a probability below 10^-9. With one degree of freedom more, or sums without shares, there are 20 to 140."""
    rng = np.random.default_rng(shards * dim)
    noted = []
    for _ in range(1_000):
        modes = np.sqrt(shards) * rng.normal(size=(shards, dim))
        found = agree(located(modes - modes.mean(axis=0)), np.full(shards, 1_000), names(dim), shuffled=True)
        noted.append(any("the model predicts" in finding.message for finding in found.findings))
    assert sum(noted) <= 12


@pytest.mark.parametrize(("shards", "dim"), [(2, 10), (3, 10)])
def test_few_shards_that_scatter_are_noted(shards, dim):
    rng = np.random.default_rng(shards)
    for _ in range(20):
        modes = 3 * np.sqrt(shards) * rng.normal(size=(shards, dim))
        found = agree(located(modes - modes.mean(axis=0)), np.full(shards, 1_000), names(dim), shuffled=True)
        assert any("the model predicts" in f.message for f in found.findings)


@pytest.mark.parametrize(("shards", "dim"), [(4, 2), (100, 5), (300, 20)])
def test_random_gaussian_shards_are_not_named(shards, dim):
    rng = np.random.default_rng(shards)
    named = 0
    for _ in range(100):
        modes = np.sqrt(shards - 1) * rng.normal(size=(shards, dim))
        named += len(agree(located(modes), np.full(shards, 100), names(dim)).outliers) > 0
    # Binomial(100, 0.01): 9 and more have probability 2e-7.
    assert named < 9


@pytest.mark.slow
def test_random_shards_of_a_logistic_regression_are_not_named():
    # Binomial(20, 0.01): 6 and more have probability 4e-8.
    assert sum(len(logistic_agreement(*simulated(seed)).outliers) > 0 for seed in range(20)) < 6


def test_flipped_labels_in_one_shard_are_named():
    for seed in range(5):
        x, y = simulated(seed)
        y[42] = 1 - y[42]
        result = logistic_agreement(x, y)
        assert result.outliers.tolist() == [42]
        assert "Shard 42 (150 rows) disagrees" in result.findings[0].message
        assert "x0" in result.findings[0].message


def test_the_parameter_that_moved_is_named():
    rng = np.random.default_rng(1)
    modes = np.sqrt(49) * rng.normal(size=(50, 3))
    modes[9] = [0, 0, 80]
    message = agree(located(modes), np.full(50, 1000), names(3)).findings[0].message
    assert message.endswith("mostly in x2.")


def test_rows_in_file_order_are_named_as_such(data_folder):
    path = data_folder / "covtype.npz"
    if not path.exists():
        pytest.skip("covtype.npz is not in the folder of real data.")
    stored = np.load(path)
    attributes = stored["X10"][::20, :3].astype(float)
    x = np.column_stack([np.ones(len(attributes)), (attributes - attributes.mean(0)) / attributes.std(0)])
    y = (stored["cover_type"][::20] == 2).astype(float)
    rows = len(y) // 100
    in_order = np.arange(100 * rows).reshape(100, rows)
    shuffled = np.random.default_rng(0).permutation(len(y))[: 100 * rows].reshape(100, rows)
    contiguous = logistic_agreement(x[in_order], y[in_order], shuffled=False)
    assert len(contiguous.outliers) > 50
    assert "shuffle=True" in contiguous.findings[0].advice
    shuffled_rows = logistic_agreement(x[shuffled], y[shuffled])
    assert len(shuffled_rows.outliers) == 0
    assert not shuffled_rows.findings


def test_a_model_that_fits_badly_is_noted_and_no_shard_named():
    rng = np.random.default_rng(2)
    modes = np.sqrt(2 * 99) * rng.normal(size=(100, 4))
    result = agree(located(modes), np.full(100, 1000), names(4))
    assert len(result.outliers) == 0
    assert result.findings[0].level == "note"
    assert "times as much as the model predicts" in result.findings[0].message
    assert not agree(located(modes), np.full(100, 1000), names(4), dispersion=2.0).findings


def test_a_parameter_that_some_shards_know_nothing_about():
    curvatures = np.tile(np.eye(3), (40, 1, 1))
    curvatures[:10, 1, 1] = 1e-3
    curvatures[10, 2, 2] = 1e-3
    modes = 0.1 * np.random.default_rng(3).normal(size=(40, 3))
    result = agree(located(modes, curvatures), np.full(40, 100), names(3))
    assert result.uninformed == {"x1": 10, "x2": 1}
    assert "11 of 40 shards hold almost no information" in result.findings[0].message
    assert result.findings[0].message.endswith("x1 (10 shards), x2 (1 shard).")


def test_shards_without_a_mode_are_counted_and_left_out():
    modes = np.random.default_rng(4).normal(size=(20, 2))
    found = np.ones(20, dtype=bool)
    found[[3, 5]] = False
    modes[[3, 5]] = np.nan
    curvatures = np.tile(np.eye(2), (20, 1, 1))
    curvatures[[3, 5]] = np.nan
    result = agree(located(modes, curvatures, found=found), np.full(20, 100), names(2))
    assert np.isnan(result.q[[3, 5]]).all()
    assert np.isfinite(result.q[found]).all()
    assert result.findings[0].values["shards"] == [3, 5]


def test_no_shard_with_a_mode():
    modes, found = np.full((3, 2), np.nan), np.zeros(3, dtype=bool)
    result = agree(located(modes, np.full((3, 2, 2), np.nan), found=found), np.full(3, 10), names(2))
    assert len(result.outliers) == 0
    assert "3 of 3 shards have no mode" in result.findings[0].message


def test_one_shard_agrees_with_itself():
    result = agree(located(np.full((1, 2), 1e-5)), np.array([10]), names(2))
    assert result.q.tolist() == [0]
    assert not result.findings
