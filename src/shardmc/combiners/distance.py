"""Distances between draws and a reference, on coordinates standardised by the reference, with their noise floors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from shardmc.combiners.density import (
    PLANE_MARGIN,
    PLANE_SIDE,
    Distribution,
    DrawsOrLaw,
    density,
    density_of_plane,
    equally_spaced,
    mean_and_sd,
    silverman,
    support,
)
from shardmc.errors import OptionError, unknown

SINGULAR = 1e-10
"""Eigenvalue of the reference's correlation matrix below which a direction counts as constant."""


Side: TypeAlias = "np.ndarray | Sequence[Distribution] | Distribution"
"""Draws (draw, dim), or (draw,) for one dimension; or the exact marginal distributions, one per coordinate."""


def marginal_l2(draws: Side, reference: Side, *, relative: bool = False) -> float:
    """Mean over the coordinates of the integral of (p - q)^2, q the reference's marginal density.

    Densities of draws are Gaussian kernel estimates with Silverman's bandwidth, 0.9 min(sd, IQR / 1.34) n^(-1/5),
    binned linearly and convolved by FFT; a side may be given by exact distributions instead.

    Parameters
    ----------
    draws, reference
        (draw, dim) arrays, or distributions.
    relative
        Divide by the integral of q^2, coordinate by coordinate.

    Examples
    --------
    >>> from scipy import stats
    >>> round(marginal_l2(stats.norm(1, 1), stats.norm(0, 1), relative=True), 4)
    0.4424
    """
    return float(np.mean([l2 / (norm if relative else 1) for l2, norm, _ in _marginals(draws, reference)]))


def absolute_distance(draws: Side, reference: Side) -> float:
    """Mean over the coordinates of half the integral of |p - q| (IAD), densities as in `marginal_l2`.

    Examples
    --------
    >>> from scipy import stats
    >>> round(absolute_distance(stats.norm(1, 1), stats.norm(0, 1)), 4)
    0.3829
    """
    return float(np.mean([iad for _, _, iad in _marginals(draws, reference)]))


def joint_l2(draws: np.ndarray, reference: np.ndarray, *, relative: bool = False) -> float:
    """The integral of (p - q)^2 over the plane, for draws of two coordinates (or of one: `marginal_l2`).

    Kernel estimates with the bandwidth matrix n^(-1/3) times the covariance of the draws, on a grid.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(100_000, 2))
    >>> joint_l2(x, x)
    0.0
    """
    draws, reference = _arrays(draws, reference)
    if draws.shape[1] == 1:
        return marginal_l2(draws, reference, relative=relative)
    if draws.shape[1] != 2:
        raise OptionError(f"The joint L2 distance is for one or two coordinates; there are {draws.shape[1]}.")
    draws, reference = _standardised(draws, reference)
    if draws.shape[1] < 2 or np.linalg.matrix_rank(np.cov(draws.T)) < 2:
        return float("inf")
    edge = [(min(a.min(), b.min()), max(a.max(), b.max())) for a, b in zip(draws.T, reference.T, strict=True)]
    p, q = (density_of_plane(x, edge) for x in (draws, reference))
    area = np.prod([(high - low) * (1 + 2 * PLANE_MARGIN) / PLANE_SIDE for low, high in edge])
    norm = (q**2).sum() * area if relative else 1.0
    return float(((p - q) ** 2).sum() * area / norm)


def mean_distance(draws: Side, reference: Side) -> float:
    """Mahalanobis distance of the means in the covariance of the reference: an error in posterior sds.

    Examples
    --------
    >>> round(mean_distance(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0])), 3)
    1.0
    """
    mean, _ = _whitened_moments(draws, reference)
    return float(np.linalg.norm(mean))


