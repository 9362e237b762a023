"""Densities of draws on grids: Gaussian kernel estimates by binning and FFT, or exact ones."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np


@runtime_checkable
class Distribution(Protocol):
    """A distribution of one coordinate whose density is known, such as a frozen one of scipy.stats."""

    def pdf(self, x: Any) -> Any: ...
    def cdf(self, x: Any) -> Any: ...
    def mean(self) -> Any: ...
    def std(self) -> Any: ...
    def rvs(self, size: Any = None, random_state: Any = None) -> Any: ...


Column: TypeAlias = "np.ndarray | Distribution"
"""Draws of one coordinate, or its exact distribution."""

PLANE_SIDE = 1024
"""Points along each side of the grid on which densities of two coordinates are compared."""
PLANE_MARGIN = 0.25
"""Part of the range by which that grid goes beyond the draws."""


def mean_and_sd(column: Column) -> tuple[float, float]:
    """Mean and standard deviation of a coordinate."""
    return float(column.mean()), float(column.std())


def silverman(column: Column) -> float:
    """Silverman's bandwidth; for an exact distribution sd / 20, which only sets the grid."""
    if not isinstance(column, np.ndarray):
        return mean_and_sd(column)[1] / 20
    sd = float(column.std())
    if sd <= 1e-13 * float(np.abs(column).max()):
        return 0.0
    low, high = np.percentile(column, [25, 75])
    spread = min(sd, (high - low) / 1.34) if high > low else sd
    return 0.9 * spread * len(column) ** -0.2


def support(column: Column, bandwidth: float) -> tuple[float, float]:
    if isinstance(column, np.ndarray):
        return float(column.min()) - 8 * bandwidth, float(column.max()) + 8 * bandwidth
    mean, sd = mean_and_sd(column)
    return mean - 12 * sd, mean + 12 * sd


def density(column: Column, bandwidth: float, grid: np.ndarray, step: float) -> np.ndarray:
    """Density on an equally spaced grid that goes well beyond the draws."""
    if not isinstance(column, np.ndarray):
        return np.asarray(column.pdf(grid))
    counts = _binned((column - grid[0]) / step, len(grid))
    frequency = np.fft.rfftfreq(len(grid), step)
    kernel = np.exp(-0.5 * (2 * np.pi * frequency * bandwidth) ** 2)
    smooth = np.fft.irfft(np.fft.rfft(counts) * kernel, len(grid))
    return smooth / (len(column) * step)


def _binned(position: np.ndarray, size: int) -> np.ndarray:
    """Counts on grid points, each draw shared between its two neighbours."""
    left = np.clip(np.floor(position).astype(np.int64), 0, size - 2)
    part = position - left
    return np.bincount(left, 1 - part, size) + np.bincount(left + 1, part, size)


def density_of_plane(x: np.ndarray, edge: list[tuple[float, float]]) -> np.ndarray:
    """Kernel density of (draw, 2) standardised draws on a square grid a margin beyond the edges."""
    flat = np.zeros(len(x), np.int64)
    steps = []
    for column, (low, high) in zip(x.T, edge, strict=True):
        length = (high - low) * (1 + 2 * PLANE_MARGIN)
        steps.append(length / PLANE_SIDE)
        flat = flat * PLANE_SIDE + np.floor((column - low + PLANE_MARGIN * (high - low)) / steps[-1]).astype(
            np.int64
        )
    counts = np.bincount(flat, minlength=PLANE_SIDE**2).reshape(PLANE_SIDE, PLANE_SIDE)
    bandwidth = np.cov(x.T) * len(x) ** (-1 / 3)
    u, v = np.meshgrid(
        np.fft.fftfreq(PLANE_SIDE, steps[0]), np.fft.rfftfreq(PLANE_SIDE, steps[1]), indexing="ij"
    )
    form = bandwidth[0, 0] * u**2 + 2 * bandwidth[0, 1] * u * v + bandwidth[1, 1] * v**2
    smooth = np.fft.irfft2(np.fft.rfft2(counts) * np.exp(-2 * np.pi**2 * form), (PLANE_SIDE, PLANE_SIDE))
    return smooth / (len(x) * steps[0] * steps[1])
