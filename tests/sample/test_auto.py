"""When the automatic choice of a sampler uses warped coordinates."""

from types import SimpleNamespace

import pytest

from shardmc.errors import OptionError
from shardmc.sample import HMC, sampler
from shardmc.sample.independence import Warped
from shardmc.sample.sampling import Auto, _choose

PILOTS = range(4)


class Job:
    """Shards with known acceptances, without and with a warp."""

    def __init__(self, first, warped):
        self.acceptance = {"first": first, "warped": warped}
        self.blocks, self.pilots = object(), PILOTS

    def run(self, sampler, shards, what=""):
        return [(i, SimpleNamespace(acceptance=self.acceptance[sampler.name])) for i in shards]

    def tuning(self, sampler):
        return ()

    def what(self, sampler, shards):
        return ""


@pytest.mark.parametrize(
    ("first", "warped", "uses_it"),
    [
        (0.2, 0.3, False),  # not twice as many
        (0.2, 0.45, True),
        (0.4, 0.6, True),  # enough by itself
        (0.06, 0.13, True),
        (0.01, 0.035, False),  # with so few, a ratio of three is chance
        (0.0, 0.0, False),
    ],
)
def test_a_fallback_uses_a_warp_that_helps(first, warped, uses_it):
    auto = Auto(
        first=SimpleNamespace(name="first"),
        warped=SimpleNamespace(name="warped", matters=lambda tuning: True),
    )
    low, fallback = _choose(Job(first, warped), auto, PILOTS, lambda shard, result: None)
    assert set(low) == set(PILOTS)
    assert isinstance(fallback, Warped) == uses_it


def test_options_also_change_a_sampler_that_is_given():
    assert sampler(HMC(warmup=7), chains=3) == HMC(warmup=7, chains=3)
    with pytest.raises(OptionError, match=r"Unknown option of sampler 'HMC' 'chain'\. Did you mean 'chains'"):
        sampler(HMC(), chain=3)
