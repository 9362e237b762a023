"""Random partition trees on exact, skewed subposteriors.

The product of K Gamma(a, b) densities is Gamma(K (a - 1) + 1, K b). Kolmogorov's distance from it is averaged over ten
independent sets of draws; a distance of 0.1 lies more than six of its standard errors above what was found, and below
what a product of Gaussians gives. So a false alarm has a probability below 1e-6.
"""

import numpy as np
import pytest
from scipy import stats

from shardmc.combiners import PartitionTrees, combine
from shardmc.errors import OptionError
from shardmc.types import ShardDraws

SHARDS, DRAWS, REPEATS = 4, 5_000, 10
EXACT = stats.gamma(SHARDS * 2 + 1, scale=1 / SHARDS)


def distances(combiner: PartitionTrees) -> np.ndarray:
    found = []
    for seed in range(REPEATS):
        values = np.random.default_rng([2, seed]).gamma(3.0, size=(SHARDS, DRAWS, 1))
        draws = ShardDraws.of(values, scaling="fractional")
        combined = combiner(draws, None, np.random.default_rng(seed)).values[:, 0]
        found.append(stats.kstest(combined, EXACT.cdf).statistic)
    return np.array(found)


@pytest.mark.slow
def test_the_product_of_skewed_densities():
    found = distances(PartitionTrees())
    assert found.mean() + 6 * found.std(ddof=1) / np.sqrt(REPEATS) < 0.1


def test_a_single_cell_is_the_product_of_gaussians_and_the_same_test_rejects_it():
    assert distances(PartitionTrees(leaf=100_000)).min() > 0.2


def test_a_merge_without_a_common_cell_is_said():
    """Of four and four draws that lie far apart, a tree of two cells may separate the shards."""
    values = np.random.default_rng(0).normal(size=(2, 4, 1)) + np.array([0.0, 1e6])[:, None, None]
    found = [combine(values, "partition-trees", seed=seed, trees=1, leaf=4) for seed in range(20)]
    said = [any("no cell held draws of both sides" in note for note in each.notes) for each in found]
    assert 0 < sum(said) < 20
    between = [each.values for each, one in zip(found, said, strict=True) if one]
    assert (np.abs(np.array(between) - 5e5) < 4.9e5).all()


@pytest.mark.parametrize("options", [{"trees": 0}, {"leaf": 1}, {"leaf": 10.5}])
def test_options_are_checked(options):
    with pytest.raises(OptionError, match=f"{next(iter(options))} of PartitionTrees must be a whole number"):
        PartitionTrees(**options)
