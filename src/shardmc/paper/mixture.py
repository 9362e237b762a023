"""Example 4: a regression some of whose rows come from another distribution, by Gibbs and with labels summed out."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.model import Model
from shardmc.sample import Gibbs, binomial_labels

TRUE = {"alpha": 2.0, "beta": 5.0, "variance": 1.0, "outlier_variance": 10.0, "p": 0.05}
"""The parameters from which rows are generated: alpha, beta, sigma^2, psi^2 and p of the paper."""

_SLOPE_VARIANCE = 100.0  # of the normal priors of alpha and beta, which have mean 0
_SHAPE, _SCALE = 2.0, 1.0  # of the inverse gamma priors of the variances
_SUCCESSES, _FAILURES = 1.0, 1.0  # of the Beta prior of p

State = dict[str, jax.Array]
Rows = dict[str, jax.Array]


def simulate(num_rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows of the mixture; the paper does not say how x is distributed, here it is standard normal."""
    x = rng.standard_normal((2, num_rows))
    outlier = rng.random(num_rows) < TRUE["p"]
    regular = (
        TRUE["alpha"] * x[0] + TRUE["beta"] * x[1] + np.sqrt(TRUE["variance"]) * rng.standard_normal(num_rows)
    )
    other = np.sqrt(TRUE["outlier_variance"]) * rng.standard_normal(num_rows)
    y = np.where(outlier, other, regular)
    return {"x1": x[0].astype(np.float32), "x2": x[1].astype(np.float32), "y": y.astype(np.float32)}


def residuals(state: Any, rows: Rows) -> jax.Array:
    """y - alpha x1 - beta x2 of every row."""
    return rows["y"] - state["alpha"] * rows["x1"] - state["beta"] * rows["x2"]


def outlier_log_odds(state: Any, rows: Rows) -> jax.Array:
    """Log odds, given the parameters, that a row is from the other distribution."""
    return (
        jnp.log(state["p"])
        - jnp.log1p(-state["p"])
        + _log_normal(rows["y"], state["outlier_variance"])
        - _log_normal(residuals(state, rows), state["variance"])
    )


def _log_normal(x: jax.Array, variance: jax.Array) -> jax.Array:
    return -0.5 * (x**2 / variance + jnp.log(2 * jnp.pi * variance))


def step(key: jax.Array, state: State, rows: Rows, weights: jax.Array) -> State:
    """One sweep over the paper's conditionals: z_j ~ Binomial(w_j, p_j*), and (w_j - z_j) for its (1 - z_j)."""
    keys = jax.random.split(key, 6)
    z = binomial_labels(keys[0], weights, jax.nn.sigmoid(outlier_log_odds(state, rows)))
    regular = weights - z
    for name, column, key in (("alpha", "x1", keys[1]), ("beta", "x2", keys[2])):
        state = {**state, name: _slope(key, state, rows, regular, name, column)}
    squares = regular @ residuals(state, rows) ** 2
    return {
        **state,
        "variance": _variance(keys[3], regular.sum(), squares),
        "outlier_variance": _variance(keys[4], z.sum(), z @ rows["y"] ** 2),
        "p": jax.random.beta(keys[5], _SUCCESSES + z.sum(), _FAILURES + regular.sum()),
    }


def _slope(key: jax.Array, state: State, rows: Rows, regular: jax.Array, name: str, column: str) -> jax.Array:
    """A draw of one slope given everything else."""
    x = rows[column]
    precision = regular @ x**2 / state["variance"] + 1 / _SLOPE_VARIANCE
    # The paper's mean, written as a step from the present value: its sums are small, so that float32 is enough.
    pull = regular @ (x * residuals(state, rows)) / state["variance"] - state[name] / _SLOPE_VARIANCE
    return state[name] + pull / precision + jax.random.normal(key) / jnp.sqrt(precision)


def _variance(key: jax.Array, count: jax.Array, squares: jax.Array) -> jax.Array:
    """A draw of a variance given the number of its rows and the sum of their squares."""
    return (_SCALE + squares / 2) / jax.random.gamma(key, _SHAPE + count / 2)


def init(key: jax.Array, rows: Rows, weights: jax.Array) -> State:
    """Least squares for the slopes, and a tenth of the rows from the other distribution."""
    del key
    x = jnp.stack([rows["x1"], rows["x2"]], axis=1)
    slopes = jnp.linalg.solve(x.T @ (weights[:, None] * x), x.T @ (weights * rows["y"]))
    state = {"alpha": slopes[0], "beta": slopes[1]}
    mean_square = weights @ residuals(state, rows) ** 2 / weights.sum()
    outlier_variance = weights @ rows["y"] ** 2 / weights.sum()
    return {**state, "variance": mean_square, "outlier_variance": outlier_variance, "p": jnp.asarray(0.1)}


def observe(state: State) -> State:
    """All of the state are parameters."""
    return state


def gibbs(warmup: int = 100) -> Gibbs:
    """The Gibbs sampler of the example, for one shard or for all rows."""
    return Gibbs(step, init, observe, warmup=warmup)


def log_likelihood(params: dict[str, Any], rows: Rows) -> jax.Array:
    """Log density of every row, labels summed out."""
    regular = jnp.log1p(-params["p"]) + _log_normal(residuals(params, rows), params["variance"])
    other = jnp.log(params["p"]) + _log_normal(rows["y"], params["outlier_variance"])
    return jnp.logaddexp(regular, other)


def log_prior(params: dict[str, Any]) -> jax.Array:
    """Log density of the paper's conjugate priors, up to a constant."""
    slopes = -(params["alpha"] ** 2 + params["beta"] ** 2) / (2 * _SLOPE_VARIANCE)
    variances = sum(
        -(_SHAPE + 1) * jnp.log(params[name]) - _SCALE / params[name]
        for name in ("variance", "outlier_variance")
    )
    proportion = (_SUCCESSES - 1) * jnp.log(params["p"]) + (_FAILURES - 1) * jnp.log1p(-params["p"])
    return slopes + variances + proportion


@cache
def model() -> Model:
    """The same posterior with the labels summed out."""
    parameters = {
        "alpha": (),
        "beta": (),
        "variance": "positive",
        "outlier_variance": "positive",
        "p": "unit_interval",
    }
    start = {"alpha": 1.0, "beta": 1.0, "variance": 4.0, "outlier_variance": 30.0, "p": 0.1}
    return Model(log_likelihood, log_prior, parameters, initial=start)
