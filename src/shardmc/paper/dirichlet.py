"""A Dirichlet-process mixture of normals by truncated stick breaking, with rows that count several times."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from shardmc.sample import Gibbs, multinomial_labels

WEIGHTS, MEANS, SDS = (0.45, 0.35, 0.2), (-1.5, 0.8, 2.8), (0.5, 0.8, 0.6)
"""The mixture of normals from which rows are generated."""

_CONCENTRATION = 1.0
_MEAN_VARIANCE = 9.0  # of the normal prior of a component's mean, around 0
_SHAPE, _SCALE = 3.0, 1.0  # of the inverse gamma prior of its variance

State = dict[str, jax.Array]


def simulate(num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of the mixture."""
    label = rng.choice(len(WEIGHTS), size=num_rows, p=WEIGHTS)
    return (np.array(MEANS)[label] + np.array(SDS)[label] * rng.standard_normal(num_rows)).astype(np.float32)


def true_density(y: np.ndarray) -> np.ndarray:
    z = (np.asarray(y)[:, None] - np.array(MEANS)) / np.array(SDS)
    return (np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / np.array(SDS)) @ np.array(WEIGHTS)


@dataclass(frozen=True)
class StickBreaking:
    """Blocked Gibbs updates for a mixture of `components` normals whose weights come from a broken stick.

    v_h ~ Beta(1, concentration), weight_h = v_h prod_{l < h} (1 - v_l), v_last = 1; mean_h is normal, variance_h
    inverse gamma. The w_j copies of row j fall into components as Multinomial(w_j, p_j.); counts, sums and sums of
    squares run over copies. What is observed is no labelled component but the log density at `grid`.
    """

    components: int
    grid: tuple[float, ...]

    def gibbs(self, warmup: int, thin: int) -> Gibbs:
        return Gibbs(self.step, self.init, self.observe, warmup=warmup, thin=thin)

    def init(self, key: jax.Array, y: jax.Array, weights: jax.Array) -> State:
        """Components at random rows, weights all equal."""
        chosen = jax.random.choice(key, len(y), (self.components,), p=weights / weights.sum())
        equal = jnp.full(self.components, -jnp.log(self.components))
        return {"log_weights": equal, "mean": y[chosen], "variance": jnp.ones(self.components)}

    def step(self, key: jax.Array, state: State, y: jax.Array, weights: jax.Array) -> State:
        """Labels, stick, means and variances, each given the others."""
        keys = jax.random.split(key, 4)
        log_terms = _log_terms(state, y)
        z = multinomial_labels(keys[0], weights, jnp.exp(log_terms - log_terms.max(axis=1, keepdims=True)))
        count, total = z.sum(axis=0), y @ z
        precision = count / state["variance"] + 1 / _MEAN_VARIANCE
        mean = total / state["variance"] / precision
        mean = mean + jax.random.normal(keys[1], count.shape) / jnp.sqrt(precision)
        squares = jnp.sum(z * (y[:, None] - mean) ** 2, axis=0)
        variance = (_SCALE + squares / 2) / jax.random.gamma(keys[2], _SHAPE + count / 2)
        return {"log_weights": _stick(keys[3], count), "mean": mean, "variance": variance}

    def observe(self, state: State) -> State:
        return {"log_density": jax.nn.logsumexp(_log_terms(state, jnp.asarray(self.grid)), axis=1)}


def _log_terms(state: State, y: jax.Array) -> jax.Array:
    """log(weight_h) + log N(y; mean_h, variance_h), (point, component)."""
    z2 = (y[:, None] - state["mean"]) ** 2 / state["variance"]
    return state["log_weights"] - 0.5 * (z2 + jnp.log(2 * jnp.pi * state["variance"]))


def _stick(key: jax.Array, count: jax.Array) -> jax.Array:
    """Log weights of a broken stick given how many copies each component has."""
    after = jnp.cumsum(count[::-1])[::-1] - count
    # v and 1 - v as gamma variates over their sum, in logarithms: a piece may be smaller than float32 can hold.
    key_piece, key_rest = jax.random.split(key)
    log_piece = jax.random.loggamma(key_piece, 1 + count)
    log_rest = jax.random.loggamma(key_rest, _CONCENTRATION + after)
    log_sum = jnp.logaddexp(log_piece, log_rest)
    log_v = (log_piece - log_sum).at[-1].set(0.0)
    before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_rest - log_sum)[:-1]])
    return log_v + before


def grid_points(y: np.ndarray, count: int) -> tuple[float, ...]:
    """Equally spaced points between the 0.5 % and 99.5 % quantiles."""
    low, high = np.quantile(y, [0.005, 0.995])
    return tuple(np.linspace(low, high, count).tolist())
