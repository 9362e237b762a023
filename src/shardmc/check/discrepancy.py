"""Kernel Stein discrepancy: do draws have the shape of a density whose score is known at them?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SteinTest:
    """A kernel Stein discrepancy and its p-value; small p-values say that the shape is wrong."""

    statistic: float
    p_value: float


def stein_kernel(points: np.ndarray, scores: np.ndarray) -> np.ndarray:
    r"""Matrix of the Stein kernel u(x, y) of the inverse multiquadric k(x, y) = (1 + |x - y|^2 / h^2)^(-1/2).

        u(x, y) = s(x)^T s(y) k + s(x)^T grad_y k + s(y)^T grad_x k + tr(grad_x grad_y^T k)

    Its mean over pairs of draws is zero where the draws come from the density with score s. The bandwidth h^2 is
    the median squared distance.

    Parameters
    ----------
    points
        Draws, (draw, dim), in coordinates in which all directions are alike.
    scores
        Gradients of the log density there, (draw, dim).
    """
    dim = points.shape[1]
    norms = np.sum(points**2, axis=1)
    square = np.maximum(norms[:, None] + norms[None, :] - 2 * points @ points.T, 0)
    width = max(float(np.median(square[np.triu_indices(len(points), 1)])), 1e-12)
    base = 1 / (1 + square / width)
    kernel = np.sqrt(base)
    slope = kernel * base / width  # grad_x k = -slope (x - y), grad_y k = slope (x - y)
    along = np.sum(scores * points, axis=1)[:, None] - scores @ points.T  # s(x)^T (x - y)
    trace = dim * slope - 3 * slope * base * square / width
    return scores @ scores.T * kernel + slope * (along + along.T) + trace


def stein_test(
    points: np.ndarray, scores: np.ndarray, rng: np.random.Generator, replicates: int = 1000
) -> SteinTest:
    """Kernel Stein discrepancy of independent draws, and the p-value of its wild bootstrap.

    The statistic is the U-statistic sum over i != j of u(x_i, x_j) / (n (n - 1)); its law under the density is that of
    the same sum with u multiplied by random signs e_i e_j.

    Parameters
    ----------
    points, scores
        Draws and scores, (draw, dim).
    rng
        Draws the signs.
    replicates
        Number of bootstrap sums; the p-value is at least 1 / (replicates + 1).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(100, 2))
    >>> stein_test(x, -x, rng).p_value > 0.05, stein_test(x + 1, -(x + 1), rng).p_value < 0.01
    (True, True)
    """
    count = len(points)
    kernel = stein_kernel(points, scores)
    np.fill_diagonal(kernel, 0)
    statistic = float(kernel.sum()) / (count * (count - 1))
    signs = rng.choice([-1.0, 1.0], size=(replicates, count))
    null = np.einsum("bi,bi->b", signs @ kernel, signs) / (count * (count - 1))
    return SteinTest(statistic, float((1 + np.sum(null >= statistic)) / (replicates + 1)))
