"""Take the skewness of single parameters out of the gradients, so that what is left is nearly that of a Gaussian.

For any field phi, A phi = div phi + phi . s has mean zero under the posterior. If few rows inform a parameter, such as
a rare or separated level, the score's departure r = s + z from that of a Gaussian is a function of one linear
combination t = v^T z of the parameters, along v. The field g(t) v, where g solves Stein's equation of the density of t,
has A(g v) = -(t - mean) up to what t leaves unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_SKEWED = 0.1
"""Parameters whose r has a smaller standard deviation are left unchanged."""
_WORTH = 0.7
"""A line is used if it reduces the standard deviation of r to at most this fraction."""
_FOLDS = 10


@dataclass(frozen=True, eq=False)
class Straightened:
    """Scores without the skewness of single parameters, and the effect of that on E[z s^T]."""

    scores: np.ndarray
    """s* = s + sum_j (A(g_j v_j) - v_j^T s) v_j, (chosen, dim). Its mean under the posterior is also zero."""
    spread: np.ndarray
    """The posterior mean of Phi = I + sum_j (g_j - 1) v_j v_j^T, (dim, dim): E[z s*^T] = -E[Phi]."""
    skewed: np.ndarray
    """The parameters treated in this way, (dim,) bool."""
    tail_mean: np.ndarray
    """How far a mean moves, in z, if the posterior has exponential tails beyond the draws, (dim,)."""
    tail_sd: np.ndarray
    """Relative change of its sd in that case, (dim,)."""


def straighten(
    z: np.ndarray, chosen: np.ndarray, scores: np.ndarray, basis: np.ndarray, rng: np.random.Generator
) -> Straightened:
    """Remove from the scores the part of their departure from a Gaussian that single parameters explain.

    In z = L^T (theta - mode) parameter j alone moves along v_j = L^T e_j, and its value is u_j^T z with
    u_j = L^-1 e_j; u_j^T v_i = 0 for i != j, so that u_j^T r shows the part of r along v_j alone. The line's density is
    learnt from v_j^T s as a function of t_j = v_j^T z, at draws other than the one where it is used.

    Parameters
    ----------
    z
        All draws in whitened coordinates, (draw, dim).
    chosen
        Indices of the draws where the scores are known, (chosen,).
    scores
        Whitened scores there, (chosen, dim).
    basis
        L^-T, (dim, dim): theta = mode + basis @ z.
    rng
        For the folds.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> theta = np.log(rng.gamma(2.0, size=(2_000, 1)) / 2)  # skewed: the log of a Gamma variable
    >>> z, basis = theta * np.sqrt(2), np.array([[1 / np.sqrt(2)]])
    >>> score = 2 * (1 - np.exp(theta[:200])) @ basis
    >>> found = straighten(z, np.arange(200), score, basis, rng)
    >>> float((score + z[:200]).std().round(1)), float((found.scores + z[:200]).std().round(1))
    (0.5, 0.0)
    """
    points = z[chosen]
    r = scores + points
    along = np.linalg.inv(basis).T  # row j is L^T e_j
    along = along / np.linalg.norm(along, axis=1, keepdims=True)
    values = basis / np.linalg.norm(basis, axis=1, keepdims=True)
    overlap = np.sum(along * values, axis=1)
    of_parameter = r @ values.T
    wanted = np.flatnonzero(of_parameter.std(axis=0) > _SKEWED)
    parts = np.array_split(rng.permutation(len(chosen)), _FOLDS)
    scores, spread, skewed = scores.copy(), np.eye(z.shape[1]), np.zeros(z.shape[1], dtype=bool)
    tails = np.zeros((2, z.shape[1]))
    for j in wanted.tolist():
        v = along[j]
        at, score = points @ v, (r - points) @ v
        stein, factor = _solved(at, score, parts)
        eta = score - stein
        target = of_parameter[:, j] / overlap[j]
        if np.std(target - eta) > _WORTH * np.std(target):
            continue
        scores -= np.outer(eta, v)
        spread += (float(np.mean(factor)) - 1) * np.outer(v, v)
        skewed[j], tails[:, j] = True, _tails(at, score) * [overlap[j], overlap[j] ** 2]
    return Straightened(scores, spread, skewed, *tails)


def _solved(at: np.ndarray, score: np.ndarray, parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A(g v) for the g of t - mean, and g minus a term of mean zero that reduces its variance, at every point."""
    lines = LineDensities.fitted(at, score, parts)
    first = -lines.solve(np.tile(lines.grid, (len(parts), 1)))
    second = lines.solve(first)
    means, spreads = lines.mean(np.tile(lines.grid, (len(parts), 1))), lines.mean(first)
    stein, factor = np.zeros(len(at)), np.zeros(len(at))
    for k, out in enumerate(parts):
        # g' follows from Stein's equation of the line, so A(g v) = -(t - mean) + g (v^T s - the line's score).
        gap = score[out] - np.interp(at[out], lines.grid, lines.score[k])
        stein[out] = means[k] - at[out] + np.interp(at[out], lines.grid, first[k]) * gap
        factor[out] = spreads[k] - np.interp(at[out], lines.grid, second[k]) * gap
    return stein, factor


