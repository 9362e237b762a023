"""Shards of an example as the library has them: rows split, modes located, subposteriors sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardmc.data import Blocks, Partition, as_source
from shardmc.engine import Local
from shardmc.locate import locate, locate_shards
from shardmc.model import Model
from shardmc.sample import Auto, sample
from shardmc.types import Located, Scaling, ShardDraws


@dataclass(frozen=True)
class LocatedShards:
    """A random partition without kept rows, as the paper has it, and the modes of its subposteriors."""

    model: Model
    blocks: Blocks
    located: Located

    @staticmethod
    def of(model: Model, data: Any, num_shards: int, seed: int) -> LocatedShards:
        blocks = as_source(data).split(Partition(num_shards), seed)
        mode = locate(model, blocks, Local())
        return LocatedShards(model, blocks, locate_shards(model, blocks, mode, Local()))

    def draws(self, scaling: Scaling, num_draws: int, seed: int) -> ShardDraws:
        """Draws of every shard on the unconstrained scale, by the default sampler."""
        options = {"num_draws": num_draws, "seed": seed, "scaling": scaling}
        sampled = sample(self.model, self.blocks, self.located, Auto(), Local(), **options)
        return sampled.draws()


def mapped(draws: ShardDraws, function: Callable[[np.ndarray], np.ndarray]) -> ShardDraws:
    """The same draws after a change of parameters."""
    return ShardDraws.of([function(values) for values in draws.values], draws.shares, draws.scaling)
