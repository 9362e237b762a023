"""Close to the modes of shards by gradients alone: quasi-Newton steps from curvatures at the mode of all rows."""

from __future__ import annotations

from typing import final

import jax.numpy as jnp
import numpy as np

from shardmc.data.batch import Blocks
from shardmc.engine import Engine
from shardmc.locate.terms import SubposteriorGradient
from shardmc.model import Density
from shardmc.target import DeviceFrame
from shardmc.types import Frame

_ROUNDS = 30
_LONGEST = 3.0
"""The longest step, in posterior standard deviations of all rows, before anything is known of a shard's own scale."""
_CLOSE = 0.1
"""A search ends when its next step is shorter than this, in the shard's standard deviations."""


@final
class SecantSteps:
    """The search of one shard: every step corrects the curvature by what the gradient did along it (BFGS)."""

    def __init__(self, curvature: np.ndarray) -> None:
        self.curvature = curvature.copy()  # (dim, dim) in the frame's coordinates
        self.u = np.zeros(len(curvature))
        self.decrement = np.inf
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
        return self.decrement >= _CLOSE

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
    return searches, passes