def _tails(at: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Change of the line's mean, and relative change of its sd, with exponential tails beyond the points, (2,)."""
    nothing = [np.empty(0, dtype=int)]
    light, heavy = (LineDensities.fitted(at, score, nothing, flat).mean_and_sd() for flat in (False, True))
    return np.array([abs(heavy[0] - light[0]), abs(heavy[1] / light[1] - 1)])


_POINTS = 1201
_BEYOND = 4.0
"""The grid extends this many sds beyond the points."""
_INTERVALS = 16
_PENALTIES = np.logspace(-4, 6, 11)
_LEAST_FALL = 0.3
"""The least slope, per sd, of the fall of the transformed score beyond the points."""
_LARGEST = 10.0
_LOWEST = -500.0


@dataclass(frozen=True)
class LineDensities:
    """Densities on one grid, each learned without one part of the points."""

    grid: np.ndarray  # (grid,)
    score: np.ndarray  # (density, grid)
    density: np.ndarray  # (density, grid), of any scale

    @staticmethod
    def fitted(
        at: np.ndarray, scores: np.ndarray, parts: list[np.ndarray], flat: bool = False
    ) -> LineDensities:
        """Densities fitted to noisy scores at points.

        A smoothing spline of asinh(score), which makes a straight line of a score that grows exponentially. Beyond
        the points it continues as a falling straight line, so that the density is proper.

        Parameters
        ----------
        at
            Points, (point,).
        scores
            Noisy scores there, (point,).
        parts
            For each density, the points that are left out of its fit.
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
        return LineDensities(center + sd * grid, score / sd, np.exp(np.maximum(log_density, _LOWEST)))

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
        # From both ends to the middle, so that no small number is a difference of large ones.
        left = np.concatenate([none, np.cumsum(pieces, axis=1)], axis=1)
        right = -np.concatenate([np.cumsum(pieces[:, ::-1], axis=1)[:, ::-1], none], axis=1)
        below = np.cumsum(self.density, axis=1)
        return np.where(below < 0.5 * below[:, -1:], left, right) / self.density


def _splines(at: np.ndarray) -> np.ndarray:
    """Cubic B-splines with knots at the integers, for 0 <= at <= _INTERVALS, (point, _INTERVALS + 3)."""
    first = np.clip(np.floor(at).astype(int), 0, _INTERVALS - 1)
    x = (at - first)[:, None]
    pieces = np.concatenate(
        [(1 - x) ** 3, 3 * x**3 - 6 * x**2 + 4, -3 * x**3 + 3 * x**2 + 3 * x + 1, x**3], axis=1
    )
    values = np.zeros((len(at), _INTERVALS + 3))
    np.put_along_axis(values, first[:, None] + np.arange(4), pieces / 6, axis=1)
    return values


def _smooth(features: np.ndarray, target: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """Weights (part, feature) of splines with a penalty on second differences, each fitted without one part.

    The penalty is the one with the smallest leave-one-out error.
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
