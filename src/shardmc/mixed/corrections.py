"""What a rule with few nodes misses at the mode: a linear correction of the log-likelihood of every group.

With l and l' the log-likelihoods of a group by a rule with few and by one with many nodes, a sampler uses

    l(theta) + l'(mode) - l(mode) + (theta - mode)^T d(l' - l)(mode),

which has the value and the gradient of l' at the mode. Few nodes then suffice: they must only have the right curvature.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from shardmc.data.grouped import GroupedBlocks, GroupedRows
from shardmc.engine import Engine
from shardmc.mixed.marginal import GroupLikelihood
from shardmc.model import Model


@dataclass(frozen=True)
class RuleErrors:
    """Program: what a rule lacks in the log-likelihood of each group (group,), as tilt @ params + level."""

    model: Model
    likelihood: GroupLikelihood

    def __call__(
        self, data: GroupedRows, weights: jax.Array, shard: None, shared: tuple[jax.Array, ...]
    ) -> Any:
        theta, *rules = shared
        point, as_params = ravel_pytree(dict(self.model.constrain(theta)))

        def missing(vector: jax.Array) -> jax.Array:
            few, many = (self.likelihood(as_params(vector), replace(data, rule=rule)) for rule in rules)
            return many - few

        value, along = jax.linearize(missing, point)
        tilt = lax.map(along, jnp.eye(len(point), dtype=point.dtype)).T
        return {"tilt": tilt, "level": value - tilt @ point}


def corrected(
    model: Model, likelihood: GroupLikelihood, blocks: GroupedBlocks, theta: np.ndarray, engine: Engine
) -> tuple[GroupedBlocks, float]:
    """Blocks whose rule is corrected by the finer one at theta, and how often all rows were evaluated."""
    assert blocks.rule is not None
    assert blocks.finer is not None
    layout = blocks.layout
    real = jnp.result_type(float)
    shared = tuple(jnp.asarray(each, real) for each in (theta, blocks.rule, blocks.finer))
    plain = replace(blocks, rule=None, finer=None).keep([np.empty(0, np.int64)] * blocks.num_shards)
    found: dict[str, np.ndarray] = {}
    for shard, parts in engine.map(RuleErrors(model, likelihood), plain, None, shared):
        start, size = layout.starts[shard], layout.sizes[shard]
        for name, part in parts.items():
            target = found.setdefault(name, np.empty((len(layout.order), *part.shape[1:]), np.float32))
            target[start : start + size] = np.asarray(part)[:size]
    count = 2.0 * (1 + found["tilt"].shape[1])
    return blocks.with_effects({**blocks.groups.rows, **found}), count
