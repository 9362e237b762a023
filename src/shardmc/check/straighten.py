"""Take the skewness of single parameters out of the gradients, so that what is left is nearly that of a Gaussian.

For any field phi, A phi = div phi + phi . s has mean zero under the posterior. A parameter of which few rows know much,
such as a rare or separated level, makes the score's departure r = s + z from that of a Gaussian a function of one
linear combination t = v^T z of the parameters, along v. The field g(t) v, with g the solution of Stein's equation of
that line's density, has A(g v) = -(t - mean) up to what the line leaves unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardmc.check.line import Lines

_SKEWED = 0.1
"""Parameters whose r spreads less than this are left as they are."""
_WORTH = 0.7
"""The spread of r that may be left, relative to what it was, for a line to be used."""
_FOLDS = 10


@dataclass(frozen=True, eq=False)
class Straightened:
    """Scores with the skewness of single parameters taken out, and what that does to E[z s^T]."""

    scores: np.ndarray
    """s* = s + sum_j (A(g_j v_j) - v_j^T s) v_j, (chosen, dim); its mean is zero under the posterior, too."""
    spread: np.ndarray
    """The posterior mean of Phi = I + sum_j (g_j - 1) v_j v_j^T, (dim, dim): E[z s*^T] = -E[Phi]."""
    skewed: np.ndarray
    """The parameters to which this was done, (dim,) bool."""
    tail_mean: np.ndarray
    """How far a mean moves, in z, where the posterior has exponential tails beyond the draws, (dim,)."""
    tail_sd: np.ndarray
    """Relative change of its sd, likewise, (dim,)."""


def straighten(
    z: np.ndarray, chosen: np.ndarray, scores: np.ndarray, basis: np.ndarray, rng: np.random.Generator
) -> Straightened:
    """Take out of the scores what single parameters explain of their departure from a Gaussian's.

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
    """A(g v) for the g of t - mean, and g less a term of mean zero that takes out its spread, at every point."""
    lines = Lines.fitted(at, score, parts)
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
    light, heavy = (Lines.fitted(at, score, nothing, flat).mean_and_sd() for flat in (False, True))
    return np.array([abs(heavy[0] - light[0]), abs(heavy[1] / light[1] - 1)])
