"""The certificate on skewed posteriors, drawn from exactly: right draws can be told, and wrong ones are never within.

Wrong draws are the negative control of right ones: the same call must reject them. The full study, on regressions with
rare levels, is benchmarks/certificate_calibration.py.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special

from shardmc.check import Certificate, Certify, certify_draws
from shardmc.check.skewness import LineDensities
from shardmc.types import Gradients, Mode

DRAWS, SEEDS = 8_000, 10


@dataclass(frozen=True)
class Target:
    mode: Mode
    draw: Callable[[int, np.random.Generator], np.ndarray]
    score: Callable[[np.ndarray], np.ndarray]


def log_gammas(*shapes: float) -> Target:
    """Independent logarithms of Gamma variables."""
    shape = np.array(shapes)
    mode = Mode(np.zeros(len(shape)), np.diag(shape), 0.0, 0.0)
    draw = lambda n, r: np.log(r.gamma(shape, size=(n, len(shape))) / shape)  # noqa: E731
    return Target(mode, draw, lambda t: shape * (1 - np.exp(t)))


def separated(count: int, prior_sd: float = 10.0) -> Target:
    """Two covariates b ~ N(0, I), and levels beta_j = t_j - a_j^T b where t_j is known by three zeros and its prior.

    log p(t) = -3 log(1 + exp(t)) - t^2 / (2 prior_sd^2), drawn from by the inverse of its distribution function.
    """
    a = np.random.default_rng(count).normal(size=(count, 2))
    slope = lambda t: -3 * special.expit(t) - t / prior_sd**2  # noqa: E731
    grid = np.linspace(-8 * prior_sd, 10, 100_001)
    below = np.cumsum(np.exp(-3 * np.logaddexp(0, grid) - grid**2 / (2 * prior_sd**2)))

    def draw(n, rng):
        b = rng.normal(size=(n, 2))
        t = np.interp(rng.uniform(size=(n, count)) * below[-1], below, grid)
        return np.column_stack([b, t - b @ a.T])

    def score(theta):
        b, beta = theta[:, :2], theta[:, 2:]
        pull = slope(beta + b @ a.T)
        return np.column_stack([-b + pull @ a, pull])

    bending = lambda t: 3 * special.expit(t) * special.expit(-t) + prior_sd**-2  # noqa: E731
    top = grid[np.abs(slope(grid)).argmin()]
    for _ in range(20):
        top += slope(top) / bending(top)
    bend = bending(top)
    curvature = np.block(
        [[np.eye(2) + bend * a.T @ a, bend * a.T], [bend * a, bend * np.eye(count)]],
    )
    return Target(Mode(np.concatenate([[0.0, 0.0], np.full(count, top)]), curvature, 0.0, 0.0), draw, score)


TARGETS = {
    "log Gamma(2)": log_gammas(2.0),
    "log Gammas": log_gammas(1.5, 2.0, 3.0, 10.0),
    "four separated levels": separated(4),
    "wide prior": separated(2, 25.0),
}
QUICK = "four separated levels"
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name != QUICK)) for name in TARGETS]


def certified(target: Target, theta: np.ndarray, rng: np.random.Generator) -> Certificate:
    dim = theta.shape[1]
    names, worth = [f"x[{k}]" for k in range(dim)], np.full(dim, float(len(theta)))
    return certify_draws(
        names, lambda points: Gradients(target.score(points)), target.mode, theta, None, rng, lambda: worth
    )[0]


def spoiled(theta: np.ndarray, how: str) -> np.ndarray:
    """Shift the last parameter by 0.3 sd either way, or stretch or squeeze it by a quarter."""
    theta = theta.copy()
    last = theta[:, -1]
    move = {"higher": 0.3 * last.std(), "lower": -0.3 * last.std()}
    scale = {"wide": 1.25, "narrow": 1 / 1.25}
    theta[:, -1] = last.mean() + scale.get(how, 1.0) * (last - last.mean()) + move.get(how, 0.0)
    return theta


def verdicts(target: Target, change: Callable[[np.ndarray, np.random.Generator], np.ndarray]) -> Counter:
    counts = Counter()
    for seed in range(SEEDS):
        rng = np.random.default_rng([7, seed])
        counts[certified(target, change(target.draw(DRAWS, rng), rng), rng).verdict] += 1
    return counts


@pytest.mark.parametrize("name", NAMES)
def test_right_draws_can_be_told(name):
    target = TARGETS[name]
    assert np.abs(target.score(target.mode.theta[None]) @ target.mode.frame.basis).max() < 1e-6
    counts = verdicts(target, lambda theta, rng: theta)
    # At most 1 % are called off: 4 and more of 10 have probability 2e-6. At least 90 % are within: 4 and fewer of 10
    # have probability 1e-4.
    assert counts["off"] < 4
    assert counts["within"] > 4


WRONG = [
    *((QUICK, how) for how in ("higher", "narrow")),
    *(pytest.param(QUICK, how, marks=pytest.mark.slow) for how in ("lower", "wide")),
    *(pytest.param("log Gamma(2)", how, marks=pytest.mark.slow) for how in ("higher", "wide")),
    *(pytest.param("log Gammas", how, marks=pytest.mark.slow) for how in ("lower", "narrow")),
    *(pytest.param("wide prior", how, marks=pytest.mark.slow) for how in ("lower", "narrow")),
]
"""All ways for one posterior, and each way for one more at least."""


@pytest.mark.parametrize(("name", "how"), WRONG)
def test_wrong_draws_are_off_and_never_within(name, how):
    counts = verdicts(TARGETS[name], lambda theta, rng: spoiled(theta, how))
    assert counts["within"] == 0
    assert counts["off"] > 4  # at least 90 % are found: 4 and fewer of 10 have probability 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_laplace_approximation_is_never_within(name):
    target = TARGETS[name]
    laplace = lambda theta, rng: target.mode.frame.to_theta(rng.normal(size=theta.shape))  # noqa: E731
    assert verdicts(target, laplace)["within"] == 0


@pytest.mark.slow
def test_a_wrong_shape_with_the_right_moments_is_mostly_seen():
    """A Gaussian with the posterior's mean and covariance: what "within" says is true, but the Stein test objects."""
    target = TARGETS["four separated levels"]

    def gaussian(theta, rng):
        return rng.multivariate_normal(theta.mean(axis=0), np.cov(theta.T), size=len(theta))

    # At least 85 % are seen: 5 and more of 10 are not with probability 1e-3.
    assert verdicts(target, gaussian)["within"] < 5


