"""The certificate on exact posteriors: it rarely calls right draws off, finds wrong ones, and says when it cannot tell.

Wrong draws are the negative control of right ones: the same call must reject them. The full study, with more models and
seeds, is benchmarks/certificate_calibration.py.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import special, stats

from shardmc.check import Certificate, certify, choose
from shardmc.check.stein import SteinSample
from shardmc.types import Mode

DRAWS = 8_000


@dataclass(frozen=True)
class Target:
    """A posterior with a known score and independent draws."""

    mode: Mode
    draw: Callable[[int, np.random.Generator], np.ndarray]
    score: Callable[[np.ndarray], np.ndarray]


def gaussian(dim: int) -> Target:
    root = np.random.default_rng(dim).normal(size=(dim, dim)) / np.sqrt(dim) + np.eye(dim)
    precision = np.linalg.inv(root @ root.T)
    mode = Mode(np.zeros(dim), precision, 0.0, 0.0)
    return Target(mode, lambda n, r: r.normal(size=(n, dim)) @ root.T, lambda t: -t @ precision)


def log_gamma(*shapes: float) -> Target:
    """Independent logarithms of Gamma variables, the posterior of Poisson means."""
    shape = np.array(shapes)
    mode = Mode(np.zeros(len(shape)), np.diag(shape), 0.0, 0.0)
    draw = lambda n, r: np.log(r.gamma(shape, size=(n, len(shape))) / shape)  # noqa: E731
    return Target(mode, draw, lambda t: shape * (1 - np.exp(t)))


def logit_beta(a: float, b: float) -> Target:
    mode = Mode(np.array([special.logit(a / (a + b))]), np.array([[a * b / (a + b)]]), 0.0, 0.0)
    draw = lambda n, r: special.logit(r.beta(a, b, size=(n, 1)))  # noqa: E731
    return Target(mode, draw, lambda t: a - (a + b) * special.expit(t))


def logistic(num_rows: int = 80, dim: int = 3) -> Target:
    """Logistic regression; every draw is the end of its own independence chain of 8 steps (acceptance above 0.8)."""
    rng = np.random.default_rng(num_rows)
    x = np.column_stack([np.ones(num_rows), rng.normal(size=(num_rows, dim - 1))])
    y = (rng.uniform(size=num_rows) < special.expit(x @ np.linspace(-0.5, 1, dim))).astype(float)
    score = lambda t: (y - special.expit(t @ x.T)) @ x - t / 25  # noqa: E731

    def curvature(t):
        mean = special.expit(x @ t)
        return (x * (mean * (1 - mean))[:, None]).T @ x + np.eye(dim) / 25

    theta = np.zeros(dim)
    for _ in range(30):
        theta = theta + np.linalg.solve(curvature(theta), score(theta[None])[0])
    mode = Mode(theta, curvature(theta), 0.0, 0.0)

    def propose(n, r):
        u = r.normal(size=(n, dim)) / np.sqrt(r.chisquare(10, size=(n, 1)) / 10)
        eta = (t := mode.frame.to_theta(u)) @ x.T
        density = np.sum(y * eta - np.logaddexp(0, eta), axis=1) - np.sum(t**2, axis=1) / 50
        return t, density + (10 + dim) / 2 * np.log1p(np.sum(u**2, axis=1) / 10)

    def draw(n, r):
        t, weight = propose(n, r)
        for _ in range(8):
            other, its_weight = propose(n, r)
            accept = np.log(r.uniform(size=n)) < its_weight - weight
            t[accept], weight[accept] = other[accept], its_weight[accept]
        return t

    return Target(mode, draw, score)


TARGETS = {
    "gaussian": gaussian(10),
    "log gamma": log_gamma(5.0),
    "log gammas": log_gamma(5.0, 10.0, 20.0, 40.0),
    "logit beta": logit_beta(4.0, 60.0),
    "logistic": logistic(),
}
SEEDS = 6


def judged(target: Target, theta: np.ndarray, rng: np.random.Generator, gradients: int = 100) -> Certificate:
    chosen = choose(theta, None, gradients, rng)
    names = [f"x{k}" for k in range(theta.shape[1])]
    return certify(theta, chosen, target.score(theta[chosen]), target.mode, names, rng=rng)


def spoiled(target: Target, theta: np.ndarray, how: str, rng: np.random.Generator) -> np.ndarray:
    """Shift by 0.3 sd, stretch or squeeze by 1.3, along a random direction of the whitened parameters."""
    basis = target.mode.frame.basis
    z = np.linalg.solve(basis, (theta - target.mode.theta).T).T
    v = rng.normal(size=z.shape[1])
    v /= np.linalg.norm(v)
    along = z @ v
    if how == "shifted":
        move = np.full(len(z), 0.3 * along.std())
    else:
        move = (along - along.mean()) * ({"wide": 1.3, "narrow": 1 / 1.3}[how] - 1)
    return theta + np.outer(move, v) @ basis.T


@pytest.fixture(scope="module")
def exact_draws() -> dict[str, list[np.ndarray]]:
    return {
        name: [target.draw(DRAWS, np.random.default_rng([1, seed])) for seed in range(SEEDS)]
        for name, target in TARGETS.items()
    }


def verdicts(draws: dict[str, list[np.ndarray]], how: str) -> Counter:
    counts = Counter()
    for name, target in TARGETS.items():
        for seed, theta in enumerate(draws[name]):
            rng = np.random.default_rng([2, seed])
            values = theta if how == "exact" else spoiled(target, theta, how, rng)
            counts[judged(target, values, rng).verdict] += 1
    return counts


@pytest.mark.slow
def test_right_draws_are_not_called_off(exact_draws):
    counts = verdicts(exact_draws, "exact")
    # At most 1 % of verdicts are false: of 30, 6 and more have probability 5e-7.
    assert counts["off"] < 6
    # These posteriors are near enough to Gaussian that most can be told: at a rate of 0.8, 10 or fewer have
    # probability 6e-8.
    assert counts["within"] > 10


@pytest.mark.parametrize(
    "how",
    ["shifted", pytest.param("wide", marks=pytest.mark.slow), pytest.param("narrow", marks=pytest.mark.slow)],
)
def test_wrong_draws_are_found(exact_draws, how):
    counts = verdicts(exact_draws, how)
    # At least 95 % are found: of 30, 12 and more misses have probability 9e-9.
    assert counts["off"] > 30 - 12
    assert counts["within"] == 0


def studentised(target: Target, seeds: int, ignore_gradients: bool) -> np.ndarray:
    """Errors of the mean and of the variance over their standard errors, on right draws."""
    ratios = []
    directions = target.mode.frame.basis / np.linalg.norm(target.mode.frame.basis, axis=1, keepdims=True)
    for seed in range(seeds):
        rng = np.random.default_rng([3, seed])
        theta = target.draw(DRAWS, rng)
        z = np.linalg.solve(target.mode.frame.basis, (theta - target.mode.theta).T).T
        chosen = choose(theta, None, 100, rng)
        scores = target.score(theta[chosen]) @ target.mode.frame.basis
        sample = SteinSample.of(z, chosen, scores, DRAWS, rng)
        if ignore_gradients:  # as if the gradients at a hundred draws were the mean over all draws
            sample = SteinSample(z, np.zeros(z.shape), chosen, sample.r, sample.r, DRAWS)
        mean, variance = sample.mean_along(directions), sample.variance_along(directions)
        scale = 1 / np.sqrt(DRAWS) if ignore_gradients else mean.se
        ratios += [*(mean.value / scale), *((variance.value - 1) / variance.se)]
    return np.array(ratios)


@pytest.mark.parametrize("name", ["gaussian", "log gamma", "logit beta"])
def test_standard_errors_are_not_too_small(name):
    ratios = studentised(TARGETS[name], 20, ignore_gradients=False)
    # Sum of squares of as many standard normal variables, passed with probability 1e-7; allowing for heavier tails
    # of a hundred gradients, each standard error may be a quarter too small.
    assert np.sum(ratios**2) < 1.25**2 * stats.chi2.isf(1e-7, len(ratios))


@pytest.mark.slow
def test_standard_errors_without_the_gradients_are_too_small():
    ratios = studentised(TARGETS["log gamma"], 40, ignore_gradients=True)
    assert np.sum(ratios**2) > 1.25**2 * stats.chi2.isf(1e-7, len(ratios))


@pytest.mark.parametrize(("shift", "ratio"), [(1.0, 1.0), (-1.0, 1.0), (0.0, 1.5), (0.0, 0.6), (0.5, 1.3)])
def test_errors_are_measured_within_15_percent(shift, ratio):
    target = log_gamma(30.0, 60.0, 100.0)
    rng = np.random.default_rng(4)
    theta = target.draw(DRAWS, rng)
    mean, sd = theta.mean(axis=0), theta.std(axis=0)
    certificate = judged(target, mean + ratio * (theta - mean) + shift * sd, rng)
    # To first order in error and skewness (0.18 at most) the errors are these; 6 standard errors are passed with 2e-9.
    slack = 0.15 * (abs(shift) + abs(np.log(ratio)))
    assert (np.abs(certificate.mean_error - shift) < slack + 6 * certificate.mean_error_se).all()
    assert (np.abs(certificate.sd_ratio / ratio - 1) < slack + 6 * certificate.sd_ratio_se).all()


def gaussian_mixture_score(separation: float, weight: float, sds: tuple[float, float], dim: int) -> Callable:
    """Score of a mixture of two normal distributions, the second of them `separation` away along the first axis."""
    sd = np.array(sds)
    means = np.zeros((2, dim))
    means[1, 0] = separation

    def score(t):
        gaps = means - t[:, None]
        logs = np.log([weight, 1 - weight]) - dim * np.log(sd) - 0.5 * np.sum(gaps**2, axis=2) / sd**2
        return np.sum(special.softmax(logs, axis=1)[:, :, None] * gaps / sd[:, None] ** 2, axis=1)

    return score


def funnel_score(sd: float) -> Callable:
    """x0 ~ N(0, sd^2), x1 and x2 ~ N(0, exp(x0)); the mode is at (-sd^2, 0, 0)."""

    def score(t):
        pull = np.exp(-t[:, 0])
        first = -t[:, 0] / sd**2 - 1 + 0.5 * np.sum(t[:, 1:] ** 2, axis=1) * pull
        return np.column_stack([first, -t[:, 1:] * pull[:, None]])

    return score


def funnel_mode(sd: float) -> Mode:
    return Mode(np.array([-(sd**2), 0, 0]), np.diag([sd**-2, np.exp(sd**2), np.exp(sd**2)]), 0.0, 0.0)


def without_neck(n: int, rng: np.random.Generator) -> np.ndarray:
    first = 3 * rng.normal(size=8 * n)
    first = first[first > -2][:n, None]
    return np.column_stack([first, np.exp(first / 2) * rng.normal(size=(n, 2))])


def at_mode(mode: Mode) -> Callable:
    """Draws of the Laplace approximation."""
    return lambda n, r: mode.frame.to_theta(r.normal(size=(n, len(mode.theta))))


def near_zero(score: Callable, dim: int = 1) -> Mode:
    """The mode near zero and its curvature, by Newton steps with numerical derivatives."""
    theta, unit = np.zeros(dim), 1e-5 * np.eye(dim)
    for _ in range(50):
        curvature = -(score(theta + unit) - score(theta - unit)) / 2e-5
        theta = theta + np.linalg.solve(curvature, score(theta[None])[0])
    return Mode(theta, (curvature + curvature.T) / 2, 0.0, 0.0)


def far_cases() -> dict[str, Target]:
    """Ten posteriors far from Gaussian, each with draws that are wrong by more than the bounds."""
    normal = lambda sd, dim=1: lambda n, r: sd * r.normal(size=(n, dim))  # noqa: E731
    wide, mild = funnel_score(3.0), funnel_score(1.0)
    near, near_5 = gaussian_mixture_score(3, 0.5, (1, 1), 1), gaussian_mixture_score(3, 0.5, (1, 1), 5)
    apart, spike = gaussian_mixture_score(4, 0.7, (1, 1), 1), gaussian_mixture_score(0, 0.5, (0.1, 1.0), 1)
    two_modes = lambda n, r: r.normal(size=(n, 1)) + 4 * (r.uniform(size=(n, 1)) < 0.05)  # noqa: E731
    student = lambda t: -4 * t / (3 + t**2)  # noqa: E731
    bent = lambda t: t[:, 1] - t[:, 0] ** 2  # noqa: E731
    banana = lambda t: np.column_stack([-t[:, 0] + 4 * t[:, 0] * bent(t), -2 * bent(t)])  # noqa: E731
    separated = lambda t: np.exp(3 - t) - t / 100  # noqa: E731
    root = special.lambertw(100 * np.exp(3)).real
    modes = {
        "bent": Mode(np.zeros(2), np.diag([1.0, 2.0]), 0.0, 0.0),
        "student": Mode(np.zeros(1), np.array([[4 / 3]]), 0.0, 0.0),
        "separated": Mode(np.array([root]), np.array([[(root + 1) / 100]]), 0.0, 0.0),
    }
    return {
        "funnel, Laplace": Target(funnel_mode(3.0), at_mode(funnel_mode(3.0)), wide),
        "funnel without its neck": Target(funnel_mode(3.0), without_neck, wide),
        "mild funnel, Laplace": Target(funnel_mode(1.0), at_mode(funnel_mode(1.0)), mild),
        "one of two modes": Target(near_zero(near), normal(1.0), near),
        "one of two modes, d = 5": Target(near_zero(near_5, 5), normal(1.0, 5), near_5),
        "two modes, wrong weights": Target(near_zero(apart), two_modes, apart),
        "spike without slab": Target(near_zero(spike), at_mode(near_zero(spike)), spike),
        "banana, Laplace": Target(modes["bent"], at_mode(modes["bent"]), banana),
        "Student t3, E[z s] = -1": Target(modes["student"], normal(np.sqrt(1.5)), student),
        "separated coefficient, Laplace": Target(modes["separated"], at_mode(modes["separated"]), separated),
    }


FAR = far_cases()


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("gradients", [100, pytest.param(400, marks=pytest.mark.slow)])
def test_far_from_gaussian_wrong_draws_are_never_within(name, gradients):
    target = FAR[name]
    for seed in range(4):
        rng = np.random.default_rng([5, seed])
        assert judged(target, target.draw(DRAWS, rng), rng, gradients).verdict != "within"


def test_modes_of_the_far_cases_are_modes():
    for target in FAR.values():
        assert np.abs(target.score(target.mode.theta[None]) @ target.mode.frame.basis).max() < 1e-6


def test_a_mode_that_no_draw_comes_near_cannot_be_seen():
    """The limit of every check by gradients at the draws; the shards' own modes are what may show it."""
    score = gaussian_mixture_score(12, 0.5, (1, 1), 1)
    target = Target(near_zero(score), lambda n, r: r.normal(size=(n, 1)), score)
    rng = np.random.default_rng(6)
    assert judged(target, target.draw(DRAWS, rng), rng).verdict == "within"
