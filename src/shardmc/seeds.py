"""What a run's seed is used for: every purpose has its own random numbers."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


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


def generator(seed: int, purpose: Purpose) -> np.random.Generator:
    """Random numbers for one purpose.

    >>> generator(0, Purpose.COMBINE).random() == generator(0, Purpose.CERTIFY).random()
    False
    """
    return np.random.default_rng([seed, purpose])


def derived_seed(seed: int, purpose: Purpose, *more: int) -> int:
    """A seed for one purpose and the numbers that tell its uses apart, such as a site's number."""
    return int(np.random.SeedSequence([seed, purpose, *more]).generate_state(1)[0] >> 1)
