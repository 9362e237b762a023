"""What every sampler promises, whichever it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.errors import OptionError
from shardmc.locate import locate, locate_shards
from shardmc.model import Model
from shardmc.sample import (
    HMC,
    NUTS,
    Auto,
    Exact,
    Independence,
    RandomWalk,
    Sampler,
    Warped,
    named_sampler,
    sample,
)
from shardmc.target import DeviceFrame, Target

SAMPLERS = {
    "auto": Auto(),
    "independence": Independence(),
    "hmc": HMC(chains=3),
    "nuts": NUTS(chains=2),
    "random-walk": RandomWalk(chains=2),
    "warped": Warped(),
    "exact": Exact(
        lambda key, y, weights, power: {
            "mu": weights @ y / weights.sum() + jax.random.normal(key) / jnp.sqrt(power * weights.sum())
        }
    ),
}

WALKERS = ("hmc", "nuts", "random-walk")  # slow to compile
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in WALKERS else name for name in SAMPLERS]


@pytest.fixture(scope="module")
def gaussian():
    """Mean of unit-variance rows under a flat prior: shard i's rescaled subposterior is N(mean of its rows, 1/N)."""
    y = np.random.default_rng(1).normal(2.0, 1.0, size=1_003).astype(np.float32)
    model = Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    blocks = as_source(y).split(Partition(7), 0)
    engine = Local(batch=2)
    return model, blocks, locate_shards(model, blocks, locate(model, blocks, engine), engine)


@pytest.mark.parametrize("name", NAMES)
def test_shape_finiteness_and_statistics(gaussian, name):
    model, blocks, located = gaussian
    result = sample(model, blocks, located, SAMPLERS[name], Local(batch=1), num_draws=25, seed=0)
    assert len(result.chains) == 7
    for chains in result.chains:
        assert chains.theta.shape[0] * chains.theta.shape[1] >= 25
        assert np.isfinite(chains.theta).all()
        assert 0 < chains.acceptance <= 1
        assert chains.divergences == 0
    assert result.passes > 0


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_draws_for_any_batch_size_and_any_order(gaussian, name):
    model, blocks, located = gaussian
    first = sample(model, blocks, located, SAMPLERS[name], Local(batch=1), num_draws=25, seed=4)
    again = sample(model, blocks, located, SAMPLERS[name], Local(batch=5, workers=1), num_draws=25, seed=4)
    done = {i: first.chains[i] for i in (0, 3, 5)}
    resumed = sample(model, blocks, located, SAMPLERS[name], Local(batch=5), num_draws=25, seed=4, done=done)
    other = sample(model, blocks, located, SAMPLERS[name], Local(batch=1), num_draws=25, seed=5)
    for i in range(7):
        np.testing.assert_array_equal(first.chains[i].theta, again.chains[i].theta)
        np.testing.assert_array_equal(first.chains[i].theta, resumed.chains[i].theta)
        assert not np.array_equal(first.chains[i].theta, other.chains[i].theta)


@pytest.mark.slow
def test_auto_falls_back_where_acceptance_is_low_and_says_so():
    """A banana of 12 dimensions, far from any Student t."""
    model = Model(
        lambda params, y: -0.5 * (y - params["a"]) ** 2 / 100,
        lambda params: -0.5 * jnp.sum((params["b"] - 2 * (params["a"] - 1) ** 2) ** 2) / 0.02,
        {"a": (), "b": 11},
    )
    y = np.random.default_rng(0).normal(1.0, 1.0, size=200).astype(np.float32)
    blocks = as_source(y).split(Partition(2), 0)
    engine = Local()
    located = locate_shards(model, blocks, locate(model, blocks, engine), engine)
    result = sample(model, blocks, located, Auto(), engine, num_draws=40, seed=0)
    fallen = [c for c in result.chains if c.sampler == "HMC"]
    assert fallen
    assert all(c.acceptance >= 0.3 for c in result.chains if c.sampler == "Independence")
    assert f"{len(fallen)} of 2 shards were sampled with HMC" in result.notes[0]


@pytest.fixture(scope="module")
def skewed():
    """Twelve independent log rates with less than one event each: long tails on the left."""
    model = Model(
        lambda params, y: 0.0 * y,
        lambda params: jnp.sum(0.4 * params["log_rate"] - jnp.exp(params["log_rate"])),
        {"log_rate": 12},
    )
    blocks = as_source(np.zeros(60, np.float32)).split(Partition(6), 0)
    engine = Local()
    return model, blocks, locate_shards(model, blocks, locate(model, blocks, engine), engine)


@pytest.mark.slow
def test_auto_warps_skewed_targets_says_so_and_resumes_with_the_same_draws(skewed):
    model, blocks, located = skewed
    whole = sample(model, blocks, located, Auto(), Local(batch=1), num_draws=200, seed=2)
    assert [c.sampler for c in whole.chains] == ["Warped(Independence)"] * 6
    assert min(c.acceptance for c in whole.chains) > 0.6
    assert "6 of 6 shards were sampled with Warped(Independence)" in whole.notes[0]
    done = {i: whole.chains[i] for i in (0, 2, 4)}
    resumed = sample(model, blocks, located, Auto(), Local(batch=3), num_draws=200, seed=2, done=done)
    for one, other in zip(whole.chains, resumed.chains, strict=True):
        np.testing.assert_array_equal(one.theta, other.theta)


def test_without_warped_coordinates_few_proposals_are_accepted(skewed):
    model, blocks, located = skewed
    plain = sample(model, blocks, located, Independence(), Local(batch=1), num_draws=200, seed=2)
    assert max(c.acceptance for c in plain.chains) < 0.5


@pytest.mark.slow
def test_the_fallback_is_warped_too_if_that_is_why_more_is_accepted(skewed, monkeypatch):
    monkeypatch.setattr("shardmc.sample.sampling.LOW_ACCEPTANCE", {jax.default_backend(): 0.99})
    model, blocks, located = skewed
    result = sample(model, blocks, located, Auto(), Local(), num_draws=20, seed=2)
    assert [c.sampler for c in result.chains] == ["Warped(HMC)"] * 6
    without = sample(model, blocks, located, Auto(warped=None), Local(), num_draws=20, seed=2)
    assert [c.sampler for c in without.chains] == ["HMC"] * 6
    assert result.passes < without.passes


@pytest.mark.parametrize("method", [Independence(), Warped()])
def test_programs_that_are_kept_in_files_do_not_call_lapack(method):
    """Loaded from a file before anything was lowered, such a call would end the process."""
    model = Model(lambda params, y: -0.5 * (y - params["mu"].sum()) ** 2, None, {"mu": 3})
    target = Target(model, jnp.zeros(5), jnp.ones(5), DeviceFrame(jnp.zeros(3), jnp.eye(3)))

    def run(key):
        tuning = method.tune(target, key) if method.tunes else ()
        return method.sample(target, key, 8, tuning)

    assert "lapack" not in jax.jit(run).lower(jax.random.key(0)).as_text()


@pytest.mark.parametrize("inner", [SAMPLERS["exact"], Warped()])
def test_samplers_with_coordinates_of_their_own_are_not_warped(inner):
    with pytest.raises(OptionError, match="leave out Warped"):
        Warped(inner)


def test_unknown_names_and_options_list_the_valid_ones():
    with pytest.raises(OptionError, match="Did you mean 'hmc'"):
        named_sampler("hmcc")
    with pytest.raises(OptionError, match="Did you mean 'chains'"):
        named_sampler("hmc", chain=3)
    assert isinstance(named_sampler("independence", df=5), Sampler)