def test_harder_cases_take_more_gradients_within_the_limit():
    target = TARGETS["log Gammas"]
    rng = np.random.default_rng(3)
    theta = target.draw(DRAWS, rng)
    asked = []

    def score(points):
        asked.append(len(points))
        return Gradients(np.where(np.arange(4) == 3, 5 * np.sin(3 * points), 0) + target.score(points))

    options = Certify(draws=50, max_draws=400)
    certificate, chosen = certify_draws(
        list("abcd"), score, target.mode, theta, None, rng, lambda: np.full(4, 8_000.0), options=options
    )
    assert certificate.verdict != "within"  # the score is another density's
    assert sum(asked) == len(chosen) == certificate.num_gradients <= 400
    assert len(np.unique(chosen)) == len(chosen)


def test_the_equation_of_a_line_is_solved():
    """For a standard normal density g = 1 solves g' - t g = -(t - 0), and g = t does for t^2 - 1."""
    at = np.linspace(-3, 3, 200)
    lines = LineDensities.fitted(at, -at, [np.empty(0, dtype=int)])
    inside = np.abs(lines.grid) < 2.5
    assert np.abs(-lines.solve(lines.grid[None])[0][inside] - 1).max() < 0.02
    assert np.abs(-lines.solve(lines.grid[None] ** 2)[0][inside] - lines.grid[inside]).max() < 0.05
    assert abs(lines.mean_and_sd()[1] - 1) < 0.02
