"""Densities of draws on grids: Gaussian kernel estimates by binning and FFT, or exact densities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np


@runtime_checkable
class Distribution(Protocol):
    """A distribution of one coordinate whose density is known, such as a frozen one of scipy.stats."""

    def pdf(self, x: np.ndarray) -> np.ndarray: ...
    def cdf(self, x: np.ndarray) -> np.ndarray: ...
    def mean(self) -> float: ...
    def std(self) -> float: ...
    def rvs(
        self, size: int | tuple[int, ...] | None = None, random_state: np.random.Generator | None = None
    ) -> np.ndarray: ...


DrawsOrLaw: TypeAlias = "np.ndarray | Distribution"
"""Draws of one coordinate, or its exact distribution."""

MOST_POINTS = 2**18
"""The most points that a grid of one coordinate has."""
PLANE_SIDE = 1024
"""Points along each side of the grid on which densities of two coordinates are compared."""
PLANE_MARGIN = 0.25
"""How far that grid extends beyond the draws, as a part of their range."""
_REACH = 8
"""How far a grid extends beyond the draws, in bandwidths. The FFT is circular: a kernel that leaves on one side of the
grid would come back on the other."""
_TAIL = 3.5
"""How far a curve extends beyond the outermost draws, in bandwidths."""


def mean_and_sd(column: DrawsOrLaw) -> tuple[float, float]:
    """Mean and standard deviation of a coordinate."""
    return float(column.mean()), float(column.std())


def silverman(column: DrawsOrLaw) -> float:
    """Silverman's bandwidth; for an exact distribution sd / 20, which only sets the grid."""
    if not isinstance(column, np.ndarray):
        return mean_and_sd(column)[1] / 20
    sd = float(column.std())
    if sd <= 1e-13 * float(np.abs(column).max()):
        return 0.0
    low, high = np.percentile(column, [25, 75])
    spread = min(sd, (high - low) / 1.34) if high > low else sd
    return bandwidth_of(spread, len(column))


def bandwidth_of(spread: float, count: int) -> float:
    """Silverman's bandwidth of `count` draws with this spread: 0.9 spread count^(-1/5)."""
    return 0.9 * spread * count**-0.2


def support(column: DrawsOrLaw, bandwidth: float) -> tuple[float, float]:
    """Ends of a grid that holds the whole density."""
    if isinstance(column, np.ndarray):
        return float(column.min()) - _REACH * bandwidth, float(column.max()) + _REACH * bandwidth
    mean, sd = mean_and_sd(column)
    return mean - 12 * sd, mean + 12 * sd


def equally_spaced(low: float, high: float, bandwidth: float) -> tuple[np.ndarray, float]:
    """A grid with at least four points per bandwidth, where `MOST_POINTS` allows it, and its step."""
    # A power of two is fast to transform.
    size = min(2 ** int(np.ceil(np.log2((high - low) / (bandwidth / 4)))), MOST_POINTS)
    grid, step = np.linspace(low, high, size, retstep=True)
    return grid, float(step)


def density(column: DrawsOrLaw, bandwidth: float, grid: np.ndarray, step: float) -> np.ndarray:
    """Density on an equally spaced grid that extends well beyond the draws."""
    if not isinstance(column, np.ndarray):
        return np.asarray(column.pdf(grid))
    counts = _binned((column - grid[0]) / step, len(grid))
    frequency = np.fft.rfftfreq(len(grid), step)
    kernel = np.exp(-0.5 * (2 * np.pi * frequency * bandwidth) ** 2)
    smooth = np.fft.irfft(np.fft.rfft(counts) * kernel, len(grid))
    return smooth / (len(column) * step)


