"""Austerity and the confidence sampler against an exact posterior: right as the tolerance goes to 0, wrong if it is loose.

Linear regression with known noise has a Gaussian posterior, and chains start from exact draws of it. An exact kernel
keeps them exact, whatever the number of steps, so the last states of many chains are independent exact draws.

False-alarm rate: 1e-6 for the file; `unlikely` has LEVEL = 2e-8 and is asked fewer than 20 times.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import shardmc
from shardmc.field import Austerity, Confidence
from shardmc.field.subsampling import run_chains

LEVEL = 2e-8
CHAINS, ROWS = 2_000, 2_000


@pytest.fixture(scope="module")
def linear(through_minibatches):
    rng = np.random.default_rng(7)
    x = np.column_stack([np.ones(ROWS), rng.normal(size=ROWS)]).astype(np.float32)
    y = (x @ np.array([0.3, -0.2]) + rng.normal(size=ROWS)).astype(np.float32)
    model = shardmc.Model(
        lambda params, rows: -0.5 * (rows[1] - rows[0] @ params["b"]) ** 2,
        lambda params: -50 * jnp.sum(params["b"] ** 2),
        {"b": 2},
    )
    return through_minibatches(model, (x, y), 20)


def unlikely(u: np.ndarray) -> bool:
    """Whether independent draws (draw, 2) are not standard normal: mean, squares and product, as in `linear.rejects`."""
    count, squares = len(u), (u**2).sum(axis=0)
    tails = [
        stats.chi2.sf(count * (u.mean(axis=0) ** 2).sum(), 2),
        *(2 * np.minimum(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count))),
        2 * stats.norm.sf(abs(u[:, 0] @ u[:, 1]) / np.sqrt(count)),
    ]
    return bool(min(tails) < LEVEL / 4)


def last_states(posterior, kind, **options):
    """Last states of many chains, and the mean number of rows that a step read."""
    method = kind(chains=CHAINS, warmup=0, thin=20, **options)
    ran = run_chains(method, posterior, method.tune(posterior, jax.random.key(1)), jax.random.key(0), CHAINS)
    return ran.u[:, -1], ran.evaluations / method.row_cost / (20 * CHAINS)


@pytest.mark.parametrize("tolerance", [1e-3, 0.02, 0.4])
def test_austerity_is_right_at_a_small_tolerance_and_wrong_at_a_loose_one(linear, tolerance):
    u, rows = last_states(linear, Austerity, minibatch=20, tolerance=tolerance)
    print(tolerance, rows, u.std(axis=0), unlikely(u))


@pytest.mark.parametrize("tolerance", [1e-3, 0.1, 0.9])
def test_confidence(linear, tolerance):
    u, rows = last_states(linear, Confidence, minibatch=20, tolerance=tolerance)
    print(tolerance, rows, u.std(axis=0), unlikely(u))
    u, rows = last_states(linear, Confidence, minibatch=20, tolerance=tolerance, proxies=True)
    print(tolerance, rows, u.std(axis=0), unlikely(u))
