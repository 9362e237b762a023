"""SGLD and SGHMC against the exact distributions of their chains, and control variates against their theory.

For rows y_j ~ N(mu, 1) and a flat prior the posterior is Gaussian. SGLD's stationary distribution is close to Gaussian,
since the gradient's noise is a mean of several rows, and its variance is known. Of many independent chains only the
last states count, so they are independent draws and their sum of squares is about chi^2.

False-alarm rate: 1e-6 for the file. There are fewer than 20 bounds, each set at LEVEL = 5e-8.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import shardmc
from shardmc.field import SGHMC, SGLD
from shardmc.field.gradients import estimated_gradient, gradient_noise, stationary_variance
from shardmc.field.subsampling import run_chains

LEVEL = 5e-8
CHAINS = 5_000
ROWS = 2_000


def unlikely(u: np.ndarray, variance: float) -> bool:
    """Whether independent draws (draw,) do not have mean 0 and this variance."""
    squares = float((u**2).sum() / variance)
    spread = 2 * min(stats.chi2.cdf(squares, len(u)), stats.chi2.sf(squares, len(u)))
    shift = 2 * stats.norm.sf(abs(u.mean()) * np.sqrt(len(u) / variance))
    return min(spread, shift) < LEVEL / 2


@pytest.fixture(scope="module")
def normal(through_minibatches):
    y = np.random.default_rng(3).normal(2.0, 1.0, ROWS).astype(np.float32)
    model = shardmc.Model(lambda params, y: -0.5 * (y - params["mu"]) ** 2, None, {"mu": ()})
    return through_minibatches(model, y, 20)


def last_states(posterior, method) -> np.ndarray:
    tuned = method.tune(posterior, jax.random.key(1))
    return run_chains(method, posterior, tuned, jax.random.key(0), CHAINS).u[:, -1, 0]


def many_chains(kind, step_size: float, **options):
    return kind(step_size=step_size, chains=CHAINS, warmup=0, thin=round(6 / step_size), **options)


def noise_of(posterior) -> float:
    """The variance of the gradient's estimate, from all minibatches."""
    each = jax.vmap(lambda b: posterior.minibatch_gradient(jnp.zeros(1), b))(jnp.arange(posterior.data.count))
    return float(np.var(np.asarray(each, np.float64)))


def sgld_variance(step_size: float, noise: float) -> float:
    return (1 + step_size * noise / 4) / (1 - step_size / 4)


STEPS = (0.08, 0.04, 0.02)


@pytest.mark.slow
def test_the_bias_of_sgld_falls_in_proportion_to_the_step_size(normal):
    noise = noise_of(normal)
    assert noise == pytest.approx(ROWS / 20, rel=0.5)  # N / n, up to the rows' own variance
    biases = []
    for step_size in STEPS:
        variance = sgld_variance(step_size, noise)
        u = last_states(normal, many_chains(SGLD, step_size))
        assert not unlikely(u, variance)
        assert unlikely(u, 1.0)  # the exact posterior is not what it draws from
        assert unlikely(u, sgld_variance(2 * step_size, noise))  # nor is the bias that of twice the step
        biases.append(float((u**2).mean()) - 1)
    # Each estimate has the relative error sqrt(2 / CHAINS) = 2 % of a variance below 3.
    rates = np.array(biases) / STEPS
    assert rates == pytest.approx((1 + noise) / 4, rel=0.35)


def test_with_control_variates_the_gradient_of_normal_rows_is_exact(normal):
    u = last_states(normal, many_chains(SGLD, 0.5, control_variates=True))
    assert not unlikely(u, sgld_variance(0.5, 0.0))
    assert unlikely(u, 1.0)


@pytest.mark.slow
def test_sghmc_has_the_variance_that_the_linear_recursion_gives(normal):
    noise = noise_of(normal)
    plain = last_states(normal, many_chains(SGHMC, 0.02))
    assert not unlikely(plain, stationary_variance(0.02, 2.0, noise))
    assert unlikely(plain, 1.0)
    exact = last_states(normal, many_chains(SGHMC, 0.1, control_variates=True))
    assert not unlikely(exact, stationary_variance(0.1, 2.0, 0.0))


def test_the_default_step_size_gives_the_inflation_asked_for(normal):
    for method in (SGLD(inflation=0.2), SGHMC(inflation=0.2)):
        step_size = float(method.tune(normal, jax.random.key(0)).values)
        noise = gradient_noise(normal, jax.random.key(0), control_variates=False)[0]
        variance = (
            sgld_variance(step_size, noise)
            if isinstance(method, SGLD)
            else stationary_variance(step_size, 2.0, noise)
        )
        assert 1.15 < variance < 1.201


