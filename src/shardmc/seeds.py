"""What a run's seed is used for: every purpose has its own random numbers."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardmc.errors import OptionError


class Purpose(IntEnum):
    """The uses of a seed. The numbers are part of the draws: a new purpose takes a new number."""

    TUNE = 1
    SAMPLE = 2
    COMBINE = 3
    CERTIFY = 4
    APPEND = 5
    POLISH = 6
    PREDICT = 7
    PREDICTIVE_CHECK = 8
    SITE = 9
    SAMPLE_ROWS = 10
    SHUFFLE_ROWS = 11
    SUBSAMPLE = 12
    PROPAGATE = 13
    EFFECTS = 14
    LEAVE_ONE_OUT = 15
    NEW_EFFECTS = 16
    SIMULATE = 17


def checked_seed(seed: object) -> int:
    """A seed, or an OptionError. In single precision JAX would use the last 32 bits of a larger one.

    >>> checked_seed(2**70)
    Traceback (most recent call last):
    shardmc.errors.OptionError: seed must be a whole number from 0 to 2^32 - 1, not 1180591620717411303424.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 32:
        raise OptionError(f"seed must be a whole number from 0 to 2^32 - 1, not {seed!r}.")
    return int(seed)


def generator(seed: int, purpose: Purpose, *more: int) -> np.random.Generator:
    """Random numbers for one purpose, and for numbers that tell its uses apart, such as a group's number.

    >>> generator(0, Purpose.COMBINE).random() == generator(0, Purpose.CERTIFY).random()
    False
    """
    # How many numbers follow is one of them, because NumPy takes [seed, purpose] and [seed, purpose, 0] as the same.
    return np.random.default_rng([seed, purpose, *((len(more), *more) if more else ())])


def shard_keys(seed: int, purpose: Purpose, count: int) -> np.ndarray:
    """Data of JAX's keys for the shards (shard, word): `fold_in(fold_in(key(seed), purpose), shard)`.

    With JAX's default generator they are computed here, because JAX would compile programs for them.

    >>> key = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), Purpose.SAMPLE), 2)
    >>> bool((shard_keys(7, Purpose.SAMPLE, 3)[2] == jax.random.key_data(key)).all())
    True
    """
    if jax.config.jax_default_prng_impl != "threefry2x32":  # pyright: ignore[reportAttributeAccessIssue]
        key = jax.random.fold_in(jax.random.key(seed), purpose)
        folded = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(np.arange(count, dtype=np.uint32))
        return np.asarray(jax.random.key_data(folded))
    zeros = np.zeros(count, np.uint32)
    key = threefry((zeros, zeros + np.uint32(seed)), (zeros, zeros + np.uint32(purpose)))
    return np.stack(threefry(key, (zeros, np.arange(count, dtype=np.uint32))), axis=1)


_BLOCKS = 8


def normals(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`jax.random.normal(key, shape)`, the same numbers, from a program that compiles and runs faster on a CPU.

    XLA would compute JAX's random numbers anew in every step that uses them, and compile that as often. The result of
    a loop over a few blocks is computed once.

    >>> key = jax.random.key(3)
    >>> bool((jax.jit(lambda key: normals(key, (4, 5)))(key) == jax.random.normal(key, (4, 5))).all())
    True
    """
    count = math.prod(shape)
    if not _as_here(key) or jnp.result_type(float) != jnp.float32 or count >= 1 << 31:
        return jax.random.normal(key, shape)
    words, each = jax.random.key_data(key), -(-count // _BLOCKS)

    def block(first: jax.Array) -> jax.Array:
        places = first + lax.iota(jnp.uint32, each)
        one, two = threefry((words[0], words[1]), (jnp.zeros_like(places), places))
        # 23 random bits are the digits of a number between 1 and 2.
        digits = (one ^ two) >> np.uint32(9) | np.uint32(0x3F800000)
        least = np.nextafter(np.float32(-1), np.float32(0))
        uniform = (lax.bitcast_convert_type(digits, jnp.float32) - 1) * (np.float32(1) - least) + least
        return np.float32(np.sqrt(2)) * lax.erf_inv(lax.max(least, uniform))

    every = lax.map(block, np.arange(0, _BLOCKS * each, each, dtype=np.uint32))
    return every.reshape(-1)[:count].reshape(shape)


def _as_here(key: jax.Array) -> bool:
    """Whether this key's numbers are those of JAX's default generator, and computed on a CPU."""
    partitionable = jax.config.jax_threefry_partitionable  # pyright: ignore[reportAttributeAccessIssue]
    default = str(jax.random.key_impl(key)) in ("fry", "threefry2x32")
    return default and bool(partitionable) and jax.default_backend() == "cpu"


Words = TypeVar("Words", np.ndarray, jax.Array)
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key: tuple[Words, Words], block: tuple[Words, Words]) -> tuple[Words, Words]:
    """The Threefry-2x32 hash of blocks of two words, in twenty rounds (Salmon et al. 2011). Takes uint32 arrays."""
    words = (*key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    one, two = block[0] + words[0], block[1] + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            one = one + two
            two = (two << np.uint32(rotation) | two >> np.uint32(32 - rotation)) ^ one
        one = one + words[(group + 1) % 3]
        two = two + words[(group + 2) % 3] + np.uint32(group + 1)
    return one, two


def derived_seed(seed: int, purpose: Purpose, *more: int) -> int:
    """A seed for one purpose and the numbers that tell its uses apart, such as a site's number."""
    return int(np.random.SeedSequence([seed, purpose, *more]).generate_state(1)[0] >> 1)