def gaussian_kl(draws: Side, reference: Side) -> float:
    """Kullback-Leibler divergence of the normal with the draws' moments from that with the reference's.

    (tr C + |m|^2 - dim - log det C) / 2, with m and C the draws' mean and covariance in coordinates in which the
    reference has mean zero and the identity as covariance. Infinite where the draws do not vary in a direction in
    which the reference does.

    Examples
    --------
    >>> from scipy import stats
    >>> gaussian_kl(stats.norm(1, 1), stats.norm(0, 1))
    0.5
    """
    mean, covariance = _whitened_moments(draws, reference)
    sign, log_det = np.linalg.slogdet(covariance)
    if sign <= 0:
        return float("inf")
    return float((np.trace(covariance) + mean @ mean - len(mean) - log_det) / 2)


def worst_mean(draws: Side, reference: Side) -> float:
    """The largest error of a coordinate's mean, in sds of the reference.

    Examples
    --------
    >>> from scipy import stats
    >>> worst_mean([stats.norm(1, 1), stats.norm(0, 1)], [stats.norm(0, 2), stats.norm(0, 1)])
    0.5
    """
    return max(abs(mean - center) / unit for mean, _, center, unit in _varying_moments(draws, reference))


def worst_sd(draws: Side, reference: Side) -> float:
    """The largest error of a coordinate's sd, as the absolute logarithm of its ratio to that of the reference.

    Examples
    --------
    >>> from scipy import stats
    >>> round(worst_sd([stats.norm(1, 1.1), stats.norm(0, 1)], [stats.norm(0, 1), stats.norm(0, 1)]), 3)
    0.095
    """
    found = [sd / unit for _, sd, _, unit in _varying_moments(draws, reference)]
    return float("inf") if min(found) <= 0 else max(abs(float(np.log(ratio))) for ratio in found)


def _varying_moments(draws: Side, reference: Side) -> list[tuple[float, float, float, float]]:
    """Mean and sd of both sides, for the coordinates in which the reference varies."""
    pairs = zip(*_columns(draws, reference), strict=True)
    found = [(*mean_and_sd(a), *mean_and_sd(b)) for a, b in pairs]
    varying = [each for each in found if each[3] > 1e-13 * abs(each[2])]
    if not varying:
        raise OptionError("The reference does not vary in any coordinate, so there is no unit to measure in.")
    return varying


def kolmogorov_smirnov(draws: Side, reference: Side) -> np.ndarray:
    """The largest difference of the distribution functions of each coordinate, (dim,).

    Examples
    --------
    >>> kolmogorov_smirnov(np.array([0.0, 1.0]), np.array([0.5, 1.5]))
    array([0.5])
    """
    return np.array([_largest_cdf_gap(a, b) for a, b in zip(*_columns(draws, reference), strict=True)])


