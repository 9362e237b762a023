"""What the checks are told about the draws."""

import numpy as np
import pytest

import shardmc
from shardmc.sample import RandomWalk


@pytest.fixture(scope="module")
def mean():
    """Rows of a normal distribution and a model of their mean, sampled by slow chains."""
    y = np.random.default_rng(0).normal(size=4_000).astype(np.float32)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    return model, y, RandomWalk(chains=1, thin=1)


def test_draws_that_average_all_shards_are_worth_one_draw_of_a_shard_each(mean):
    model, y, sampler = mean
    posterior = shardmc.fit(model, y, shards=5, draws=400, combiner="consensus", sampler=sampler, keep=None)
    each = posterior.shards.ess[:, 0]
    assert posterior.certificate.ess[0] == pytest.approx(each.mean())
    assert each.mean() < 0.3 * len(posterior.theta)  # the chains are slow
