"""The methods that the paper compares, with the numbers of draws made equal."""

from __future__ import annotations

import numpy as np

from shardmc.combine import combiner
from shardmc.combine.recenter import Recenter
from shardmc.types import Combiner, Located, ShardDraws

PAPER_METHODS = ("CMC", "AR", "WS", "MP")
"""Consensus Monte Carlo, the paper's average of recentred subposteriors, Weierstrass sampler, M-posterior."""

THINNING = 4
"""The default's MCMC draws are thinned by this, so that they are compared as independent ones."""


def rivals() -> dict[str, Combiner]:
    """The combiner of each method of the paper, AR as printed."""
    return {
        "CMC": combiner("consensus"),
        "AR": Recenter.algorithm_1(),
        "WS": combiner("weierstrass"),
        "MP": combiner("mposterior"),
    }


def combined_draws(
    method: Combiner,
    rescaled: ShardDraws,
    fractional: ShardDraws,
    count: int,
    rng: np.random.Generator,
    located: Located | None = None,
) -> np.ndarray:
    """`count` draws (draw, dim) of the combination, from the subposteriors that the method takes."""
    draws = rescaled if method.scaling == "rescaled" else fractional
    return thinned(method(draws, located, rng).values, count)


def thinned(values: np.ndarray, count: int) -> np.ndarray:
    """`count` of the draws, evenly spaced; pooled draws lie shard by shard, so that each keeps its part."""
    return values[np.arange(count) * len(values) // count] if len(values) > count else values