@pytest.mark.slow
def test_decreasing_steps_reduce_the_bias(normal):
    """The variance follows V <- (1 - eps_t / 2)^2 V + eps_t + eps_t^2 noise / 4 from V = 1 on."""
    noise, variance = noise_of(normal), 1.0
    for count in range(300):
        step_size = 0.08 * (1 + count / 10) ** -0.6
        variance = (1 - step_size / 2) ** 2 * variance + step_size + step_size**2 * noise / 4
    u = last_states(normal, SGLD(step_size=0.08, chains=CHAINS, warmup=0, thin=300, decay=0.6, delay=10.0))
    assert not unlikely(u, variance)
    assert unlikely(u, sgld_variance(0.08, noise))


@pytest.fixture(scope="module")
def logistic(through_minibatches):
    rng = np.random.default_rng(5)
    x = np.column_stack([np.ones(4_000), rng.normal(size=(4_000, 2))]).astype(np.float32)
    y = (rng.random(4_000) < 1 / (1 + np.exp(-x @ np.array([-0.5, 1.0, -1.0])))).astype(np.float32)
    model = shardmc.Model(
        lambda params, rows: rows[1] * (rows[0] @ params["b"]) - jax.nn.softplus(rows[0] @ params["b"]),
        lambda params: -0.5 * jnp.sum(params["b"] ** 2),
        {"b": 3},
    )
    orders = [through_minibatches(model, (x, y), 40, seed) for seed in range(20)]
    return orders, x.astype(np.float64), y.astype(np.float64)


def row_gradients(posterior, x: np.ndarray, y: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Gradients (row, 3) of the log-likelihood of every row in whitened coordinates, in NumPy."""
    center, basis = (np.asarray(a, np.float64) for a in (posterior.frame.center, posterior.frame.basis))
    return (y - 1 / (1 + np.exp(-x @ (center + basis @ u))))[:, None] * x @ basis


@pytest.mark.slow
def test_control_variates_reduce_the_variance_by_the_factor_that_theory_says(logistic):
    """Of n of N rows without replacement: N^2 / n (1 - n / N) S^2, S^2 that of the rows' terms."""
    orders, x, y = logistic
    first, size = orders[0], 40
    at_mode = row_gradients(first, x, y, np.zeros(3))
    theory: dict[tuple[float, bool], np.ndarray] = {}
    for scale in (1.0, 0.5):
        u = scale * np.array([1.0, -1.0, 1.0])
        there = row_gradients(first, x, y, u)
        for control in (False, True):
            spread = (there - at_mode * control).var(axis=0, ddof=1)
            theory[scale, control] = len(x) ** 2 / size * (1 - size / len(x)) * spread
            program = jax.jit(
                lambda data, u, control=control: jax.lax.map(
                    lambda b: estimated_gradient(
                        first.__class__(first.model, data, first.frame, first.at_mode), u, b, control
                    ),
                    jnp.arange(data.count),
                )
            )
            found = [
                np.asarray(program(each.data, jnp.asarray(u, jnp.float32)), np.float64) for each in orders
            ]
            # 100 estimates of each of 20 orders; their mean is exact, so there are 99 degrees of freedom each.
            ratio = np.mean([f.var(axis=0, ddof=1) for f in found], axis=0) / theory[scale, control]
            degrees = 99 * len(orders)
            low, high = stats.chi2.ppf([LEVEL / 6, 1 - LEVEL / 6], degrees) / degrees
            assert ((low < ratio) & (ratio < high)).all()
            whole = jax.grad(first.log_prior)(jnp.asarray(u, jnp.float32)) + there.sum(axis=0)
            np.testing.assert_allclose(np.mean(found, axis=(0, 1)), whole, atol=2e-3 * np.abs(there).sum())
    gain = {scale: theory[scale, False] / theory[scale, True] for scale in (1.0, 0.5)}
    assert (gain[1.0] > 50).all()  # at one sd in every direction
    # The terms are proportional to the distance from the mode, their variance to its square.
    assert gain[0.5] / gain[1.0] == pytest.approx(4.0, rel=0.1)
    # Negative control: the plain estimate does not have the variance of the other.
    plain = np.asarray(program(orders[0].data, jnp.asarray(u, jnp.float32)), np.float64).var(axis=0, ddof=1)
    assert (plain / theory[0.5, False] < 0.1).all()
