"""The rows of the table of recentring methods, each against its formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardmc.combiners import Recenter, named_combiner
from shardmc.combiners.moments import transport
from shardmc.errors import OptionError
from shardmc.types import Located, Mode, ShardDraws

RNG = np.random.default_rng(0)


@pytest.fixture
def draws() -> ShardDraws:
    rng = np.random.default_rng(1)
    values = [rng.normal(size=(50, 2)) @ rng.normal(size=(2, 2)) + 3 * rng.normal(size=2) for _ in range(3)]
    return ShardDraws.of(values)


@pytest.fixture
def located(draws: ShardDraws) -> Located:
    rng = np.random.default_rng(2)
    curvatures = np.stack([np.eye(2) + np.outer(v, v) for v in rng.normal(size=(3, 2))])
    modes = draws.means + 0.1
    mode = Mode(np.array([1.0, -1.0]), curvatures.mean(axis=0), 0.0, 1.0)
    return Located(mode, modes, curvatures, np.ones(3, bool))


def by_shard(combined, shard: int) -> np.ndarray:
    return combined.values[combined.shard == shard]


def test_algorithm_1_is_as_printed(draws):
    combined = Recenter.algorithm_1()(draws, None, RNG)
    center = np.mean(draws.means, axis=0)
    for i, v in enumerate(draws.values):
        np.testing.assert_allclose(by_shard(combined, i), v - v.mean(axis=0) + center)
    assert combined.notes == ()


def test_newton_moves_means_to_the_mode_of_all_rows(draws, located):
    combined = Recenter("newton", "none", small_sample=False)(draws, located, RNG)
    for i, v in enumerate(draws.values):
        np.testing.assert_allclose(by_shard(combined, i), v - v.mean(axis=0) + located.mode.theta)


def test_mode_to_mode_keeps_the_offset_of_mean_from_mode(draws, located):
    combined = Recenter("mode", "none")(draws, located, RNG)
    for i, v in enumerate(draws.values):
        np.testing.assert_allclose(by_shard(combined, i), v - located.shard_modes[i] + located.mode.theta)


def test_the_default_with_modes_is_affine(draws, located):
    combined = Recenter()(draws, located, RNG)
    lower = np.linalg.cholesky(located.mode.curvature)
    for i, v in enumerate(draws.values):
        inner = np.linalg.inv(lower) @ located.shard_curvatures[i] @ np.linalg.inv(lower).T
        values, vectors = np.linalg.eigh(inner)
        matrix = np.linalg.inv(lower).T @ (vectors * np.sqrt(values)) @ vectors.T @ lower.T
        expected = located.mode.theta + (v - located.shard_modes[i]) @ matrix.T
        np.testing.assert_allclose(by_shard(combined, i), expected)


@pytest.mark.parametrize("spread", ["precision", "covariance"])
def test_affine_from_draws_gives_every_shard_the_same_moments(draws, spread):
    combined = Recenter("mean", "draws", spread=spread, small_sample=False)(draws, None, RNG)
    inverse = np.linalg.inv(draws.covariances).mean(axis=0)
    target = np.linalg.inv(inverse) if spread == "precision" else draws.covariances.mean(axis=0)
    for i in range(3):
        np.testing.assert_allclose(by_shard(combined, i).mean(axis=0), draws.means.mean(axis=0))
        np.testing.assert_allclose(np.cov(by_shard(combined, i).T), target)


def test_swiss_goes_to_the_precision_weighted_mean(draws):
    plain = Recenter("precision", "draws", small_sample=False)(draws, None, RNG)
    inverse = np.linalg.inv(draws.covariances)
    center = np.linalg.solve(inverse.sum(axis=0), np.einsum("ijk,ik->j", inverse, draws.means))
    np.testing.assert_allclose(plain.values.mean(axis=0), center)


def poisson_shards(num_shards: int, mean_count: float, rng: np.random.Generator) -> tuple[ShardDraws, float]:
    """Log rates given Poisson counts, rescaled: Gamma(K s_i) draws; and the posterior mean of the log rate."""
    counts = rng.poisson(mean_count, size=num_shards)
    values = np.log(rng.gamma(num_shards * counts[:, None], size=(num_shards, 2000)) / num_shards)
    return ShardDraws.of(values[:, :, None]), float(np.log(counts.mean()))


def test_the_default_without_modes_balances_the_two_means():
    rng = np.random.default_rng(5)
    errors = {"mean": [], "precision": [], "balanced": []}
    for _ in range(20):
        draws, truth = poisson_shards(100, 25.0, rng)
        for center, found in errors.items():
            found.append(Recenter(center)(draws, None, RNG).values.mean() - truth)
    # The posterior sd is 1 / sqrt(100 * 25) = 0.02; either mean is off by about 1 / (2 * 25) = 0.02.
    assert -0.025 < np.mean(errors["mean"]) < -0.015
    assert 0.015 < np.mean(errors["precision"]) < 0.025
    assert abs(np.mean(errors["balanced"])) < 0.003
    draws, _ = poisson_shards(100, 25.0, rng)
    default, balanced = Recenter()(draws, None, RNG), Recenter("balanced", "draws")(draws, None, RNG)
    np.testing.assert_array_equal(default.values, balanced.values)


def test_precisions_that_do_not_depend_on_the_means_leave_the_precision_weighted_mean():
    rng = np.random.default_rng(6)
    precision = rng.gamma(4.0, size=(200, 1, 1))
    means = rng.normal(size=(200, 1, 1)) * np.sqrt(200 / precision)
    draws = ShardDraws.of(means + rng.normal(size=(200, 500, 1)) / np.sqrt(precision))
    exact, balanced, plain = (
        Recenter(c)(draws, None, RNG).values.mean() for c in ("precision", "balanced", "mean")
    )
    assert abs(balanced - exact) < 0.25 * abs(plain - exact)


def test_a_given_center(draws):
    combined = Recenter([5.0, 6.0], "none")(draws, None, RNG)
    np.testing.assert_allclose(combined.values.mean(axis=0), [5, 6])
    assert Recenter(np.array([5.0, 6.0])) == Recenter([5.0, 6.0])
    with pytest.raises(OptionError, match="3 numbers; the draws have 2"):
        Recenter([1.0, 2.0, 3.0])(draws, None, RNG)


def test_the_small_sample_correction_undoes_the_shrinkage():
    rng = np.random.default_rng(3)
    draws = ShardDraws.of(rng.normal(size=(20_000, 3, 1)))
    plain = Recenter("mean", "none", small_sample=False)(draws, None, RNG).values.var()
    corrected = Recenter("mean", "none")(draws, None, RNG).values.var()
    # 20,000 shards with 2 degrees of freedom each: sd of a variance ratio sqrt(2 / 40,000) = 0.007.
    assert abs(plain - 2 / 3) < 6 * 0.007
    assert abs(corrected - 1) < 6 * 0.007


def test_shards_without_a_mode_are_matched_to_the_others(draws, located):
    found = np.array([True, False, True])
    modes, curvatures = located.shard_modes.copy(), located.shard_curvatures.copy()
    modes[1], curvatures[1] = np.nan, np.nan
    partly = replace(located, shard_modes=modes, shard_curvatures=curvatures, found=found)
    combined = Recenter()(draws, partly, RNG)
    others = np.concatenate([by_shard(combined, 0), by_shard(combined, 2)])
    np.testing.assert_allclose(by_shard(combined, 1).mean(axis=0), others.mean(axis=0))
    np.testing.assert_allclose(np.cov(by_shard(combined, 1).T), np.cov(others.T), rtol=0.05)
    assert "No mode was found for shard 1" in combined.notes[0]


def test_without_any_mode_the_means_go_to_the_mode_of_all_rows(draws, located):
    nowhere = replace(located, found=np.zeros(3, bool))
    combined = Recenter()(draws, nowhere, RNG)
    np.testing.assert_allclose(combined.values.mean(axis=0), located.mode.theta)
    assert combined.notes == (
        "No shard has a mode: the means of their draws were moved to the mode of all rows.",
    )
    with pytest.raises(OptionError, match="no shard has a mode"):
        Recenter("mode", "none")(draws, nowhere, RNG)


def test_what_needs_modes_says_so(draws, located):
    for made in (Recenter("newton"), Recenter("mode"), Recenter("mean", "curvature")):
        with pytest.raises(OptionError, match="only draws were given"):
            made(draws, None, RNG)
    with pytest.raises(OptionError, match="unconstrained scale"):
        Recenter("newton", space="natural")
    with pytest.raises(OptionError, match="modes are of 3 shards"):
        Recenter()(ShardDraws.of(draws.values[:2]), located, RNG)


def test_on_the_natural_scale_modes_are_not_used(draws, located):
    combined = Recenter(space="natural")(draws, located, RNG)
    np.testing.assert_allclose(combined.values.mean(axis=0), draws.means.mean(axis=0))


@pytest.mark.parametrize(
    "option", [{"center": "middle"}, {"scale": "sd"}, {"spread": "wide"}, {"space": "log"}]
)
def test_unknown_options_are_refused(option):
    with pytest.raises(OptionError, match="Valid:"):
        named_combiner("recenter", **option)


def test_transport_takes_one_covariance_to_the_other_and_commutes_with_linear_maps():
    rng = np.random.default_rng(4)
    source, target = (a @ a.T + np.eye(3) for a in rng.normal(size=(2, 3, 3)))
    matrix = transport(source, target)
    np.testing.assert_allclose(matrix @ source @ matrix.T, target)
    change = rng.normal(size=(3, 3))
    changed = transport(change @ source @ change.T, change @ target @ change.T)
    np.testing.assert_allclose(changed, change @ matrix @ np.linalg.inv(change), rtol=1e-8)
