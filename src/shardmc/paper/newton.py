"""Newton's method as the paper uses it: a few undamped steps on all rows of a logistic regression."""

from __future__ import annotations

import numpy as np

_BLOCK = 50_000


def newton_steps(x: np.ndarray, y: np.ndarray, prior_sd: float, start: np.ndarray, steps: int) -> np.ndarray:
    """Iterates (step + 1, dim) for the mode of a logistic regression with independent N(0, prior_sd^2) priors.

    >>> x, y = np.array([[1.0], [1.0], [1.0]]), np.array([1.0, 1.0, 0.0])
    >>> newton_steps(x, y, 1e6, np.zeros(1), 5)[-1].round(6)
    array([0.693147])
    """
    theta = np.asarray(start, dtype=np.float64)
    found = [theta]
    for _ in range(steps):
        gradient, curvature = -theta / prior_sd**2, np.eye(len(theta)) / prior_sd**2
        for first in range(0, len(y), _BLOCK):
            rows = x[first : first + _BLOCK].astype(np.float64)
            probability = 1 / (1 + np.exp(-rows @ theta))
            gradient = gradient + rows.T @ (y[first : first + _BLOCK] - probability)
            curvature = curvature + (rows.T * (probability * (1 - probability))) @ rows
        theta = theta + np.linalg.solve(curvature, gradient)
        found.append(theta)
    return np.stack(found)
