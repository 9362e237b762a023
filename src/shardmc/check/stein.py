"""Stein's identities: errors of the mean and covariance of draws, and a test of their shape, from gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardmc.check import special


@dataclass(frozen=True)
class Estimate:
    """Estimates with standard errors and degrees of freedom, all of one shape."""

    value: np.ndarray
    se: np.ndarray
    df: np.ndarray
    of_gradients: np.ndarray
    """The part of the standard error that more gradients would remove. The rest is Monte Carlo noise."""

    def p_value(self, null: float) -> np.ndarray:
        """Two-sided p-value of Student's t test that the number is `null`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.abs(self.value - null) / self.se
        return np.where(self.value == null, 1.0, 2 * special.stdtr(self.df, -ratio))

    def width_p_value(self) -> np.ndarray:
        """Two-sided p-value that these ratios of variances are 1, on the log scale.

        The standard error of a variance grows with the variance: it is too large if draws are too wide, and too small
        if they are too narrow. The standard error of its logarithm does not.
        """
        value = np.maximum(self.value, 1e-12)
        return Estimate(np.log(value), self.se / value, self.df, self.of_gradients / value).p_value(0.0)

    def root(self) -> Estimate:
        """Square roots. Their standard errors are those of the values divided by twice the root."""
        root = np.sqrt(np.maximum(self.value, 1e-6))
        return Estimate(root, self.se / (2 * root), self.df, self.of_gradients / (2 * root))


@dataclass(frozen=True)
class SteinSample:
    """Draws in whitened coordinates, and what the gradients at some draws say about all of them.

    z = L^T (theta - mode) with curvature H = L L^T, s = L^-1 grad log posterior, r = s + z.
    """

    z: np.ndarray  # (draw, dim)
    predicted: np.ndarray  # (draw, dim) prediction of r at every draw
    chosen: np.ndarray  # (chosen,) draws where s is known
    residual: np.ndarray  # (chosen, dim) r minus its held-out prediction
    r: np.ndarray  # (chosen, dim)
    ess: float
    """Effective number of draws, at most their number."""

    @staticmethod
    def of(
        z: np.ndarray, chosen: np.ndarray, scores: np.ndarray, ess: float, rng: np.random.Generator
    ) -> SteinSample:
        """Learn the residuals from `scores` (chosen, dim), the whitened gradients at z[chosen]."""
        r = scores + z[chosen]
        predicted, held_out = cross_fit(z, chosen, r, rng)
        return SteinSample(z, predicted, chosen, r - held_out, r, ess)

    def part(self, keep: np.ndarray) -> SteinSample:
        """The same for the draws where `keep` (draw,) is true."""
        position = np.cumsum(keep) - 1
        inside = keep[self.chosen]
        return SteinSample(
            self.z[keep],
            self.predicted[keep],
            position[self.chosen[inside]],
            self.residual[inside],
            self.r[inside],
            self.ess * float(np.mean(keep)),
        )

    @cached_property
    def mean_error(self) -> np.ndarray:
        """m = mean(z - f) - mean_R(r - f), the error of the draws' mean in whitened coordinates, (dim,)."""
        return np.mean(self.z - self.predicted, axis=0) - np.mean(self.residual, axis=0)

    @cached_property
    def mean_covariance(self) -> np.ndarray:
        """Covariance of the estimate `mean_error`, (dim, dim)."""
        score = self.z - self.predicted
        return np.atleast_2d(np.cov(score.T)) / self.ess + np.atleast_2d(np.cov(self.residual.T)) / len(
            self.residual
        )

    @cached_property
    def covariance_ratio(self) -> np.ndarray:
        """C = sym [cov(z, z - f) - cov_R(z, r - f)], the draws' covariance relative to the posterior's, (dim, dim)."""
        score = self.z - self.predicted
        raw = _cross(self.z, score) - _cross(self.z[self.chosen], self.residual)
        return (raw + raw.T) / 2

    def mean_along(self, directions: np.ndarray, ess: np.ndarray | float | None = None) -> Estimate:
        """Error of the mean of v^T z for each unit row v of `directions` (direction, dim)."""
        at = self.z @ directions.T
        predicted = self.predicted @ directions.T
        extrapolated = 0.5 * np.mean(np.abs(predicted) * self._beyond(at), axis=0)
        residual = self.residual @ directions.T
        return _difference(
            at - predicted, residual, self.chosen, self.ess if ess is None else ess, extrapolated
        )

    def variance_along(self, directions: np.ndarray, ess: np.ndarray | float | None = None) -> Estimate:
        """Ratio v^T C v of the draws' variance to the posterior's for each unit row v of `directions`."""
        at = self.z @ directions.T
        predicted = self.predicted @ directions.T
        extrapolated = 0.5 * np.mean(np.abs(_products(at, predicted)) * self._beyond(at), axis=0)
        chosen = _products(at[self.chosen], self.residual @ directions.T)
        everywhere = _products(at, at - predicted)
        return _difference(everywhere, chosen, self.chosen, self.ess if ess is None else ess, extrapolated)

    def nonlinearity(self, directions: np.ndarray) -> np.ndarray:
        """Standard deviation of v^T r for each unit row v of `directions`: zero for a Gaussian posterior."""
        return (self.r @ directions.T).std(axis=0, ddof=1)

    def surprise(self, directions: np.ndarray) -> np.ndarray:
        """Largest |v^T (r - f)|: the distance of the gradient at one draw from the prediction of the others."""
        return np.abs(self.residual @ directions.T).max(axis=0)

    def _beyond(self, at: np.ndarray) -> np.ndarray:
        """Which draws lie beyond all draws with a known gradient, along each direction, (draw, direction)."""
        known = at[self.chosen]
        return (at < known.min(axis=0)) | (at > known.max(axis=0))


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Covariance (dim, dim) of the columns of a with those of b."""
    return (a - a.mean(axis=0)).T @ (b - b.mean(axis=0)) / max(len(a) - 1, 1)


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Terms whose mean is the covariance (ddof 1) of each column of a with that of b."""
    return (a - a.mean(axis=0)) * (b - b.mean(axis=0)) * (len(a) / max(len(a) - 1, 1))


