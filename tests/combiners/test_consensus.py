"""Consensus Monte Carlo against its formula."""

from __future__ import annotations

import numpy as np
import pytest

from shardmc.combiners import Consensus
from shardmc.errors import OptionError
from shardmc.types import ShardDraws

RNG = np.random.default_rng(0)


def shards(dim: int, lengths=(300, 300, 300)) -> ShardDraws:
    rng = np.random.default_rng(1)
    values = [rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)) + rng.normal(size=dim) for n in lengths]
    return ShardDraws.of(values, scaling="fractional")


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize("weights", ["full", "diagonal", "uniform"])
def test_the_weighted_average(dim, weights):
    draws = shards(dim)
    if weights == "full":
        precision = np.linalg.inv(draws.covariances)
    else:
        variances = np.einsum("ijj->ij", draws.covariances)
        precision = np.stack([np.diag(1 / v if weights == "diagonal" else np.ones(dim)) for v in variances])
    stacked = np.einsum("ijk,itk->tj", precision, np.stack(draws.values))
    expected = np.linalg.solve(precision.sum(axis=0), stacked.T).T
    combined = Consensus(weights, small_sample=False)(draws, None, RNG)
    np.testing.assert_allclose(combined.values, expected)


def test_shorter_shards_are_used_again_and_a_note_says_so():
    draws = shards(2, (300, 200, 300))
    combined = Consensus("uniform")(draws, None, RNG)
    expected = (draws.values[0][250] + draws.values[1][50] + draws.values[2][250]) / 3
    np.testing.assert_allclose(combined.values[250], expected)
    assert "shard 1" in combined.notes[0]


def test_shuffled_pairs_have_the_same_mean():
    draws = shards(2)
    plain = Consensus(small_sample=False)(draws, None, RNG).values
    shuffled = Consensus(small_sample=False, shuffle=True)(draws, None, RNG).values
    np.testing.assert_allclose(plain.mean(axis=0), shuffled.mean(axis=0))
    assert not np.allclose(plain, shuffled)


def test_the_small_sample_correction_removes_the_narrowing():
    rng = np.random.default_rng(2)
    dim, num_draws, ratios = 10, 60, {True: [], False: []}
    for _ in range(300):
        draws = ShardDraws.of(rng.normal(size=(4, num_draws, dim)) * 2, scaling="fractional")
        for small_sample, found in ratios.items():
            found.append(
                Consensus(small_sample=small_sample)(draws, None, rng).values.var(axis=0, ddof=1).mean()
            )
    error = 6 * np.std(ratios[True]) / np.sqrt(300)
    # To first order in dim / T; what is left is of the order of its square, 0.03.
    assert abs(np.mean(ratios[True]) - 1) < error + 0.03
    assert np.mean(ratios[False]) < 0.9


def test_the_jackknife_removes_a_bias_that_is_inverse_to_the_number_of_rows():
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(5, 4000, 1)) * np.sqrt(5)
    biased, more_biased = noise + 0.5, noise + 1.0
    draws = ShardDraws.of(biased, scaling="fractional")
    corrected = Consensus(subsampled=more_biased, fraction=0.5)(draws, None, rng)
    assert abs(corrected.values.mean()) < 6 / np.sqrt(4000)
    with pytest.raises(OptionError, match="subsampled has 4 shards"):
        Consensus(subsampled=more_biased[:4])(draws, None, rng)


@pytest.mark.parametrize("option", [{"weights": "equal"}, {"fraction": 1.0}])
def test_options_are_checked(option):
    with pytest.raises(OptionError):
        Consensus(**option)
