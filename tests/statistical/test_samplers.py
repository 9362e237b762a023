"""Every sampler against exact, skewed subposteriors.

The fractional subposterior of a Poisson rate with a Gamma(a, b) prior is Gamma(share a + S_i, share b + n_i), far from
Gaussian for a handful of events. Mapped through its exact distribution function a shard's draws are uniform, so
the shards' means of U - 1/2 and of (U - 1/2)^2 - 1/12 are independent replicates with expectation 0, and a t-test
over shards needs no estimate of the chains' autocorrelation. False alarms: 10^-6 for all tests of this file together.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.locate import locate, locate_shards
from shardmc.model import Model
from shardmc.sample import HMC, NUTS, Exact, Independence, RandomWalk, Warped, sample
from shardmc.sample.sampler import Chains, Sampler, student_t
from shardmc.target import Warp

SHARDS, ROWS, PRIOR_SHAPE, PRIOR_RATE = 200, 2_000, 200.0, 400.0
SAMPLERS = {
    "independence": Independence(),
    "hmc": HMC(),
    "nuts": NUTS(),
    "random-walk": RandomWalk(),
    "warped": Warped(),
    "warped hmc": Warped(HMC()),
    "exact": Exact(
        lambda key, y, weights, power: {
            "rate": jax.random.gamma(key, power * (PRIOR_SHAPE + weights @ y))
            / (power * (PRIOR_RATE + weights.sum()))
        }
    ),
}
LEVEL = 1e-6 / (2 * 2 * len(SAMPLERS))


@pytest.fixture(scope="module")
def poisson():
    y = np.random.default_rng(5).poisson(0.5, size=ROWS).astype(np.float32)
    model = Model(
        lambda params, y: y * jnp.log(params["rate"]) - params["rate"],
        # The prior without its Jacobian, on the natural scale: Gamma(a, b) for the rate.
        lambda params: (PRIOR_SHAPE - 1) * jnp.log(params["rate"]) - PRIOR_RATE * params["rate"],
        {"rate": "positive"},
    )
    blocks = as_source(y).split(Partition(SHARDS), 0)
    engine = Local()
    mode = locate(model, blocks, engine)
    return model, blocks, locate_shards(model, blocks, mode, engine), engine


def uniform_deviations(poisson, sampler: Sampler, scaling: str) -> list[float]:
    """p-values of the two t-tests."""
    model, blocks, located, engine = poisson
    sampled = sample(model, blocks, located, sampler, engine, num_draws=100, seed=3, scaling=scaling)
    first, second = np.empty(SHARDS), np.empty(SHARDS)
    for names, batch in blocks.batches(range(SHARDS), 1):
        rows, weights = batch.take(0)
        power = blocks.shares[names[0]] if scaling == "fractional" else 1.0
        events, exposure = float(np.dot(np.asarray(weights, float), np.asarray(rows))), float(np.sum(weights))
        exact = stats.gamma(power * (PRIOR_SHAPE + events), scale=1 / (power * (PRIOR_RATE + exposure)))
        u = exact.cdf(np.exp(sampled.chains[names[0]].theta.ravel())) - 0.5
        first[names[0]], second[names[0]] = u.mean(), (u**2).mean() - 1 / 12
    return [stats.ttest_1samp(v, 0).pvalue for v in (first, second)]


@pytest.mark.slow
@pytest.mark.parametrize("scaling", ["rescaled", "fractional"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_draws_from_the_exact_subposterior(poisson, name, scaling):
    assert min(uniform_deviations(poisson, SAMPLERS[name], scaling)) > LEVEL


@dataclasses.dataclass(frozen=True)
class NeverRejects(Sampler):
    """The proposals of the independence sampler without its accept step: a Laplace approximation."""

    def sample(self, target, key, num_draws, tuning):
        return Chains(
            student_t(jax.random.normal(key, (1, num_draws, 20 + target.dim)), 20),
            jnp.ones(()),
            jnp.int32(0),
            jnp.int32(0),
        )


def test_the_same_test_rejects_a_sampler_without_its_accept_step(poisson):
    assert min(uniform_deviations(poisson, NeverRejects(), "fractional")) < LEVEL


class WithoutSlopes(Warp):
    """Maps whose slopes the target forgets."""

    def __call__(self, z):
        values, log_slopes = super().__call__(z)
        return values, 0 * log_slopes


@dataclasses.dataclass(frozen=True)
class ForgetsSlopes(Sampler):
    """`Warped` without the volume element of its coordinates."""

    tunes = True

    def tune(self, target, key):
        return Warped().tune(target, key)

    def sample(self, target, key, num_draws, tuning):
        warp = Warp.of(*tuning[:2])
        warp = WithoutSlopes(warp.log_slopes, warp.bends, warp.values)
        chains = Independence().sample(dataclasses.replace(target, warp=warp), key, num_draws, ())
        shift = jax.vmap(jax.vmap(lambda u: target.shift(warp, u)[0]))(chains.u)
        return dataclasses.replace(chains, shift=shift)


def test_the_same_test_rejects_warped_coordinates_without_their_volume_element(poisson):
    assert min(uniform_deviations(poisson, ForgetsSlopes(), "fractional")) < LEVEL
