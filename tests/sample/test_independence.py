"""The independence sampler's proposals: how many, and that the first ones are left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.model import Model
from shardmc.sample import Independence
from shardmc.target import DeviceFrame, Target


@pytest.fixture
def target():
    """A standard normal in two dimensions, as the one row's likelihood."""
    model = Model(lambda params, rows: -0.5 * jnp.sum(params["b"] ** 2) + 0 * rows, None, {"b": 2})
    return Target(model, jnp.zeros(1), jnp.ones(1), DeviceFrame(jnp.zeros(2), jnp.eye(2)))


@pytest.mark.parametrize(
    ("draws", "warmup", "proposals"), [(100, 24, 128), (8, 24, 32), (9, 24, 64), (5, 0, 32), (64, 32, 96)]
)
def test_proposals_come_in_multiples_of_32_and_all_beyond_the_draws_are_warm_up(
    target, draws, warmup, proposals
):
    chains = Independence(warmup=warmup).sample(target, jax.random.key(0), draws, ())
    assert int(chains.evaluations) == proposals
    assert chains.u.shape == (1, draws, 2)
    # The draws are the chain's end: a longer warm-up within the same number of proposals leaves out the same.
    rest = proposals - draws
    same = Independence(warmup=rest).sample(target, jax.random.key(0), draws, ())
    np.testing.assert_array_equal(chains.u, same.u)


def test_acceptance_is_that_of_all_proposals_however_few_draws_are_kept(target):
    """One draw and eight are the ends of the same 32 proposals; of a single one it would be 0 or 1."""
    one, eight = (
        [float(Independence().sample(target, jax.random.key(seed), n, ()).acceptance) for seed in range(5)]
        for n in (1, 8)
    )
    assert one == eight
    assert any(0 < share < 1 for share in one)
