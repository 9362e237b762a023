"""Stein's equation of densities on a line, from their noisy scores at some points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_POINTS = 1201
_BEYOND = 4.0
"""How many sds the grid goes beyond the points."""
_INTERVALS = 16
_PENALTIES = np.logspace(-4, 6, 11)
_LEAST_FALL = 0.3
"""Slope, per sd, with which the transformed score falls beyond the points at least."""
_LARGEST = 10.0
_LOWEST = -500.0


@dataclass(frozen=True)
class Lines:
    """Densities on one grid, each learnt without one part of the points."""

    grid: np.ndarray  # (grid,)
    score: np.ndarray  # (density, grid)
    density: np.ndarray  # (density, grid), of any scale

    @staticmethod
    def fitted(at: np.ndarray, scores: np.ndarray, parts: list[np.ndarray], flat: bool = False) -> Lines:
        """Densities whose scores are near to noisy ones at points.

        A smoothing spline of asinh(score), on which a score that grows exponentially is a straight line. Beyond
        the points it goes on as a straight line that falls, so that the density ends.

        Parameters
        ----------
        at
            Points, (point,).
        scores
            Noisy scores there, (point,).
        parts
            For each density the points from which it is not learnt.
        flat
            Whether the score stays constant beyond the points, so that the tails are exponential.
        """
        center, sd = float(at.mean()), max(float(at.std()), 1e-12)
        t = (at - center) / sd
        low, high = float(t.min()), float(t.max())
        step = max(high - low, 1e-9) / _INTERVALS
        weights = _smooth(_splines((t - low) / step), np.arcsinh(scores * sd), parts)
        grid = np.linspace(low - _BEYOND, high + _BEYOND, _POINTS)
        inside = np.clip(grid, low, high)
        curve = weights @ _splines((inside - low) / step).T
        if not flat:
            ends = (weights[:, [2, -1]] - weights[:, [0, -3]]) / (2 * step)  # slopes at both ends
            slopes = np.minimum(ends, -_LEAST_FALL)
            curve += slopes[:, :1] * np.minimum(grid - low, 0) + slopes[:, 1:] * np.maximum(grid - high, 0)
        score = np.sinh(np.clip(curve, -_LARGEST, _LARGEST))
        steps = (score[:, 1:] + score[:, :-1]) / 2 * (grid[1] - grid[0])
        log_density = np.concatenate([np.zeros((len(parts), 1)), np.cumsum(steps, axis=1)], axis=1)
        log_density -= log_density.max(axis=1, keepdims=True)
        return Lines(center + sd * grid, score / sd, np.exp(np.maximum(log_density, _LOWEST)))

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Means (density,) of functions (density, grid)."""
        return np.sum(self.density * values, axis=1) / np.sum(self.density, axis=1)

    def mean_and_sd(self) -> tuple[float, float]:
        """Mean and standard deviation, averaged over the densities."""
        values = np.tile(self.grid, (len(self.density), 1))
        means = self.mean(values)
        return float(means.mean()), float(np.sqrt(self.mean((values - means[:, None]) ** 2)).mean())

    def solve(self, values: np.ndarray) -> np.ndarray:
        """g (density, grid) with g' + score g = values - mean: 1 / p times the integral of p (values - mean)."""
        term = self.density * (values - self.mean(values)[:, None])
        pieces = (term[:, 1:] + term[:, :-1]) / 2 * (self.grid[1] - self.grid[0])
        none = np.zeros((len(pieces), 1))
        # From either end to the middle, so that no small number is the difference of large ones.
        left = np.concatenate([none, np.cumsum(pieces, axis=1)], axis=1)
        right = -np.concatenate([np.cumsum(pieces[:, ::-1], axis=1)[:, ::-1], none], axis=1)
        below = np.cumsum(self.density, axis=1)
        return np.where(below < 0.5 * below[:, -1:], left, right) / self.density


def _splines(at: np.ndarray) -> np.ndarray:
    """Cubic B-splines with knots at the whole numbers, for 0 <= at <= _INTERVALS, (point, _INTERVALS + 3)."""
    first = np.clip(np.floor(at).astype(int), 0, _INTERVALS - 1)
    x = (at - first)[:, None]
    pieces = np.concatenate(
        [(1 - x) ** 3, 3 * x**3 - 6 * x**2 + 4, -3 * x**3 + 3 * x**2 + 3 * x + 1, x**3], axis=1
    )
    values = np.zeros((len(at), _INTERVALS + 3))
    np.put_along_axis(values, first[:, None] + np.arange(4), pieces / 6, axis=1)
    return values


def _smooth(features: np.ndarray, target: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """Weights (part, feature) of splines with a penalty on their bends, each fitted without one part of the points.

    The penalty is the one with the least leave-one-out error.
    """
    bends = np.diff(np.eye(features.shape[1]), n=2, axis=0)
    gram, projected = features.T @ features, features.T @ target
    ridge = 1e-9 * np.eye(len(gram))
    penalties = _PENALTIES[:, None, None] * (bends.T @ bends) + ridge
    inverses = np.linalg.inv(gram + penalties)
    fitted = (inverses @ projected) @ features.T  # (penalty, point)
    leverage = np.einsum("pf,kfg,pg->kp", features, inverses, features, optimize=True)
    errors = np.sum(((target - fitted) / np.maximum(1 - leverage, 1e-3)) ** 2, axis=1)
    best = penalties[errors.argmin()]
    grams = np.stack([gram - features[out].T @ features[out] for out in parts])
    rest = np.stack([projected - features[out].T @ target[out] for out in parts])
    return np.linalg.solve(grams + best, rest[:, :, None])[:, :, 0]
