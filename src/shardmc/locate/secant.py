"""Modes of shards from gradients alone: quasi-Newton steps from curvatures at the mode of all rows, then scores."""

from __future__ import annotations

from typing import final

import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import Engine, in_order
from shardmc.locate.ascent import DECREMENT
from shardmc.locate.terms import SubposteriorGradient, SubposteriorScores
from shardmc.model import Density
from shardmc.target import DeviceFrame
from shardmc.types import Frame

_ROUNDS = 30
_LONGEST = 3.0
"""The longest step, in posterior standard deviations of all rows, before anything is known of a shard's own scale."""
_FEWEST, _PER_PARAMETER = 2_000, 50
"""Groups that a shard needs, in all and per parameter, so that products of their scores show its curvature."""


@final
class SecantSteps:
    """The search of one shard: every step corrects the curvature by what the gradient did along it (BFGS)."""

    def __init__(self, curvature: np.ndarray) -> None:
        self.curvature = curvature.copy()  # (dim, dim) in the frame's coordinates
        self.u = np.zeros(len(curvature))
        self.decrement = np.inf
        self.is_measured = False
        """Whether the curvature was computed at the mode. What the steps learn of it is not enough to sample with."""
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def advance(self, gradient: np.ndarray) -> bool:
        """Take the next step from the gradient at `u`. Returns whether another one is needed."""
        if not np.isfinite(gradient).all():
            self.decrement = np.inf
            return False
        if self._last is not None:
            self._correct(self.u - self._last[0], self._last[1] - gradient)
        step = np.linalg.solve(self.curvature, gradient)
        self.decrement = float(np.sqrt(max(gradient @ step, 0.0)))
        self._last = self.u, gradient
        length = float(np.linalg.norm(step))
        longest = _LONGEST * np.sqrt(len(step))
        self.u = self.u + step * min(1.0, longest / max(length, 1e-300))
        return not self.arrived

    @property
    def arrived(self) -> bool:
        return self.decrement < DECREMENT

    def _correct(self, step: np.ndarray, change: np.ndarray) -> None:
        along = self.curvature @ step
        bend, before = float(step @ change), float(step @ along)
        if bend <= 1e-3 * before:  # the subposterior is not concave along the step
            return
        self.curvature += np.outer(change, change) / bend - np.outer(along, along) / before


def secant_modes(
    model: Density, blocks: Blocks, frame: Frame, curvatures: np.ndarray, engine: Engine
) -> tuple[dict[int, SecantSteps], float]:
    """The searches of the shards with a definite curvature, and the passes over all rows.

    In large shards the curvature at the end is that of products of scores.

    `curvatures` (shard, dim, dim) are those at the frame's centre, in the user's coordinates.
    """
    inner = frame.basis.T @ curvatures @ frame.basis
    definite = np.linalg.eigvalsh(inner)[:, 0] > 0
    searches = {int(shard): SecantSteps(inner[shard]) for shard in np.flatnonzero(definite)}
    searching, passes, device = sorted(searches), 0.0, DeviceFrame.of(frame)
    for _ in range(_ROUNDS):
        if not searching:
            break
        at = np.zeros((blocks.num_shards, frame.dim), jnp.result_type(float))
        for shard in searching:
            at[shard] = searches[shard].u
        results = engine.map(SubposteriorGradient(model), blocks, at, device, searching)
        passes += float(blocks.shares[searching].sum())
        searching = sorted(
            shard for shard, slope in results if searches[shard].advance(np.asarray(slope, np.float64))
        )
    arrived = [shard for shard, search in searches.items() if search.arrived]
    if arrived and blocks.sizes.min() >= max(_FEWEST, _PER_PARAMETER * frame.dim):
        at = np.stack([searches[i].u if i in arrived else np.zeros(frame.dim) for i in range(len(inner))])
        for shard, curvature in enumerate(curvatures_from_scores(model, blocks, frame, at, engine)):
            if shard in arrived:
                searches[shard].curvature, searches[shard].is_measured = curvature, True
        passes += 2.0
    return searches, passes


def curvatures_from_scores(
    model: Density, blocks: Blocks, frame: Frame, u: np.ndarray, engine: Engine
) -> np.ndarray:
    """Curvatures (shard, dim, dim) of the shards at points u (shard, dim) of a frame, from first derivatives only.

    Products of scores sum to about the curvature, up to chance and to what is wrong with the model. The latter is the
    same for all shards: it is measured where the curvature of all rows is known, at the frame's centre, where it is 1.
    """
    device, real = DeviceFrame.of(frame), jnp.result_type(float)

    def products(at: np.ndarray) -> np.ndarray:
        results = engine.map(SubposteriorScores(model), blocks, at.astype(real), device)
        found = [np.asarray(terms[1], np.float64) for _, terms in in_order(results, range(len(at)))]
        return np.stack(found)

    of_all = np.tensordot(blocks.shares, products(np.zeros_like(u)), axes=1)
    values, vectors = np.linalg.eigh((of_all + of_all.T) / 2)
    scale = vectors / np.sqrt(values) @ vectors.T
    return scale @ products(u) @ scale
