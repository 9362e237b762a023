"""Linear regression with known noise: a posterior that is Gaussian exactly, its exact draws, and a test against it."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import shardmc

PRIOR_PRECISION = 400.0
FALSE_ALARM = 1e-8
"""Chance that `rejects` rejects draws that are right."""


def rows_of(seed: int, size: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(size), rng.normal(0.5 * seed, 1.0, size=size)]).astype(np.float32)
    y = x @ np.array([0.3, -0.2]) + shift + rng.normal(size=size)
    return {"x": x, "y": y.astype(np.float32)}


def model() -> shardmc.Model:
    return shardmc.Model(
        lambda params, rows: -0.5 * (rows["y"] - rows["x"] @ params["beta"]) ** 2,
        lambda params: -0.5 * PRIOR_PRECISION * jnp.sum(params["beta"] ** 2),
        {"beta": 2},
    )


def exact() -> shardmc.Exact:
    """Independent draws of a weighted subposterior."""

    def draw(key, rows, weights, power):
        x = rows["x"]
        precision = power * (x.T @ (weights[:, None] * x) + PRIOR_PRECISION * jnp.eye(2))
        lower = jnp.linalg.cholesky(precision)
        mean = jnp.linalg.solve(precision, power * (x.T @ (weights * rows["y"])))
        noise = jax.scipy.linalg.solve_triangular(lower.T, jax.random.normal(key, (2,)))
        return {"beta": mean + noise}

    return shardmc.Exact(draw)


def posterior(*parts: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and precision of the posterior of all rows."""
    x = np.concatenate([part["x"] for part in parts]).astype(np.float64)
    y = np.concatenate([part["y"] for part in parts]).astype(np.float64)
    precision = x.T @ x + PRIOR_PRECISION * np.eye(2)
    return np.linalg.solve(precision, x.T @ y), precision


def rejects(theta: np.ndarray, mean: np.ndarray, precision: np.ndarray) -> bool:
    """Whether independent draws (draw, 2) are not of N(mean, precision^-1).

    With z = L^T (theta - mean), precision = L L^T, the draws' z are standard normal, so T |mean z|^2 is chi^2 with 2
    degrees of freedom and the sum of squares of each coordinate chi^2 with T; the sum of products is
    sqrt(T) times a standard normal, but for T in the thousands. The four share the false alarms.
    """
    z = (theta - mean) @ np.linalg.cholesky(precision)
    count, level = len(z), FALSE_ALARM / 4
    squares = (z**2).sum(axis=0)
    tails = [
        stats.chi2.sf(count * (z.mean(axis=0) ** 2).sum(), 2),
        *(2 * np.minimum(stats.chi2.cdf(squares, count), stats.chi2.sf(squares, count))),
        2 * stats.norm.sf(abs(z[:, 0] @ z[:, 1]) / np.sqrt(count)),
    ]
    return bool(min(tails) < level)
