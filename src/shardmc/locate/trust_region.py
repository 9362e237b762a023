"""One step of a trust-region Newton method, for curvatures that may be indefinite, flat or badly scaled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardmc.locate.terms import Terms
from shardmc.types import Frame


@dataclass(frozen=True)
class Step:
    """A step in the coordinates of a `Quadratic`."""

    u: np.ndarray  # (dim,)
    predicted: float
    """What the quadratic gains by it."""
    bounded: bool
    """Whether the radius cut it short of the quadratic's summit, or there is none."""

    @property
    def length(self) -> float:
        return float(np.linalg.norm(self.u))


@dataclass(frozen=True)
class Quadratic:
    """The log posterior near a point, pull^T u - u^T diag(bends) u / 2, in coordinates that make all directions alike.

    The coordinates are those of the absolute curvature, so every bend is about 1, -1, or 0 where nothing bends.
    """

    basis: np.ndarray  # (dim, dim) from these coordinates to the frame's
    pull: np.ndarray  # (dim,) gradient
    bends: np.ndarray  # (dim,) curvature, at most 1 in size
    values: np.ndarray  # (dim,) eigenvalues of the curvature in the coordinates before, smallest first

    @staticmethod
    def of(terms: Terms, floor: float, whitened: bool) -> Quadratic:
        """From gradient and curvature in a frame.

        Eigenvalues below `floor` times the largest are lost in rounding. Such a direction is stretched by as much as
        rounding allows, so that its curvature can be seen from the next point. Unless the frame's coordinates
        are those of the last curvature (`whitened`), they are scaled by the diagonal first.
        """
        diagonal = np.abs(np.diag(terms.curvature))
        scale = 1 / np.sqrt(np.where((diagonal > 0) & (not whitened), diagonal, 1.0))
        values, vectors = np.linalg.eigh(scale[:, None] * terms.curvature * scale)
        size = np.maximum(np.abs(values), floor * max(float(np.abs(values).max()), 1e-300))
        basis = scale[:, None] * vectors / np.sqrt(size)
        return Quadratic(basis, basis.T @ terms.gradient, values / size, values)

    @property
    def decrement(self) -> float:
        """Length of the Newton step that takes every bend as 1: the distance to the summit, if there is one."""
        return float(np.linalg.norm(self.pull))

    @property
    def definite(self) -> bool:
        return bool(self.bends.min() > 0)

    def frame(self, frame: Frame) -> Frame:
        """The frame with these coordinates at the same centre."""
        return Frame(frame.center, frame.basis @ self.basis)

    def length_before(self, u: np.ndarray) -> float:
        """Length in these coordinates of a step u of the frame's."""
        return float(np.linalg.norm(inverse(self.basis) @ u))

    def step(self, radius: float) -> Step:
        """The highest point of the quadratic within the radius."""
        if self.definite:
            u = self.pull / self.bends
            if np.linalg.norm(u) <= radius:
                return self._step(u, bounded=False)
        elif not np.isfinite(radius):
            radius = max(self.decrement, 1.0)
        return self._step(self._on_boundary(radius), bounded=True)

    def _on_boundary(self, radius: float) -> np.ndarray:
        """(bends + shift) u = pull with |u| = radius and a shift that makes all bends positive."""
        least = max(0.0, -float(self.bends.min()))

        def excess(shift: float) -> float:
            return float(np.linalg.norm(self.pull / (self.bends + shift))) - radius

        low, high = least + 1e-9, least + self.decrement / radius + 1e-6
        if excess(low) > 0:
            for _ in range(60):  # the length falls as the shift grows
                middle = (low + high) / 2
                low, high = (middle, high) if excess(middle) > 0 else (low, middle)
            return self.pull / (self.bends + high)
        # The gradient has nothing along the direction of the most negative bend: go there, either way.
        u = self.pull / (self.bends + low)
        lowest = np.zeros_like(u)
        lowest[int(np.argmin(self.bends))] = 1.0
        along = float(u @ lowest)
        return u + (-along + np.sqrt(along**2 + radius**2 - float(u @ u))) * lowest

    def _step(self, u: np.ndarray, *, bounded: bool) -> Step:
        return Step(u, float(self.pull @ u - 0.5 * np.sum(self.bends * u**2)), bounded)


def inverse(basis: np.ndarray) -> np.ndarray:
    """The inverse of a basis; where a direction was stretched beyond what numbers hold, its pseudo-inverse."""
    try:
        return np.linalg.inv(basis)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(basis)
