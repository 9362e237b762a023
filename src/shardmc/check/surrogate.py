"""A cheap guess of the gradients at every draw, learnt from the few draws where they were computed."""

from __future__ import annotations

import numpy as np

_MANY = 150  # points from which on one decomposition is cheaper than an inverse for every penalty
_BLOCK = 20_000  # draws at a time, for the sake of memory


def cross_fit(
    draws: np.ndarray, chosen: np.ndarray, residuals: np.ndarray, rng: np.random.Generator, folds: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Predict residuals at all draws from those at the chosen ones, by ridge regression on quadratics.

    The residual r(z) = s(z) + z of a posterior that is nearly Gaussian is nearly a quadratic form in z, so a few
    gradients tell most of it. With predictions f, mean(r) = mean over all draws of f + mean over the chosen ones
    of (r - f), where the second mean has little spread. Each chosen draw is predicted by a fit that has not seen
    it, so that the second mean corrects whatever f gets wrong and its spread is an honest one.

    Parameters
    ----------
    draws
        All draws z in whitened coordinates, (draw, dim).
    chosen
        Indices of the draws where the residuals are known, (chosen,).
    residuals
        Residuals there, (chosen, dim).
    rng
        Deals the chosen draws to the folds.
    folds
        How many fits are made, each without one fold.

    Returns
    -------
    everywhere
        Mean over the fits of the predictions at all draws, (draw, dim).
    held_out
        Predictions at the chosen draws by the fit that left them out, (chosen, dim).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(1000, 1))
    >>> everywhere, held_out = cross_fit(z, np.arange(50), z[:50] ** 2, rng)
    >>> bool(abs(everywhere - z**2).max() < 0.01)
    True
    """
    count = len(chosen)
    points = draws[chosen]
    # A typical inner product becomes 1, so that the linear and the quadratic features weigh alike.
    scale = max(float(np.median(np.sum(points**2, axis=1))) / np.sqrt(points.shape[1]), 1e-12)
    inner = (1 + points @ points.T / scale) ** 2
    parts = np.array_split(rng.permutation(count), min(folds, count))
    held_out = np.zeros(residuals.shape)
    center, weights = np.zeros(residuals.shape[1]), np.zeros(residuals.shape)
    for out in parts:
        fit = np.setdiff1d(np.arange(count), out)
        its_center, its_weights = _ridge(inner[np.ix_(fit, fit)], residuals[fit])
        held_out[out] = its_center + inner[np.ix_(out, fit)] @ its_weights
        center += its_center / len(parts)
        weights[fit] += its_weights / len(parts)
    everywhere = np.empty(draws.shape)
    for start in range(0, len(draws), _BLOCK):
        block = slice(start, start + _BLOCK)
        everywhere[block] = center + (1 + draws[block] @ points.T / scale) ** 2 @ weights
    return everywhere, held_out


def _ridge(kernel: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and dual weights of kernel ridge regression, its penalty chosen by the leave-one-out error."""
    center = targets.mean(axis=0)
    centered = targets - center
    penalties = np.mean(np.diag(kernel)) * np.logspace(-6, 2, 17)
    if len(kernel) > _MANY:
        sizes, vectors = np.linalg.eigh(kernel)
        inverse = 1 / np.maximum(sizes + penalties[:, None], 1e-300)  # (penalty, eigenvalue)
        weights = vectors @ (inverse[:, :, None] * (vectors.T @ centered))  # (penalty, point, output)
        left_out = weights / (inverse @ (vectors**2).T)[:, :, None]
    else:
        # Small inverses, not eigenvectors: for those LAPACK's threads may wait for each other longer than they work.
        inverses = np.linalg.inv(kernel + penalties[:, None, None] * np.eye(len(kernel)))
        weights = inverses @ centered  # (penalty, point, output)
        left_out = weights / np.diagonal(inverses, axis1=1, axis2=2)[:, :, None]
    errors = np.sum(left_out**2, axis=(1, 2))
    best = int(errors.argmin())
    return center, weights[best] if errors[best] < np.sum(centered**2) else np.zeros(targets.shape)
