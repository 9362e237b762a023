"""The Gibbs samplers of Example 4 and of the non-parametric claim against brute force and their own joint law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shardmc.paper import mixture, nonparametric

ALARM = 1e-9
COPIES = np.array([3, 1, 5, 2, 0, 4])


@pytest.fixture(scope="module")
def rows():
    found = mixture.simulate(6, np.random.default_rng(0))
    return {name: jnp.asarray(values) for name, values in found.items()}


STATE = {"alpha": 1.5, "beta": 4.0, "variance": 2.0, "outlier_variance": 6.0, "p": 0.3}


def after_one_step(step, rows, weights, num_draws=10_000, seed=0):
    state = {name: jnp.asarray(value) for name, value in STATE.items()}
    keys = jax.random.split(jax.random.key(seed), num_draws)
    found = jax.jit(jax.vmap(lambda key: step(key, state, rows, weights)))(keys)
    columns = [found["alpha"], found["beta"], found["p"]]
    columns += [jnp.log(found["variance"]), jnp.log(found["outlier_variance"])]
    return np.stack([np.asarray(c, np.float64) for c in columns], axis=1)


def alike(one, other):
    """Smallest p-value of two-sample tests of means and of spreads."""
    means = stats.ttest_ind(one, other, equal_var=False).pvalue
    spreads = [
        stats.ttest_ind(np.abs(a - np.median(a)), np.abs(b - np.median(b)), equal_var=False).pvalue
        for a, b in zip(one.T, other.T, strict=True)
    ]
    return min(*means, *spreads)


@pytest.fixture(scope="module")
def weighted(rows):
    return after_one_step(mixture.step, rows, jnp.asarray(COPIES, jnp.float32))


@pytest.mark.slow
def test_a_step_on_weighted_rows_is_a_step_on_repeated_rows(rows, weighted):
    repeated = {name: jnp.repeat(values, COPIES) for name, values in rows.items()}
    brute = after_one_step(mixture.step, repeated, jnp.ones(COPIES.sum()), seed=1)
    assert alike(weighted, brute) > ALARM


@pytest.mark.slow
def test_labels_shared_by_all_copies_are_told_apart(rows, weighted, monkeypatch):
    monkeypatch.setattr(mixture, "binomial_labels", lambda key, w, p: w * jax.random.bernoulli(key, p))
    wrong = after_one_step(mixture.step, rows, jnp.asarray(COPIES, jnp.float32), seed=1)
    assert alike(weighted, wrong) < ALARM


def invariance(step, num_draws=20_000):
    """Smallest p-value that a step changes the mean of some function of parameters and rows, both from their joint law.

    Parameters from the prior and rows given them are one exact draw of the joint law; so are they after a step.
    """
    rng = np.random.default_rng(1)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 8)), jnp.float32)
    prior = {
        "alpha": 10 * rng.standard_normal(num_draws),
        "beta": 10 * rng.standard_normal(num_draws),
        "variance": 1 / rng.gamma(2.0, size=num_draws),
        "outlier_variance": 1 / rng.gamma(2.0, size=num_draws),
        "p": rng.random(num_draws),
    }
    before = {name: jnp.asarray(values, jnp.float32) for name, values in prior.items()}

    def one(state, key):
        key_label, key_regular, key_other, key_step = jax.random.split(key, 4)
        mean = state["alpha"] * x[0] + state["beta"] * x[1]
        regular = mean + jnp.sqrt(state["variance"]) * jax.random.normal(key_regular, (8,))
        other = jnp.sqrt(state["outlier_variance"]) * jax.random.normal(key_other, (8,))
        y = jnp.where(jax.random.bernoulli(key_label, state["p"], (8,)), other, regular)
        after = step(key_step, state, {"x1": x[0], "x2": x[1], "y": y}, jnp.ones(8))
        return functions(after, y) - functions(state, y)

    def functions(state, y):
        size = jnp.log1p(y @ y)
        names = [state["alpha"] / 10, state["beta"] / 10, state["p"]]
        names += [jnp.log(state["variance"]), jnp.log(state["outlier_variance"])]
        base = jnp.stack(names)
        return jnp.concatenate([base, base**2, base * size])

    keys = jax.random.split(jax.random.key(3), num_draws)
    change = np.asarray(jax.jit(jax.vmap(one))(before, keys), np.float64)
    return float(stats.ttest_1samp(change, 0).pvalue.min())


@pytest.mark.slow
def test_a_step_leaves_the_joint_law_of_parameters_and_rows_unchanged():
    assert invariance(mixture.step) > ALARM


@pytest.mark.slow
def test_a_wrong_conditional_changes_the_joint_law(monkeypatch):
    right = mixture._variance
    monkeypatch.setattr(mixture, "_variance", lambda key, count, squares: right(key, count - 1, squares))
    assert invariance(mixture.step) < ALARM


def test_odds_of_a_label_are_the_ratio_of_the_terms_of_the_likelihood(rows):
    odds = np.exp(np.asarray(mixture.outlier_log_odds(STATE, rows)))
    y, residual = np.asarray(rows["y"]), np.asarray(mixture.residuals(STATE, rows))
    other = STATE["p"] * stats.norm.pdf(y, scale=np.sqrt(STATE["outlier_variance"]))
    regular = (1 - STATE["p"]) * stats.norm.pdf(residual, scale=np.sqrt(STATE["variance"]))
    np.testing.assert_allclose(odds, other / regular, rtol=1e-4)
    log_likelihood = mixture.log_likelihood({k: jnp.asarray(v) for k, v in STATE.items()}, rows)
    np.testing.assert_allclose(log_likelihood, np.log(other + regular), rtol=1e-4, atol=1e-5)


STICKS = nonparametric.StickBreaking(5, (-1.0, 0.0, 1.0))


@jax.jit
def log_densities(keys, y, weights):
    state = {
        "log_weights": jnp.log(jnp.array([0.4, 0.3, 0.1, 0.15, 0.05])),
        "mean": jnp.array([-1.0, 0.0, 1.0, 2.0, -2.0]),
        "variance": jnp.array([0.5, 1.0, 2.0, 0.3, 1.0]),
    }
    return jax.vmap(lambda key: STICKS.observe(STICKS.step(key, state, y, weights))["log_density"])(keys)


def sticks_after(y, weights, seed=0, num_draws=6_000):
    keys = jax.random.split(jax.random.key(seed), num_draws)
    return np.asarray(log_densities(keys, y, weights), np.float64)


@pytest.mark.slow
def test_sticks_on_weighted_rows_are_sticks_on_repeated_rows():
    y = jnp.asarray(nonparametric.simulate(6, np.random.default_rng(0)))
    weighted = sticks_after(y, jnp.asarray(COPIES, jnp.float32))
    brute = sticks_after(jnp.repeat(y, COPIES), jnp.ones(COPIES.sum()), seed=1)
    assert alike(weighted, brute) > ALARM
    unweighted = sticks_after(y, jnp.ones(6), seed=1)
    assert alike(weighted, unweighted) < ALARM


@pytest.mark.slow
def test_the_stick_is_all_used_and_breaks_as_it_should():
    count = jnp.array([3.0, 0.0, 2.0, 5.0])
    keys = jax.random.split(jax.random.key(0), 10_000)
    sticks = jax.jit(jax.vmap(lambda key: nonparametric._stick(key, count)))
    weights = np.exp(np.asarray(sticks(keys), np.float64))
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-4)
    assert stats.kstest(weights[:, 0], stats.beta(1 + 3, 1 + 7).cdf).pvalue > ALARM
    second = weights[:, 1] / (1 - weights[:, 0])
    assert stats.kstest(second, stats.beta(1 + 0, 1 + 7).cdf).pvalue > ALARM
    assert stats.kstest(second, stats.beta(1 + 1, 1 + 7).cdf).pvalue < ALARM
