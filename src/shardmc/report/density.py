"""Smooth curves of the marginal density of draws."""

from __future__ import annotations

import numpy as np

_CELLS = 512
_REACH = 3.5
"""How many bandwidths the curve goes on beyond the outermost draw."""


def density_curve(values: np.ndarray, points: int = 64) -> tuple[np.ndarray, np.ndarray]:
    r"""Kernel density estimate of draws, on a grid that spans them.

        p(x) = 1/n sum_t N(x; x_t, h^2),    h = 0.9 min(sd, IQR / 1.34) n^(-1/5)

    The draws are counted on a fine grid first, so that a million of them cost as little as a thousand.

    Parameters
    ----------
    values
        Draws, (draw,); those that are not finite are left out.
    points
        Length of the curve.

    Returns
    -------
    x, y
        The curve, (points,) each; empty where there are fewer than two different draws.

    Examples
    --------
    >>> x, y = density_curve(np.random.default_rng(0).normal(size=1_000_000), points=201)
    >>> bool(abs(np.interp(0.0, x, y) - 0.3989) < 0.01)
    True
    >>> round(float(np.trapezoid(y, x)), 3)
    1.0
    """
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return np.empty(0), np.empty(0)
    width = bandwidth(values)
    low, high = float(values.min()) - _REACH * width, float(values.max()) + _REACH * width
    if not (width > 0 and low < high):
        return np.empty(0), np.empty(0)
    # Heavy tails would make cells wider than the kernel: then there are more of them.
    cells = int(np.clip(4 * (high - low) / width, _CELLS, 64 * _CELLS))
    counts, edges = np.histogram(values, bins=cells, range=(low, high))
    step = (high - low) / cells
    reach = int(np.ceil(_REACH * width / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / width) ** 2)
    kernel /= kernel.sum()
    smooth = np.convolve(counts, kernel, mode="same")[:cells] / (len(values) * step)
    x = np.linspace(low, high, points)
    return x, np.interp(x, edges[:-1] + step / 2, smooth, left=0.0, right=0.0)


def bandwidth(values: np.ndarray) -> float:
    """Silverman's bandwidth 0.9 min(sd, IQR / 1.34) n^(-1/5) of finite draws (draw,)."""
    sd = float(np.std(values, ddof=1))
    low, high = np.quantile(values, [0.25, 0.75])
    spread = min(sd, float(high - low) / 1.34) or sd
    return 0.9 * spread * len(values) ** -0.2
