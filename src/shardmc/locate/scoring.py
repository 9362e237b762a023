"""Modes of shards from first derivatives alone: Newton steps with products of scores in place of the curvature."""

from __future__ import annotations

from typing import final

import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import Engine, in_order
from shardmc.locate.ascent import DECREMENT
from shardmc.locate.terms import SubposteriorScores
from shardmc.model import Density
from shardmc.target import DeviceFrame
from shardmc.types import Frame

_ROUNDS = 20
_LONGEST = 3.0
"""The longest step, in posterior standard deviations of all rows, on average over parameters."""
_FEWEST, _PER_PARAMETER = 2_000, 50
"""Groups that a shard needs, in all and per parameter, so that products of their scores show its curvature."""


@final
class ScoreSteps:
    """The search of one shard, in the coordinates of a frame."""

    def __init__(self, dim: int) -> None:
        self.u = np.zeros(dim)
        self.curvature = np.full((dim, dim), np.nan)
        """At the point before the last step."""
        self.decrement = np.inf

    def advance(self, gradient: np.ndarray, curvature: np.ndarray) -> bool:
        """Take the next step from gradient and curvature at `u`. Returns whether another one is needed."""
        if not (np.isfinite(gradient).all() and np.isfinite(curvature).all()):
            self.decrement = np.inf
            return False
        step = np.linalg.lstsq(curvature, gradient)[0]
        self.curvature = curvature
        self.decrement = float(np.sqrt(max(gradient @ step, 0.0)))
        longest = _LONGEST * np.sqrt(len(step))
        self.u = self.u + step * min(1.0, longest / max(float(np.linalg.norm(step)), 1e-300))
        return not self.arrived

    @property
    def arrived(self) -> bool:
        return self.decrement < DECREMENT


def modes_by_scores(
    model: Density, blocks: Blocks, frame: Frame, engine: Engine
) -> tuple[list[ScoreSteps], float]:
    """The searches of all shards, from the mode of all rows at the frame's centre, and the passes over all rows.

    Products of scores sum to about the curvature, up to chance and to what is wrong with the model. The latter is the
    same for all shards: it is measured at the centre, where the curvature of all rows is known to be 1.
    """
    searches = [ScoreSteps(frame.dim) for _ in range(blocks.num_shards)]
    searching, passes, device = list(range(blocks.num_shards)), 0.0, DeviceFrame.of(frame)
    scale = np.eye(frame.dim)
    for count in range(_ROUNDS):
        at = np.stack([search.u for search in searches]).astype(jnp.result_type(float))
        results = engine.map(SubposteriorScores(model), blocks, at, device, searching)
        found = {
            shard: [np.asarray(t, np.float64) for t in terms] for shard, terms in in_order(results, searching)
        }
        passes += float(blocks.shares[searching].sum())
        if count == 0:
            parts = [blocks.shares[shard] * products for shard, (_, products) in found.items()]
            scale = _inverse_root(np.sum(parts, axis=0))
        searching = [
            shard
            for shard, (slope, products) in found.items()
            if searches[shard].advance(slope, scale @ products @ scale)
        ]
        if not searching:
            break
    return searches, passes


def shows_curvature(blocks: Blocks, dim: int) -> bool:
    """Whether every shard has enough groups for its curvature to be the sum of products of their scores."""
    return bool(blocks.sizes.min() >= max(_FEWEST, _PER_PARAMETER * dim))


def _inverse_root(matrix: np.ndarray) -> np.ndarray:
    """M^-1/2, symmetric; of zero eigenvalues as if they were tiny."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return vectors / np.sqrt(np.maximum(values, 1e-12 * values.max())) @ vectors.T
