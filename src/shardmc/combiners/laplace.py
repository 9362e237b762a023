"""The normal approximation at the mode of all rows: the baseline a combination must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from shardmc.errors import OptionError
from shardmc.types import Combined, Combiner, Located, ShardDraws


@final
@dataclass(frozen=True)
class Laplace(Combiner):
    """Independent draws of N(theta^, H^-1), with theta^ the mode of all rows and H the curvature there.

    The shards' draws are not used, except that as many draws are made as there are in all shards.

    Examples
    --------
    >>> from shardmc.types import Mode
    >>> mode = Mode(np.zeros(1), np.array([[4.0]]), 0.0, 1.0)
    >>> nothing = np.full((1, 1, 1), np.nan)
    >>> located = Located(mode, np.ones(1), nothing[0], nothing, np.ones(1), np.array([False]))
    >>> shards = ShardDraws.of(np.zeros((1, 10_000, 1)))
    >>> round(float(Laplace()(shards, located, np.random.default_rng(0)).values.std()), 1)
    0.5
    """

    def __call__(self, draws: ShardDraws, located: Located | None, rng: np.random.Generator) -> Combined:
        """Draw from the normal approximation; the shards' own modes are not needed."""
        if located is None:
            raise OptionError(
                "The laplace combiner needs the mode and curvature of all rows, and only draws were given. "
                "Use 'product' for a normal approximation made from draws."
            )
        total = sum(len(v) for v in draws.values)
        return Combined(located.mode.frame.to_theta(rng.standard_normal((total, draws.dim))))
