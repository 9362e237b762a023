"""Random keys and numbers that are computed without JAX's own programs are those of JAX, bit by bit."""

import jax
import numpy as np
import pytest

from shardmc.model.precision import double_precision
from shardmc.seeds import Purpose, generator, normals, shard_keys


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("seed", [0, 7, 2**31 + 5, 2**32 - 1])
def test_keys_of_shards_are_those_of_jax(seed, double):
    with double_precision(double):
        key = jax.random.fold_in(jax.random.key(seed), Purpose.TUNE)
        expected = [jax.random.key_data(jax.random.fold_in(key, shard)) for shard in range(3)]
        np.testing.assert_array_equal(shard_keys(seed, Purpose.TUNE, 3), expected)


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(1,), (7, 5), (128, 36)])
def test_normal_numbers_are_those_of_jax(shape, implementation):
    key = jax.random.key(11, impl=implementation)
    found = jax.jit(lambda key: normals(key, shape))(key)
    np.testing.assert_array_equal(found, jax.random.normal(key, shape))


def test_another_generator_of_jax_is_used_if_it_is_the_default():
    with jax.default_prng_impl("rbg"):
        key = jax.random.fold_in(jax.random.key(1), Purpose.SAMPLE)
        expected = jax.random.key_data(jax.random.fold_in(key, 1))
        np.testing.assert_array_equal(shard_keys(1, Purpose.SAMPLE, 2)[1], expected)


def test_no_two_uses_share_random_numbers():
    """NumPy pads entropy with zeros, so that [0, 14] and [0, 14, 0, 0] would be the same."""
    uses = [(), (0,), (0, 0), (1,), (1, 0), (0, 1)]
    first = {generator(0, purpose, *more).random() for purpose in Purpose for more in uses}
    assert len(first) == len(Purpose) * len(uses)
    padded = [np.random.default_rng([0, Purpose.EFFECTS, *more]).random() for more in ((), (0, 0))]
    assert padded[0] == padded[1]  # what happens without the number of numbers
