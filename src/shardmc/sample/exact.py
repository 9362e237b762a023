"""Independent draws of a conjugate subposterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from shardmc.data.batch import Rows
from shardmc.sample.sampler import Chains, Sampler
from shardmc.target import Target


@final
@dataclass(frozen=True)
class Exact(Sampler):
    """Independent draws by the user's own function of the weighted rows.

    Parameters
    ----------
    draw
        `draw(key, rows, weights, power) -> params`: one draw of the parameters, on their natural scale, from
        (prior * prod_j likelihood_j ** weights_j) ** power; `power` is 1 for rescaled subposteriors.

    Examples
    --------
    The mean of rows with unit variance has a normal posterior:

    >>> def draw(key, y, weights, power):
    ...     sd = 1 / jnp.sqrt(power * weights.sum())
    ...     return {"mu": weights @ y / weights.sum() + sd * jax.random.normal(key)}
    >>> params = Exact(draw).draw(jax.random.key(0), jnp.zeros(10_000), jnp.ones(10_000), 1.0)
    >>> bool(abs(params["mu"]) < 0.06)
    True
    """

    draw: Callable[[jax.Array, Rows, jax.Array, jax.Array], dict[str, jax.Array]]
    needs_mode = False

    def sample(self, target: Target, key: jax.Array, num_draws: int, tuning: Any) -> Chains:
        power = jnp.asarray(target.power)

        def one(key: jax.Array) -> jax.Array:
            params = self.draw(key, target.rows, target.weights, power)
            return target.model.unconstrain(params)

        theta = jax.vmap(one)(jax.random.split(key, num_draws))
        u = jnp.linalg.solve(target.frame.basis, (theta - target.frame.center).T).T
        return Chains(u[None], jnp.ones(()), jnp.int32(0), jnp.int32(1))
