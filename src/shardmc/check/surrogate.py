"""A cheap guess of the gradients at every draw, learnt from the few draws where they were computed."""

from __future__ import annotations

import numpy as np


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
    cross = (1 + draws @ points.T / scale) ** 2
    everywhere = np.zeros(draws.shape)
    held_out = np.zeros(residuals.shape)
    for out in np.array_split(rng.permutation(count), min(folds, count)):
        fit = np.setdiff1d(np.arange(count), out)
        center, weights = _ridge(inner[np.ix_(fit, fit)], residuals[fit])
        held_out[out] = center + inner[np.ix_(out, fit)] @ weights
        everywhere += (center + cross[:, fit] @ weights) / min(folds, count)
    return everywhere, held_out


def _ridge(kernel: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and dual weights of kernel ridge regression, its penalty chosen by the leave-one-out error."""
    center = targets.mean(axis=0)
    values, vectors = np.linalg.eigh(kernel)
    values = np.maximum(values, 0)
    rotated = vectors.T @ (targets - center)
    best, best_error = None, np.sum((targets - center) ** 2)
    for penalty in np.mean(np.diag(kernel)) * np.logspace(-6, 2, 17):
        shrink = values / (values + penalty)
        leverage = vectors**2 @ shrink
        misfit = targets - center - vectors @ (shrink[:, None] * rotated)
        error = np.sum((misfit / (1 - leverage)[:, None]) ** 2)
        if error < best_error:
            best, best_error = penalty, error
    if best is None:
        return center, np.zeros(targets.shape)
    return center, vectors @ (rotated / (values + best)[:, None])
