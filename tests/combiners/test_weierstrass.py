"""The Weierstrass rejection sampler on subposteriors that are not normal."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from shardmc.combiners import Weierstrass, named_combiner
from shardmc.errors import OptionError
from shardmc.types import ShardDraws


def gap(values: np.ndarray, target) -> float:
    return float(stats.ks_1samp(values[:, 0], target.cdf).statistic)


@pytest.mark.parametrize("kernel", ["uniform", "gaussian"])
def test_a_smaller_accept_comes_closer_to_a_skewed_product(kernel):
    # Four Gamma(3) subposteriors: the product is Gamma(9) with rate 4.
    draws = ShardDraws.of(np.random.default_rng(0).gamma(3.0, size=(4, 20_000, 1)), scaling="fractional")
    target = stats.gamma(9, scale=1 / 4)
    gaps = [
        gap(Weierstrass(kernel, a)(draws, None, np.random.default_rng(1)).values, target)
        for a in (1, 0.2, 0.02)
    ]
    consensus = gap(named_combiner("consensus")(draws, None, np.random.default_rng(1)).values, target)
    assert gaps[0] == pytest.approx(consensus, abs=0.03)
    assert gaps[2] < gaps[1] < gaps[0]
    assert gaps[2] < 0.06


def test_several_dimensions_on_different_scales_are_treated_alike():
    # The kernel is that of the covariances: scaling a coordinate by a million changes nothing else.
    values = np.random.default_rng(2).gamma(3.0, size=(3, 500, 2))
    scale = np.array([1.0, 1e6])
    one, other = (
        Weierstrass()(ShardDraws.of(values * s, scaling="fractional"), None, np.random.default_rng(3)).values
        for s in (np.ones(2), scale)
    )
    np.testing.assert_allclose(one * scale, other, rtol=1e-5)


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 8])
def test_any_number_of_shards(num_shards):
    draws = ShardDraws.of(np.random.default_rng(4).normal(size=(num_shards, 200, 2)), scaling="fractional")
    values = Weierstrass()(draws, None, np.random.default_rng(5)).values
    assert values.shape == (200, 2)


def test_options_are_checked():
    with pytest.raises(OptionError, match="Valid: gaussian, uniform"):
        Weierstrass("box")  # pyright: ignore
    with pytest.raises(OptionError, match="at most 1"):
        Weierstrass(accept=0)
