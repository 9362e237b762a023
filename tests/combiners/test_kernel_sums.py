"""Sums of kernels, compiled with kernels of XLA that are wrong for other programs, are right."""

import numpy as np
import pytest
from scipy.special import logsumexp

from shardmc.combiners.gaussian import CHUNK, _log_sum_kernels


@pytest.mark.parametrize(("dim", "kernels"), [(1, 500), (2, 2_000), (3, 4_097), (5, 3_333), (10, 1_000)])
def test_log_sums_of_kernels_are_exact(dim, kernels):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3, CHUNK, dim)).astype(np.float32)
    centers, offsets = rng.normal(size=(kernels, dim)).astype(np.float32), rng.normal(size=kernels)
    exact = logsumexp(points.astype(float) @ centers.T.astype(float) + offsets, axis=2)
    found = np.asarray(_log_sum_kernels(points, centers, offsets.astype(np.float32)))
    np.testing.assert_allclose(found, exact, atol=1e-4)