def _difference(
    everywhere: np.ndarray,
    chosen: np.ndarray,
    indices: np.ndarray,
    ess: np.ndarray | float,
    extrapolated: np.ndarray,
) -> Estimate:
    """Mean over all draws minus mean over the chosen ones, columnwise, with Welch's degrees of freedom.

    The chosen draws are among all draws, so the two means are correlated. What was `extrapolated` beyond the chosen
    draws is not evidence, and counts as an error of its own size.
    """
    count = len(chosen)
    of_all = everywhere.var(axis=0, ddof=1) / ess
    of_chosen = chosen.var(axis=0, ddof=1) / count
    paired = everywhere[indices]
    shared = (
        2 * np.mean((paired - paired.mean(axis=0)) * (chosen - chosen.mean(axis=0)), axis=0) / len(everywhere)
    )
    uncertain = of_chosen + extrapolated**2
    variance = np.maximum(of_all + uncertain - shared, 0.25 * (of_all + uncertain))
    spread = of_all**2 / np.maximum(np.asarray(ess) - 1, 1) + uncertain**2 / max(count - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        df = np.where(spread > 0, (of_all + uncertain) ** 2 / spread, np.inf)
    value = everywhere.mean(axis=0) - chosen.mean(axis=0)
    return Estimate(value, np.sqrt(variance), df, np.sqrt(uncertain))


_MANY = 150  # with more points, one decomposition is cheaper than an inverse for every penalty
_BLOCK = 20_000  # draws at a time, to limit memory


def cross_fit(
    draws: np.ndarray, chosen: np.ndarray, residuals: np.ndarray, rng: np.random.Generator, folds: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Predict residuals at all draws from those at the chosen draws, by ridge regression on quadratics.

    If the posterior is nearly Gaussian, the residual r(z) = s(z) + z is nearly a quadratic form in z, so a few
    gradients determine most of it. With predictions f, mean(r) = mean over all draws of f + mean over the chosen draws
    of (r - f), and the second mean has a small variance. Each chosen draw is predicted by a fit that has not seen it,
    so the second mean corrects the errors of f and its standard error is valid.

    Parameters
    ----------
    draws
        All draws z in whitened coordinates, (draw, dim).
    chosen
        Indices of the draws where the residuals are known, (chosen,).
    residuals
        Residuals there, (chosen, dim).
    rng
        Assigns the chosen draws to the folds.
    folds
        The number of fits, each without one fold.

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
    # A typical inner product becomes 1, so that linear and quadratic features have similar weight.
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
        inner = draws[block] @ points.T
        inner /= scale  # in place: memory for each step would take longer than the steps
        inner += 1
        np.square(inner, out=inner)
        everywhere[block] = center + inner @ weights
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
        # Inverses, not eigenvectors: in small eigenproblems LAPACK's threads wait longer than they work.
        inverses = np.linalg.inv(kernel + penalties[:, None, None] * np.eye(len(kernel)))
        weights = inverses @ centered  # (penalty, point, output)
        left_out = weights / np.diagonal(inverses, axis1=1, axis2=2)[:, :, None]
    errors = np.sum(left_out**2, axis=(1, 2))
    best = int(errors.argmin())
    return center, weights[best] if errors[best] < np.sum(centered**2) else np.zeros(targets.shape)


@dataclass(frozen=True)
class SteinTest:
    """A kernel Stein discrepancy and its p-value. A small p-value means that the shape is wrong."""

    statistic: float
    p_value: float


def stein_kernel(points: np.ndarray, scores: np.ndarray) -> np.ndarray:
    r"""Matrix of the Stein kernel u(x, y) of the inverse multiquadric k(x, y) = (1 + |x - y|^2 / h^2)^(-1/2).

        u(x, y) = s(x)^T s(y) k + s(x)^T grad_y k + s(y)^T grad_x k + tr(grad_x grad_y^T k)

    Its mean over pairs of draws is zero if the draws come from the density with score s. The bandwidth h^2 is the
    median squared distance.

    Parameters
    ----------
    points
        Draws, (draw, dim), in whitened coordinates.
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

    The statistic is the U-statistic sum over i != j of u(x_i, x_j) / (n (n - 1)); under the density it is distributed
    like the same sum with u multiplied by random signs e_i e_j.

    Parameters
    ----------
    points, scores
        Draws and scores, (draw, dim).
    rng
        Draws the signs.
    replicates
        Number of bootstrap sums. The p-value is at least 1 / (replicates + 1).

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
