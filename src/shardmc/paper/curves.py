"""Densities of draws as curves."""

from __future__ import annotations

import numpy as np

_FINE = 4_096


def density_curve(draws: np.ndarray, points: np.ndarray, scale: float) -> np.ndarray:
    """Gaussian kernel estimate of the density of draws (draw,) at increasing points.

    The bandwidth is Silverman's for a normal distribution with standard deviation `scale`: one for all curves of a
    panel, so that draws with a spike do not set their own.

    >>> x = np.random.default_rng(0).normal(size=100_000)
    >>> round(float(density_curve(x, np.array([0.0]), 1.0)[0]), 1)
    0.4
    """
    from scipy.ndimage import gaussian_filter1d

    bandwidth = 0.9 * scale * len(draws) ** -0.2
    left, right = points[0] - 6 * bandwidth, points[-1] + 6 * bandwidth
    counts, edges = np.histogram(draws, _FINE, (left, right))
    step = edges[1] - edges[0]
    smooth = gaussian_filter1d(counts / (len(draws) * step), bandwidth / step, mode="constant")
    return np.interp(points, (edges[1:] + edges[:-1]) / 2, smooth)