def sliced_wasserstein(
    draws: np.ndarray, reference: np.ndarray, *, num_directions: int = 50, seed: int = 0
) -> float:
    """Root mean square, over random directions, of the 2-Wasserstein distance of the projected draws.

    Coordinates are standardised by the reference. Projections of unequal numbers of draws are compared at 10,000
    quantiles; of more than 100,000 draws an even selection is used.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(1000, 1))
    >>> round(sliced_wasserstein(x + 2 * x.std(), x), 6)
    2.0
    """
    draws, reference = _standardised(*_arrays(draws, reference))
    draws, reference = (x[:: -(-len(x) // 100_000)] for x in (draws, reference))
    directions = np.random.default_rng(seed).standard_normal((num_directions, draws.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    if draws.shape[1] == 1:
        directions = np.ones((1, 1))
    squares = []
    for direction in directions:
        a, b = np.sort(draws @ direction), np.sort(reference @ direction)
        if len(a) != len(b):
            levels = (np.arange(10_000) + 0.5) / 10_000
            a, b = (np.interp(levels, (np.arange(len(x)) + 0.5) / len(x), x) for x in (a, b))
        squares.append(np.mean((a - b) ** 2))
    return float(np.sqrt(np.mean(squares)))


DISTANCES = {
    "l2": marginal_l2,
    "relative_l2": lambda draws, reference: marginal_l2(draws, reference, relative=True),
    "joint_l2": joint_l2,
    "iad": absolute_distance,
    "mean": mean_distance,
    "kl": gaussian_kl,
    "worst_mean": worst_mean,
    "worst_sd": worst_sd,
    "ks": lambda draws, reference: float(kolmogorov_smirnov(draws, reference).max()),
    "sliced": sliced_wasserstein,
}
"""The distances by name; "mean" is the Mahalanobis distance of the means, "ks" the largest over the marginals."""


_OF_MARGINALS = frozenset({"l2", "relative_l2", "iad"})


def distances(draws: Side, reference: Side, names: Iterable[str] | None = None) -> dict[str, float]:
    """Distances of draws from a reference by name.

    Parameters
    ----------
    draws, reference
        (draw, dim) arrays, or exact distributions.
    names
        Keys of `DISTANCES`. By default all that the two sides allow: the joint L2 distance needs two coordinates,
        sliced Wasserstein needs draws, and the mean and KL distances need draws if there are several coordinates.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(1000, 2))
    >>> distances(x, x, ["l2", "ks"])
    {'l2': 0.0, 'ks': 0.0}
    """
    if names is None:
        left, right = _columns(draws, reference)
        exact = not all(isinstance(c, np.ndarray) for c in (*left, *right))
        names = [
            name
            for name in DISTANCES
            if not (name == "joint_l2" and (len(left) != 2 or exact))
            and not (name == "sliced" and exact)
            and not (name in ("mean", "kl") and exact and len(left) > 1)
        ]
    names = list(names)
    for name in names:
        if name not in DISTANCES:
            raise unknown("distance", name, DISTANCES)
    result = {}
    if not _OF_MARGINALS.isdisjoint(names):
        # One estimate of the densities serves all three.
        l2, norm, iad = np.transpose(_marginals(draws, reference))
        result = {"l2": l2.mean(), "relative_l2": (l2 / norm).mean(), "iad": iad.mean()}
    result |= {name: DISTANCES[name](draws, reference) for name in names if name not in _OF_MARGINALS}
    return {name: float(result[name]) for name in names}


def noise_floor(
    reference: Side, num_draws: int, names: Iterable[str] | None = None, *, repeats: int = 4, seed: int = 0
) -> dict[str, float]:
    """The distances that `num_draws` independent draws of the reference itself would have.

    This is a mean over `repeats` repetitions. If the reference is exact, each repetition measures the distance of new
    draws from it. If the reference is a sample of n draws, each measures the distance between two resamples (with
    replacement) of it, one of `num_draws` and one of n draws, which has the noise of both sides. The n draws must be
    independent, so thin them first.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(1000, 1))
    >>> 0.0 < noise_floor(x, 1000, ["ks"])["ks"] < 0.1
    True
    """
    rng = np.random.default_rng(seed)
    names = None if names is None else list(names)
    found = []
    for _ in range(repeats):
        if isinstance(reference, np.ndarray):
            n = len(reference)
            other = reference[rng.integers(n, size=n)]
            sample = reference[rng.integers(n, size=num_draws)]
        else:
            (columns,) = _columns(reference)
            other = reference
            sample = np.stack([c.rvs(num_draws, random_state=rng) for c in columns], axis=1)  # pyright: ignore
        found.append(distances(sample, other, names))
    return {name: float(np.mean([f[name] for f in found])) for name in found[0]}


def _columns(*sides: Side) -> list[list[DrawsOrLaw]]:
    """Each side as one array or distribution per coordinate."""
    result: list[list[DrawsOrLaw]] = []
    for side in sides:
        if not isinstance(side, Distribution) and not isinstance(side[0], Distribution):
            side = np.asarray(side)
        if isinstance(side, np.ndarray):
            array = side[:, None] if side.ndim == 1 else side
            if array.ndim != 2 or len(array) == 0 or not np.isfinite(array).all():
                raise OptionError(f"Draws must be finite and of shape (draw, dim); {side.shape} was given.")
            result.append(list(array.T.astype(np.float64)))
        else:
            result.append([side] if isinstance(side, Distribution) else list(side))
    if len({len(columns) for columns in result}) > 1:
        counts = " and ".join(str(len(columns)) for columns in result)
        raise OptionError(f"The two sides have {counts} coordinates; they must have the same.")
    return result


def _arrays(draws: Side, reference: Side) -> tuple[np.ndarray, np.ndarray]:
    if not (isinstance(draws, np.ndarray) and isinstance(reference, np.ndarray)):
        raise OptionError("This distance compares draws with draws; an exact distribution was given.")
    left, right = _columns(draws, reference)
    return np.stack(left, axis=1), np.stack(right, axis=1)  # pyright: ignore[reportArgumentType, reportCallIssue]


def _standardised(draws: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both in units of the reference's sds; coordinates in which the reference is constant are left out."""
    mean, sd = reference.mean(axis=0), reference.std(axis=0)
    varies = sd > 1e-13 * np.abs(reference).max(axis=0)
    if not varies.any():
        raise OptionError("The reference does not vary in any coordinate, so there is no unit to measure in.")
    return (draws[:, varies] - mean[varies]) / sd[varies], (reference[:, varies] - mean[varies]) / sd[varies]


def _whitened_moments(draws: Side, reference: Side) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the draws in coordinates in which the reference has mean 0 and covariance I."""
    if isinstance(draws, np.ndarray) and isinstance(reference, np.ndarray):
        a, b = _standardised(*_arrays(draws, reference))
        values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(b.T)))
        kept = values > SINGULAR * values[-1]
        whitener = vectors[:, kept] / np.sqrt(values[kept])
        z = (a - b.mean(axis=0)) @ whitener
        covariance = np.atleast_2d(np.cov(z.T)) if len(z) > 1 else np.zeros((z.shape[1],) * 2)
        return z.mean(axis=0), covariance
    left, right = _columns(draws, reference)
    if len(left) > 1:
        raise OptionError("The covariance of several exact marginals is not known: give draws.")
    (mean, sd), (center, unit) = mean_and_sd(left[0]), mean_and_sd(right[0])
    return np.array([(mean - center) / unit]), np.array([[(sd / unit) ** 2]])


def _largest_cdf_gap(a: DrawsOrLaw, b: DrawsOrLaw) -> float:
    if not isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        a, b = b, a
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        first, second = np.sort(a), np.sort(b)
        points = np.concatenate([first, second])
        gap = np.searchsorted(first, points, "right") / len(a) - np.searchsorted(
            second, points, "right"
        ) / len(b)
        return float(np.abs(gap).max())
    assert not isinstance(b, np.ndarray)
    if isinstance(a, np.ndarray):
        cdf = b.cdf(np.sort(a))
        steps = np.arange(len(a) + 1) / len(a)
        return float(max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()))
    mean, sd = mean_and_sd(b)
    points = mean + sd * np.linspace(-12, 12, 20_001)
    return float(np.abs(a.cdf(points) - b.cdf(points)).max())


def _marginals(draws: Side, reference: Side) -> list[tuple[float, float, float]]:
    """For each coordinate the integrals of (p - q)^2, q^2 and |p - q| / 2."""
    result = []
    for a, b in zip(*_columns(draws, reference), strict=True):
        mean, sd = mean_and_sd(b)
        if sd <= 1e-13 * abs(mean):
            continue
        bandwidths = [silverman(c) for c in (a, b)]
        if min(bandwidths) <= 0:
            result.append((float("inf"), 1.0, 1.0))
            continue
        ends = [support(c, h) for c, h in zip((a, b), bandwidths, strict=True)]
        low, high = min(e[0] for e in ends), max(e[1] for e in ends)
        grid, step = equally_spaced(low, high, min(bandwidths))
        p, q = (density(c, h, grid, step) for c, h in zip((a, b), bandwidths, strict=True))
        # Densities in units of 1 / sd, so that the integral of a square is sd times that in raw units.
        unit = sd * step
        result.append((((p - q) ** 2).sum() * unit, (q**2).sum() * unit, np.abs(p - q).sum() * step / 2))
    if not result:
        raise OptionError("The reference does not vary in any coordinate, so there is no unit to measure in.")
    return result
