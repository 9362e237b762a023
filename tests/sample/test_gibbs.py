"""Gibbs on weighted rows against exact posteriors; every test here has a false-alarm rate below 1e-7."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import shardmc
from shardmc.data import Partition, as_source
from shardmc.engine import Local
from shardmc.errors import ModelError, OptionError
from shardmc.model import Model
from shardmc.sample import Gibbs, binomial_labels, sample
from shardmc.target import DeviceFrame, Target
from shardmc.types import Frame

ALARM = 1e-8
CHAINS = 128

MIXTURE = Model(
    lambda params, rows: jnp.log(params["p"] * rows[:, 1] + (1 - params["p"]) * rows[:, 0]),
    None,
    {"p": "unit_interval"},
)


def start(key, rows, weights):
    return {"p": jax.random.uniform(key)}


def update(labels):
    """The Gibbs step for the proportion of a mixture of two known densities."""

    def step(key, state, rows, weights):
        key_z, key_p = jax.random.split(key)
        p = state["p"]
        z = labels(key_z, weights, p * rows[:, 1] / (p * rows[:, 1] + (1 - p) * rows[:, 0]))
        return {"p": jax.random.beta(key_p, 1 + z.sum(), 1 + (weights - z).sum())}

    return step


def one_label_for_all_copies(key, weights, p):
    return weights * jax.random.bernoulli(key, p)


def drawn(labels, rows, weights, num_draws=CHAINS * 40):
    gibbs = Gibbs(update(labels), start, lambda state: state, warmup=40, chains=CHAINS)
    target = Target(MIXTURE, rows, weights, DeviceFrame.of(Frame.identity(1)))
    chains = jax.jit(lambda key: gibbs.sample(target, key, num_draws, ()))(jax.random.key(5))
    return 1 / (1 + np.exp(-np.asarray(chains.u, np.float64)[..., 0]))  # (chain, draw)


def exact_moments(rows, weights):
    p = (np.arange(20_000) + 0.5) / 20_000
    rows, weights = np.asarray(rows, np.float64), np.asarray(weights, np.float64)
    log_density = np.zeros_like(p)
    for (f0, f1), w in zip(rows, weights, strict=True):
        log_density += w * np.log(p * f1 + (1 - p) * f0)
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    mean = mass @ p
    return mean, mass @ (p - mean) ** 2


def p_values(draws, mean, variance):
    """Two-sided p-values of the mean and the second moment; chains are independent of each other."""
    tests = (draws - mean, (draws - mean) ** 2 - variance)
    return [float(stats.ttest_1samp(values.mean(axis=1), 0).pvalue) for values in tests]


@pytest.fixture(scope="module")
def mixture_rows():
    """Rows that speak for either density, so that neither proportion is ruled out."""
    ratio = np.linspace(1.5, 8.0, 6)
    rows = np.concatenate([np.stack([np.ones(6), ratio], axis=1), np.stack([ratio, np.ones(6)], axis=1)])
    return jnp.asarray(rows, jnp.float32), jnp.array([30.0, 10, 15, 18, 11, 1, 33, 20, 14, 41, 12, 0])


@pytest.mark.slow
def test_draws_have_the_exact_posterior_of_weighted_rows(mixture_rows):
    rows, weights = mixture_rows
    assert min(p_values(drawn(binomial_labels, rows, weights), *exact_moments(rows, weights))) > ALARM


@pytest.mark.slow
def test_a_label_shared_by_all_copies_is_rejected(mixture_rows):
    rows, weights = mixture_rows
    draws = drawn(one_label_for_all_copies, rows, weights)
    assert min(p_values(draws, *exact_moments(rows, weights))) < ALARM


@pytest.mark.slow
def test_weights_do_what_repeated_rows_do(mixture_rows):
    rows, weights = mixture_rows
    repeated = jnp.repeat(rows, np.asarray(weights, int), axis=0)
    draws = drawn(binomial_labels, repeated, jnp.ones(len(repeated)))
    assert min(p_values(draws, *exact_moments(rows, weights))) > ALARM


NORMAL = Model(
    lambda params, y: -0.5 * (y - params["mu"]) ** 2 / params["variance"] - 0.5 * jnp.log(params["variance"]),
    lambda params: -jnp.log(params["variance"]),
    {"mu": (), "variance": "positive"},
)


def normal_step(key, state, y, weights, power=1.0):
    key_mu, key_variance = jax.random.split(key)
    n = weights.sum()
    mu = weights @ y / n + jnp.sqrt(state["variance"] / n) * jax.random.normal(key_mu)
    half_sum = weights @ (y - mu) ** 2 / 2
    # prior**power * likelihood: variance**-(power + n/2)
    variance = half_sum / jax.random.gamma(key_variance, n / 2 + power - 1)
    return {"mu": mu, "variance": variance}


def normal_start(key, y, weights):
    return {"mu": weights @ y / weights.sum(), "variance": 1}


def mean_step(key, state, y, weights):
    """One conditional only, quick to compile."""
    n = weights.sum()
    mu = weights @ y / n + jnp.sqrt(state["variance"] / n) * jax.random.normal(key)
    return {"mu": mu, "variance": 1 + mu**2}


def sampled(y, shards, engine=None, num_draws=60, **options):
    arguments = {"step": mean_step, "init": normal_start, "observe": lambda state: state, "warmup": 10}
    scaling = options.pop("scaling", "rescaled")
    gibbs = Gibbs(**(arguments | options))
    blocks = as_source(y).split(Partition(shards), 1)
    return blocks, sample(
        NORMAL, blocks, None, gibbs, engine or Local(), num_draws=num_draws, seed=3, scaling=scaling
    )


@pytest.fixture(scope="module")
def y():
    return np.random.default_rng(0).normal(3.0, 2.0, size=1003).astype(np.float32)


def shard_rows(blocks, shard):
    _, batch = next(iter(blocks.batches([shard], 1)))
    rows, weights = batch.take(0)
    return np.asarray(rows, np.float64), np.asarray(weights, np.float64)


@pytest.mark.parametrize("scaling", [pytest.param("rescaled", marks=pytest.mark.slow), "fractional"])
def test_shards_of_unequal_size_have_their_exact_subposteriors(y, scaling):
    options = {"step": normal_step, "chains": 64, "whole": False, "scaling": scaling}
    blocks, result = sampled(y, 5, num_draws=64 * 40, **options)
    for shard, chains in enumerate(result.chains):
        rows, weights = shard_rows(blocks, shard)
        power = blocks.shares[shard] if scaling == "fractional" else 1.0
        weights = weights * power
        n = weights.sum()
        mean = weights @ rows / n
        half_sum = weights @ (rows - mean) ** 2 / 2
        shape = (n - 1) / 2 + power - 1
        expected = np.array([mean, half_sum / (shape - 1)])
        draws = np.stack([chains.theta[..., 0], np.exp(chains.theta[..., 1])], axis=-1)
        assert (stats.ttest_1samp(draws.mean(axis=1), expected).pvalue > ALARM).all()
        spread = half_sum / (shape - 1) / n
        squares = ((draws[..., 0] - mean) ** 2).mean(axis=1)
        assert stats.ttest_1samp(squares, spread).pvalue > ALARM
        # What the draws of the other scaling have is rejected.
        other = 5 if scaling == "rescaled" else 1 / 5
        assert stats.ttest_1samp(squares, spread * other).pvalue < ALARM


def test_draws_do_not_depend_on_the_batch_size(y):
    _, one = sampled(y, 5, Local(batch=1, workers=1))
    _, many = sampled(y, 5, Local(batch=3, workers=2))
    for a, b in zip(one.chains, many.chains, strict=True):
        np.testing.assert_array_equal(a.theta, b.theta)


def test_whole_multiplicities_and_padding_reach_the_step(y):
    def recording(key, state, rows, weights):
        del key, rows
        return {"mu": weights.sum(), "variance": 1 + jnp.abs(weights - jnp.round(weights)).max()}

    _, result = sampled(y, 5, step=recording)
    for chains in result.chains:
        assert np.abs(chains.theta[..., 0] - 1003).max() < 1
        assert np.abs(chains.theta[..., 1]).max() == 0


@pytest.mark.slow
def test_draws_are_the_same_in_any_frame(y):
    gibbs = Gibbs(mean_step, normal_start, lambda state: state, warmup=3, thin=2, chains=2)
    rows, weights = jnp.asarray(y), jnp.full(len(y), 4.0)
    frames = [Frame.identity(2), Frame(np.array([3.0, 1.4]), np.array([[0.03, 0.0], [0.01, 0.02]]))]
    thetas = []
    for frame in frames:
        target = Target(NORMAL, rows, weights, DeviceFrame.of(frame))
        u = gibbs.sample(target, jax.random.key(0), 10, ()).u
        assert u.shape == (2, 5, 2)
        thetas.append(frame.to_theta(np.asarray(u, np.float64)))
    np.testing.assert_allclose(*thetas, rtol=1e-5)


def test_a_vector_is_read_in_the_order_of_the_parameters(y):
    _, named = sampled(y, 2)
    _, vector = sampled(y, 2, observe=lambda state: jnp.stack([state["mu"], state["variance"]]))
    np.testing.assert_array_equal(named.chains[0].theta, vector.chains[0].theta)


def test_fractional_draws_need_a_step_that_takes_the_power(y):
    assert not Gibbs(mean_step, normal_start, lambda state: state).takes_power
    assert Gibbs(normal_step, normal_start, lambda state: state).takes_power
    _, result = sampled(y, 4, scaling="fractional")
    assert len(result.good) == 0
    _, result = sampled(y, 4)
    assert len(result.good) == 4


def test_a_combiner_of_fractional_draws_is_refused_at_once():
    """Before a row is read: the data are none."""
    gibbs = Gibbs(mean_step, normal_start, lambda state: state)
    with pytest.raises(OptionError, match=r"Consensus needs .* give step a fifth argument, power, or choose"):
        shardmc.fit(MIXTURE, None, sampler=gibbs, combiner="consensus")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observe": lambda state: {"mu": state["mu"]}}, "variance are missing"),
        ({"observe": lambda state: jnp.zeros(3)}, r"vector of their 2 numbers.*shape \(3,\)"),
        ({"step": lambda key, state, y, weights: state["mu"]}, "a state like the one it was given"),
        (
            {"step": lambda key, state, y, weights: {**state, "mu": y}},
            r"changed the shape of \['mu'\] from \(\)",
        ),
    ],
)
def test_functions_that_do_not_fit_are_named(y, options, message):
    with pytest.raises(ModelError, match=message):
        sampled(y, 2, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 3}, "step of Gibbs must be a function; int"),
        ({"warmup": -1}, "warmup of Gibbs must be a whole number from 0, not -1"),
        ({"thin": 0}, "thin of Gibbs"),
        ({"chains": 1.5}, "chains of Gibbs"),
    ],
)
def test_options_are_checked(options, message):
    arguments = {"step": normal_step, "init": normal_start, "observe": lambda state: state}
    with pytest.raises(OptionError, match=message):
        Gibbs(**(arguments | options))
