"""Austerity and the confidence sampler: exact as the tolerance goes to 0, wrong if it is loose.

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
CHAINS, STEPS, ROWS = 1_000, 12, 1_000


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
    return {size: through_minibatches(model, (x, y), size) for size in (5, 100)}


def unlikely(u: np.ndarray) -> bool:
    """Whether independent draws (draw, 2) are not standard normal: by means, squares and products."""
    count, squares = len(u), (u**2).sum(axis=0)
    tails = [
        stats.chi2.sf(count * (u.mean(axis=0) ** 2).sum(), 2),
        *(2 * np.minimum(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count))),
        2 * stats.norm.sf(abs(u[:, 0] @ u[:, 1]) / np.sqrt(count)),
    ]
    return bool(min(tails) < LEVEL / 4)


def last_states(linear, kind, minibatch: int = 100, **options):
    """Last states of many chains, and the mean number of rows that a step read."""
    posterior = linear[minibatch]
    method = kind(chains=CHAINS, warmup=0, thin=STEPS, minibatch=minibatch, **options)
    tuned = method.tune(posterior, jax.random.key(1))
    ran = run_chains(method, posterior, tuned, jax.random.key(0), CHAINS)
    return ran.u[:, -1], ran.evaluations / method.row_cost / (STEPS * CHAINS)


@pytest.mark.slow
def test_austerity_is_exact_at_a_small_tolerance_and_wrong_at_a_loose_one(linear):
    exact, most = last_states(linear, Austerity, tolerance=1e-4)
    wrong, fewest = last_states(linear, Austerity, tolerance=0.1)
    assert not unlikely(exact)
    assert unlikely(wrong)
    assert (wrong.std(axis=0) > 1.1).all()  # wrong decisions let chains go too far
    assert fewest < most < ROWS


@pytest.mark.slow
def test_the_confidence_sampler_is_exact_and_wrong_once_its_bound_is_taken_away(linear):
    """At any tolerance below 1 the bound is so cautious that no decision is wrong. The loose one lacks its C."""
    exact, rows = last_states(linear, Confidence, tolerance=0.1)
    wrong, _ = last_states(linear, Confidence, minibatch=5, tolerance=0.9, safety=1e-6)
    assert not unlikely(exact)
    assert unlikely(wrong)
    assert rows > 0.95 * ROWS  # without proxies nearly all rows are read, as the authors found


@pytest.mark.slow
def test_proxies_of_second_order_are_exact_for_a_quadratic_log_likelihood(linear):
    exact, rows = last_states(linear, Confidence, tolerance=1e-3, proxies=True)
    assert not unlikely(exact)
    assert rows == pytest.approx(100, rel=0.01)  # one minibatch decides
    plain, _ = last_states(linear, Confidence, tolerance=0.1)
    np.testing.assert_allclose(np.mean(exact == plain), 1.0, atol=0.01)  # nearly all decisions are the same
