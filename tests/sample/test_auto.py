"""When the automatic choice of a sampler uses warped coordinates."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import shardmc
from shardmc.errors import OptionError
from shardmc.sample import HMC, named_sampler
from shardmc.sample.independence import Warped
from shardmc.sample.sampling import Auto, _choose

PILOTS = range(4)
SHARDS = range(7)
AUTO = Auto(
    first=SimpleNamespace(name="first"),  # type: ignore[arg-type]
    warped=SimpleNamespace(name="warped", matters=lambda tuning: True),  # type: ignore[arg-type]
)


class Job:
    """Shards with known acceptances, without and with a warp."""

    def __init__(self, first, warped, tail=0.0):
        self.acceptance = {"first": first, "warped": warped}
        self.blocks, self.pilots, self.tail = SimpleNamespace(matched=False), PILOTS, tail

    def tails(self):
        return np.array([[0.0, self.tail], [0.0, 0.0]])

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
    choice = _choose(Job(first, warped), AUTO, PILOTS, lambda shard, result: None)
    assert set(choice.low) == set(PILOTS)
    assert isinstance(choice.fallback, Warped) == uses_it
    assert not choice.heavy


@pytest.mark.parametrize(
    ("first", "warped", "left", "uses_it"),
    [
        (0.9, 0.9, 0, True),  # heavy tails do not show in the acceptance
        (0.9, 0.4, len(SHARDS), False),  # a warp that does not help
        (0.1, 0.4, len(SHARDS), True),
    ],
)
def test_heavy_tails_need_a_warp_or_hmc_whatever_is_accepted(first, warped, left, uses_it):
    kept = {}
    choice = _choose(Job(first, warped, tail=4.0), AUTO, SHARDS, kept.__setitem__)
    assert choice.heavy
    assert len(choice.low) == left == len(SHARDS) - len(kept)
    assert {result.acceptance for result in kept.values()} <= {warped}
    assert isinstance(choice.fallback, Warped) == uses_it


def prior_alone(log_prior):
    """Rows that tell about a mean, and a parameter of which they tell nothing."""
    return shardmc.Model(
        lambda params, y: -0.5 * (y - params["mean"]) ** 2 + 0.0 * params["free"],
        lambda params: -0.5 * params["mean"] ** 2 + log_prior(params["free"]),
        {"mean": (), "free": ()},
    )


@pytest.mark.parametrize(
    ("log_prior", "sd"),
    [
        (lambda x: -jnp.logaddexp(x, -x), np.pi / 2),  # the log of a half-Cauchy variable
        (lambda x: -3 * jnp.log1p(x**2 / 5), np.sqrt(5 / 3)),  # Student t with 5 degrees of freedom
        (lambda x: -0.5 * x**2, 1.0),
    ],
)
def test_heavy_tails_have_their_spread(log_prior, sd):
    """Independent draws: the sd has a standard error of 1.5 % at most (kurtosis 9), so 8 % are more than five of them.

    The control is independence sampling: with few proposals for each shard it loses a tenth of heavy tails and more.
    """
    y = np.random.default_rng(0).normal(size=5_000)
    options = {"shards": 50, "draws": 10_000, "seed": 0, "check": False}
    chosen = shardmc.fit(prior_alone(log_prior), y, **options)
    assert chosen.draws["free"].std() == pytest.approx(sd, rel=0.08)
    plain = shardmc.fit(prior_alone(log_prior), y, sampler="independence", **options)
    if sd == 1:
        np.testing.assert_array_equal(chosen.theta, plain.theta)
        assert not chosen.notes
    else:
        assert plain.draws["free"].std() < 0.92 * sd
        assert any("heavier tails" in note for note in chosen.notes)


def test_options_also_change_a_sampler_that_is_given():
    assert named_sampler(HMC(warmup=7), chains=3) == HMC(warmup=7, chains=3)
    with pytest.raises(OptionError, match=r"Unknown option of sampler 'HMC' 'chain'\. Did you mean 'chains'"):
        named_sampler(HMC(), chain=3)
