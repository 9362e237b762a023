"""A user's own model with effects of groups: its likelihood of rows, integrated over the effects of each group."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, final

import jax
import jax.numpy as jnp

from shardmc.data.grouped import GroupedRows
from shardmc.mixed.marginal import GroupLikelihood, LocalEffects, Marginal, Params
from shardmc.model import Model
from shardmc.model.effects import GroupEffects


@final
class OwnGroupLikelihood(GroupLikelihood):
    """The log-likelihood of groups of a model that declares their effects, by quadrature."""

    def __init__(self, model: Model, effects: GroupEffects) -> None:
        self.function, self.effects = model.log_likelihood_function, effects
        self.fingerprint_text = f"effects {effects.names} of groups {effects.column}"
        self.fingerprint_function = model.at_typical_effects().log_likelihood_function
        self.local = LocalEffects(self.of_stretches, effects.root, effects.size)
        self.marginal = Marginal(self.local)

    def __call__(self, params: Params, data: GroupedRows) -> jax.Array:
        return self.marginal(params, data)

    def moments(self, params: Params, data: GroupedRows) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Moments of the effects of each group given the parameters, their means included."""
        mean, covariance, third = self.marginal.moments(params, data)
        return mean + self.effects.means(params), covariance, third

    def of_stretches(
        self, params: Params, rows: Any, effects: jax.Array, weights: jax.Array, counted: bool
    ) -> jax.Array:
        """The log-likelihood of stretches of rows (stretch,), given the effects (stretch, effect) less their means."""
        values = self._of_rows(dict(params), rows, effects, weights.shape)
        if not counted:
            values = weights * values
        return jnp.sum(jnp.where(weights > 0, values, 0.0), axis=0)

    def _of_rows(
        self, params: dict[str, Any], rows: Any, effects: jax.Array, shape: tuple[int, ...]
    ) -> jax.Array:
        """The log-likelihood of every row, (row, stretch): the user's function sees rows one after the other."""
        of_group = self.effects.means(params) + effects
        of_rows = jnp.broadcast_to(of_group, (*shape, self.effects.size))
        flat, each = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (rows, of_rows))
        return self.function(params, flat, self.effects.named(each)).reshape(shape)


@lru_cache(maxsize=8)
def integrated(model: Model) -> Model:
    """The model of groups: the same object, with its compiled programs, when the same model comes again."""
    assert model.effects is not None
    return model.with_likelihood(OwnGroupLikelihood(model, model.effects))