def density_at(values: np.ndarray, points: np.ndarray, bandwidth: float) -> np.ndarray:
    """Density of draws (draw,) at increasing points (point,).

    >>> x = np.random.default_rng(0).normal(size=100_000)
    >>> bool(abs(density_at(x, np.array([-1.0, 0.0]), 0.1)[1] - 0.3989) < 0.02)
    True
    """
    low, high = points[0] - _REACH * bandwidth, points[-1] + _REACH * bandwidth
    near = values[(values >= low) & (values <= high)]
    grid, step = equally_spaced(low, high, bandwidth)
    if len(near) == 0:
        return np.zeros(len(points))
    near_density = np.interp(points, grid, density(near, bandwidth, grid, step))
    return np.maximum(near_density, 0.0) * (len(near) / len(values))  # the FFT rounds zero to either side


def density_curve(values: np.ndarray, points: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Density of draws as a curve that spans them.

        p(x) = 1/n sum_t N(x; x_t, h^2),    h = 0.9 min(sd, IQR / 1.34) n^(-1/5)

    Parameters
    ----------
    values
        Draws, (draw,). Draws that are not finite are left out.
    points
        Number of points of the curve.

    Returns
    -------
    x, y
        The curve, (points,) each. Both are empty if there are fewer than two different draws.

    Examples
    --------
    >>> x, y = density_curve(np.random.default_rng(0).normal(size=1_000_000), points=201)
    >>> bool(abs(np.interp(0.0, x, y) - 0.3989) < 0.01)
    True
    >>> round(float(np.trapezoid(y, x)), 3)
    1.0
    """
    values = values[np.isfinite(values)]
    bandwidth = silverman(values) if len(values) > 1 else 0.0
    if not bandwidth > 0:
        return np.empty(0), np.empty(0)
    x = np.linspace(values.min() - _TAIL * bandwidth, values.max() + _TAIL * bandwidth, points)
    return x, density_at(values, x, bandwidth)


def _binned(position: np.ndarray, size: int) -> np.ndarray:
    """Counts on grid points, each draw shared between its two neighbours."""
    left = np.clip(np.floor(position).astype(np.int64), 0, size - 2)
    part = position - left
    return np.bincount(left, 1 - part, size) + np.bincount(left + 1, part, size)


def density_of_plane(
    x: np.ndarray, edge: Sequence[tuple[float, float]], side: int = PLANE_SIDE
) -> np.ndarray:
    """Kernel density of draws (draw, 2) on a square grid that extends a margin beyond the edges.

    The bandwidth matrix is n^(-1/3) times the covariance of the draws. Draws beyond the grid are left out.
    """
    cells, steps = [], []
    for column, (low, high) in zip(x.T, edge, strict=True):
        length = (high - low) * (1 + 2 * PLANE_MARGIN)
        steps.append(length / side)
        cells.append(np.floor((column - low + PLANE_MARGIN * (high - low)) / steps[-1]).astype(np.int64))
    first, second = cells
    on_grid = (first >= 0) & (first < side) & (second >= 0) & (second < side)
    flat = (first * side + second)[on_grid]
    counts = np.bincount(flat, minlength=side**2).reshape(side, side)
    bandwidth = np.cov(x.T) * len(x) ** (-1 / 3)
    u, v = np.meshgrid(np.fft.fftfreq(side, steps[0]), np.fft.rfftfreq(side, steps[1]), indexing="ij")
    form = bandwidth[0, 0] * u**2 + 2 * bandwidth[0, 1] * u * v + bandwidth[1, 1] * v**2
    smooth = np.fft.irfft2(np.fft.rfft2(counts) * np.exp(-2 * np.pi**2 * form), (side, side))
    return smooth / (len(x) * steps[0] * steps[1])


def plane_axes(edge: Sequence[tuple[float, float]], side: int = PLANE_SIDE) -> list[np.ndarray]:
    """Where the grid of `density_of_plane` has its points: the middles of its cells, for each coordinate."""
    found = []
    for low, high in edge:
        length = (high - low) * (1 + 2 * PLANE_MARGIN)
        found.append(low - PLANE_MARGIN * (high - low) + (np.arange(side) + 0.5) * length / side)
    return found
