"""What a run's seed is used for: every purpose has its own random numbers."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

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


def checked_seed(seed: object) -> int:
    """A seed, or an OptionError. In single precision JAX would use the last 32 bits of a larger one.

    >>> checked_seed(2**70)
    Traceback (most recent call last):
    shardmc.errors.OptionError: seed must be a whole number from 0 to 2^32 - 1, not 1180591620717411303424.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 1 << 32:
        raise OptionError(f"seed must be a whole number from 0 to 2^32 - 1, not {seed!r}.")
    return int(seed)


def generator(seed: int, purpose: Purpose) -> np.random.Generator:
    """Random numbers for one purpose.

    >>> generator(0, Purpose.COMBINE).random() == generator(0, Purpose.CERTIFY).random()
    False
    """
    return np.random.default_rng([seed, purpose])


def derived_seed(seed: int, purpose: Purpose, *more: int) -> int:
    """A seed for one purpose and the numbers that tell its uses apart, such as a site's number."""
    return int(np.random.SeedSequence([seed, purpose, *more]).generate_state(1)[0] >> 1)
